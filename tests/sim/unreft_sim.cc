// unreft_sim: runs the simulation of one node or of a cluster over many seeds, or one seed aloud.

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/random.h"
#include "tests/sim/cluster/cluster_simulation.h"
#include "tests/sim/many_seeds.h"

namespace unreft::sim {
namespace {

struct Flags {
  uint64_t seeds = 200;
  uint64_t first_seed = 1;
  uint64_t jobs = 1;
  bool verbose = false;
  bool faults = true;
  bool cluster = false;
  bool keep_going = false;
  bool store_losses = true;
};

int Usage() {
  fmt::print(stderr,
             "unreft_sim [--seeds N] [--first-seed S]   many seeds; stops at the first failure\n"
             "unreft_sim --seed X                       one seed, with its whole trace\n"
             "           --cluster                      several nodes\n"
             "           --fresh                        begins with a seed that is drawn and said\n"
             "           --jobs J                       so many seeds at a time\n"
             "           --keep-going                   a line per failure, and on\n"
             "           --keep-store                   the meta store is not lost or rolled back\n"
             "           --no-faults                    nothing goes wrong\n");
  return 2;
}

// False when it is none of those without a value.
bool ParseSwitch(std::string_view flag, Flags& flags) {
  if (flag == "--no-faults") {
    flags.faults = false;
  } else if (flag == "--cluster") {
    flags.cluster = true;
  } else if (flag == "--keep-going") {
    flags.keep_going = true;
  } else if (flag == "--keep-store") {
    flags.store_losses = false;
  } else if (flag == "--fresh") {
    flags.first_seed = Random::FromEntropy().Below(uint64_t{1} << 48);
  } else {
    return false;
  }
  return true;
}

// False for what is not understood.
bool Parse(int argc, char** argv, Flags& flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (ParseSwitch(flag, flags)) continue;
    if (++i == argc) return false;
    const uint64_t value = std::strtoull(argv[i], nullptr, 10);
    if (flag == "--seeds") {
      flags.seeds = value;
    } else if (flag == "--first-seed") {
      flags.first_seed = value;
    } else if (flag == "--jobs" && value > 0) {
      flags.jobs = value;
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

int Run(const Flags& flags) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string kind =
      fmt::format("{}{}{}", flags.cluster ? "--cluster " : "",
                  flags.store_losses ? "" : "--keep-store ", flags.faults ? "" : "--no-faults ");
  fmt::print("unreft_sim {}--first-seed {} --seeds {}\n", kind, flags.first_seed, flags.seeds);
  const auto on_failure = [&](uint64_t seed, const SimulationResult& result) {
    if (!flags.verbose && !flags.keep_going) fmt::print("{}", TailOf(result, 400));
    fmt::print("SIM FAILED {}--seed {}: {}\n", kind, seed, *result.failure);
    std::fflush(stdout);
    return flags.keep_going;
  };
  const SimulationOptions options = {
      .faults = flags.faults, .store_losses = flags.store_losses, .verbose = flags.verbose};
  const SimulateFunction simulate = flags.cluster ? SimulateCluster : Simulate;
  const SeedRange range = {flags.first_seed, flags.seeds};
  const SeedTotals totals =
      flags.jobs > 1 ? RunSeedsInProcesses(simulate, options, range, flags.jobs, on_failure)
                     : RunSeeds(simulate, options, range, on_failure);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  fmt::print("{}\nSIM {} {} seeds, {} failed, {:.1f} s\n", Describe(totals),
             totals.failed == 0 ? "OK" : "FAILED", totals.seeds, totals.failed, took.count());
  return totals.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace unreft::sim

int main(int argc, char** argv) {
  unreft::sim::Flags flags;
  if (!unreft::sim::Parse(argc, argv, flags)) return unreft::sim::Usage();
  return unreft::sim::Run(flags);
}
