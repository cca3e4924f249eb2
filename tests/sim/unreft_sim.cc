// unreft_sim: runs the simulation of one node or of several over many seeds, or one seed aloud.

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tests/sim/cluster/cluster_simulation.h"
#include "tests/sim/simulation.h"

namespace unreft::sim {
namespace {

struct Flags {
  uint64_t seeds = 200;
  uint64_t first_seed = 1;
  bool verbose = false;
  bool faults = true;
  bool cluster = false;
};

int Usage() {
  fmt::print(stderr,
             "unreft_sim [--seeds N] [--first-seed S]   many seeds; stops at the first failure\n"
             "unreft_sim --seed X                       one seed, with its whole trace\n"
             "           --no-faults                    nothing goes wrong\n"
             "           --cluster                      several nodes\n");
  return 2;
}

// False for what is not understood.
bool Parse(int argc, char** argv, Flags& flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--no-faults") {
      flags.faults = false;
      continue;
    }
    if (flag == "--cluster") {
      flags.cluster = true;
      continue;
    }
    if (++i == argc) return false;
    const uint64_t value = std::strtoull(argv[i], nullptr, 10);
    if (flag == "--seeds") {
      flags.seeds = value;
    } else if (flag == "--first-seed") {
      flags.first_seed = value;
    } else if (flag == "--seed") {
      flags.seeds = 1;
      flags.first_seed = value;
      flags.verbose = true;
    } else {
      return false;
    }
  }
  return true;
}

void PrintFailure(uint64_t seed, const SimulationResult& result, bool verbose) {
  if (!verbose) {
    for (const std::string& line : result.tail) fmt::print("{}\n", line);
  }
  fmt::print("SIM FAILED seed={}: {}\n", seed, *result.failure);
}

int Run(const Flags& flags) {
  const auto begin = std::chrono::steady_clock::now();
  SimulationResult total;
  for (uint64_t i = 0; i < flags.seeds; ++i) {
    const uint64_t seed = flags.first_seed + i;
    const SimulationOptions options = {
        .seed = seed, .faults = flags.faults, .verbose = flags.verbose};
    const SimulationResult result = flags.cluster ? SimulateCluster(options) : Simulate(options);
    if (result.failure) {
      PrintFailure(seed, result, flags.verbose);
      return 1;
    }
    total.events += result.events;
    total.commits += result.commits;
    total.restores += result.restores;
    total.attempts += result.attempts;
    total.faults += result.faults;
    total.rebuilt += result.rebuilt;
    if ((i + 1) % 50 == 0) {
      fmt::print("{} seeds, {} faults, {} commits\n", i + 1, total.faults, total.commits);
      std::fflush(stdout);
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  fmt::print(
      "SIM OK seeds={} events={} faults={} attempts={} restores={} commits={} rebuilt={} "
      "seconds={:.1f}\n",
      flags.seeds, total.events, total.faults, total.attempts, total.restores, total.commits,
      total.rebuilt, took.count());
  return 0;
}

}  // namespace
}  // namespace unreft::sim

int main(int argc, char** argv) {
  unreft::sim::Flags flags;
  if (!unreft::sim::Parse(argc, argv, flags)) return unreft::sim::Usage();
  return unreft::sim::Run(flags);
}
