// The meta store's client of a simulated daemon, lying in the way of a planted bug.
#pragma once

#include <memory>

#include "meta/kv.h"
#include "tests/sim/machine.h"

namespace unreft::sim {

// `kv` itself when the world's bug is none of its lies.
std::unique_ptr<meta::Kv> LieOver(const Machine& machine, std::unique_ptr<meta::Kv> kv);

}  // namespace unreft::sim
