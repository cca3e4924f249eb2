// The transport of a simulated daemon, lying in the way of a planted bug.
#pragma once

#include <memory>

#include "tests/sim/machine.h"
#include "transport/transport.h"

namespace unreft::sim {

// `transport` itself when the world's bug is none of its lies.
std::unique_ptr<Transport> LieOver(const Machine& machine, std::unique_ptr<Transport> transport);

}  // namespace unreft::sim
