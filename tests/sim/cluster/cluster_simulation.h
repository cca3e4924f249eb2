// ClusterSimulation: several nodes, one job, one seed: the real daemon cores, coordinators and
// clients over the fakes in virtual time, with faults, then calm in which the job must go on.
#pragma once

#include "tests/sim/simulation.h"

namespace unreft::sim {

// Restores are counted rank by rank.
SimulationResult SimulateCluster(const SimulationOptions& options);

}  // namespace unreft::sim
