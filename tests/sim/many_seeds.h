// Many seeds of a simulation: one after the other, or in as many processes as there are cores.
#pragma once

#include <functional>
#include <string>

#include "tests/sim/simulation.h"

namespace unreft::sim {

using SimulateFunction = SimulationResult (*)(const SimulationOptions&);

// Where a test begins: at `usual`, so that it is the same in each run; or as much after
// UNREFT_SIM_FIRST_SEED, which .ci/run takes from the commit, so that every commit has seeds of its
// own and the same whenever it is tested; or at one that is drawn if UNREFT_SIM_FRESH is set.
uint64_t FirstSeed(uint64_t usual);

// Seeds `first`, `first + stride`, ...
struct SeedRange {
  uint64_t first = 1;
  uint64_t count = 0;
  uint64_t stride = 1;
};

struct SeedTotals {
  uint64_t seeds = 0;
  uint64_t failed = 0;
  std::map<std::string, uint64_t> counts;  // of all seeds together
};

// `on_failure` is told each seed that fails; false ends the run.
SeedTotals RunSeeds(SimulateFunction simulate, SimulationOptions options, SeedRange range,
                    const std::function<bool(uint64_t, const SimulationResult&)>& on_failure);

// In `jobs` child processes, which call `on_failure`. Nothing else may run in this process.
SeedTotals RunSeedsInProcesses(
    SimulateFunction simulate, const SimulationOptions& options, SeedRange range, uint64_t jobs,
    const std::function<bool(uint64_t, const SimulationResult&)>& on_failure);

// The last lines of its trace.
std::string TailOf(const SimulationResult& result, size_t lines_max);
// "12 seeds: 240 commits, 3 kills, ..."
std::string Describe(const SeedTotals& totals);

}  // namespace unreft::sim
