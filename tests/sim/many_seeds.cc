#include "tests/sim/many_seeds.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"

namespace unreft::sim {
namespace {

void Add(const SeedTotals& some, SeedTotals& totals) {
  totals.seeds += some.seeds;
  totals.failed += some.failed;
  for (const auto& [what, count] : some.counts) totals.counts[what] += count;
}

// One line per number, "12 name".
std::string Encode(const SeedTotals& totals) {
  std::string text = fmt::format("{} seeds\n{} failed\n", totals.seeds, totals.failed);
  for (const auto& [what, count] : totals.counts) text += fmt::format("{} ={}\n", count, what);
  return text;
}

SeedTotals Decode(const std::string& text) {
  SeedTotals totals;
  std::istringstream lines(text);
  uint64_t number = 0;
  std::string what;
  while (lines >> number && lines.get() == ' ' && std::getline(lines, what)) {
    if (what == "seeds") totals.seeds = number;
    if (what == "failed") totals.failed = number;
    if (what.starts_with("=")) totals.counts[what.substr(1)] = number;
  }
  return totals;
}

std::string ReadAll(int pipe) {
  std::string text;
  char buffer[4096];
  for (ssize_t bytes = 0; (bytes = read(pipe, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(bytes));
  }
  close(pipe);
  return text;
}

}  // namespace

uint64_t FirstSeed(uint64_t usual) {
  if (std::getenv("UNREFT_SIM_FRESH") != nullptr) {
    return Random::FromEntropy().Below(uint64_t{1} << 48);
  }
  const char* first = std::getenv("UNREFT_SIM_FIRST_SEED");
  return usual + (first == nullptr ? 0 : std::strtoull(first, nullptr, 10));
}

SeedTotals RunSeeds(SimulateFunction simulate, SimulationOptions options, SeedRange range,
                    const std::function<bool(uint64_t, const SimulationResult&)>& on_failure) {
  SeedTotals totals;
  for (uint64_t i = 0; i < range.count; ++i) {
    options.seed = range.first + i * range.stride;
    const SimulationResult result = simulate(options);
    Add({1, result.failure ? 1u : 0u, result.counts}, totals);
    if (result.failure && !on_failure(options.seed, result)) break;
  }
  return totals;
}

SeedTotals RunSeedsInProcesses(
    SimulateFunction simulate, const SimulationOptions& options, SeedRange range, uint64_t jobs,
    const std::function<bool(uint64_t, const SimulationResult&)>& on_failure) {
  std::fflush(stdout);
  std::vector<std::pair<pid_t, int>> children;
  for (uint64_t job = 0; job < jobs; ++job) {
    int ends[2];
    UNREFT_CHECK(pipe(ends) == 0);
    const pid_t child = fork();
    UNREFT_CHECK(child >= 0);
    if (child == 0) {
      for (const auto& [pid, other] : children) close(other);
      close(ends[0]);
      const SeedRange share = {range.first + job * range.stride,
                               (range.count + jobs - 1 - job) / jobs, range.stride * jobs};
      const std::string text = Encode(RunSeeds(simulate, options, share, on_failure));
      std::fflush(stdout);
      const ssize_t written = write(ends[1], text.data(), text.size());
      _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
    }
    close(ends[1]);
    children.emplace_back(child, ends[0]);
  }
  SeedTotals totals;
  for (const auto& [child, end] : children) {
    Add(Decode(ReadAll(end)), totals);
    int status = 0;
    UNREFT_CHECK(waitpid(child, &status, 0) == child);
    // It crashed in a seed: a CHECK, or worse, which has said so.
    if (status != 0) ++totals.failed;
  }
  return totals;
}

std::string TailOf(const SimulationResult& result, size_t lines_max) {
  std::string text;
  const size_t lines = std::min(result.tail.size(), lines_max);
  for (size_t i = result.tail.size() - lines; i < result.tail.size(); ++i) {
    text += result.tail[i] + "\n";
  }
  return text;
}

std::string Describe(const SeedTotals& totals) {
  std::string text = fmt::format("{} seeds", totals.seeds);
  for (const auto& [what, count] : totals.counts) text += fmt::format("\n  {:9} {}", count, what);
  return text;
}

}  // namespace unreft::sim
