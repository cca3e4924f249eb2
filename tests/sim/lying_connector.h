// LyingConnector: a decorator of the trainer's connection that changes what the daemon says, for
// the planted bugs kStaleDecision and kSwapsPieces.
#pragma once

#include <memory>

#include "base/channel.h"
#include "tests/sim/machine.h"

namespace unreft::sim {

// `connector` itself when nothing is planted there.
std::unique_ptr<Connector> PlantBug(const Machine& machine, Rank rank,
                                    std::unique_ptr<Connector> connector);

}  // namespace unreft::sim
