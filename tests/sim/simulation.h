// Simulation: one node, one job, one seed: the real daemon core and the real clients over the fakes
// in virtual time, with faults, then calm in which the job must go on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/machine.h"

namespace unreft::sim {

struct SimulationOptions {
  uint64_t seed = 1;
  bool faults = true;
  bool verbose = false;
  PlantedBug bug = PlantedBug::kNone;
  Duration faulty_time = std::chrono::seconds(3);
};

struct SimulationResult {
  std::optional<std::string> failure;
  std::vector<std::string> tail;  // of the trace
  uint64_t hash = 0;              // of trace and schedule
  uint64_t events = 0;
  uint64_t commits = 0;
  uint64_t restores = 0;
  uint64_t attempts = 0;
  uint64_t faults = 0;
  uint64_t rebuilt = 0;  // nodes' slabs that a decision found lost
};

SimulationResult Simulate(const SimulationOptions& options);

}  // namespace unreft::sim
