// Simulation: one node, one job, one seed: the real daemon core and the real clients over the fakes
// in virtual time, with faults, then calm in which the job must go on.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/machine.h"

namespace unreft::sim {

struct SimulationOptions {
  uint64_t seed = 1;
  bool faults = true;
  bool store_losses = true;  // of a cluster: the meta store is lost or rolled back
  bool verbose = false;
  PlantedBug bug = PlantedBug::kNone;
  Duration faulty_time = std::chrono::seconds(3);
};

struct SimulationResult {
  std::optional<std::string> failure;
  std::vector<std::string> tail;  // of the trace
  uint64_t hash = 0;              // of trace and schedule
  // How often what happened: events, faults, attempts, restores, commits, and each kind of fault.
  std::map<std::string, uint64_t> counts;
};

SimulationResult Simulate(const SimulationOptions& options);

}  // namespace unreft::sim
