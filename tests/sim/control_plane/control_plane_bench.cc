// unreft_control_bench: what the leader of a job computes, and what is said to it, for a version
// and for a decision, of simulated nodes of 8 ranks: 64, 256 and 1,024 unless said otherwise, which
// takes some minutes. Run as tools/setup/bench.sh does it: on one processor, with a heap in huge
// pages, as far as the machine has them.
//
//   unreft_control_bench [--out DIR] [--nodes N,N,...] [--versions N] [--decisions N] [--warm]
//
// The cost of a node is to be the same however many there are: the reference is that at the fewest.
// It is that of a leader beside ranks that train: its turns find in the processor's caches what
// these have used, and not what a node has reported before. With --warm, few nodes' reports lie
// there from turn to turn, and many do not.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/sim/control_plane/control_job.h"
#include "tools/bench/record.h"

namespace unreft::sim {
namespace {

using bench::Record;

constexpr uint64_t kRanks = 8;
constexpr double kGrowthMax = 1.3;
constexpr double kNodeMsMax = 0.25;
// What is measured of a smaller job is repeated until about as many nodes have taken part.
constexpr uint64_t kNodesMeasured = 1024;

struct Measured {
  uint64_t nodes = 0;
  ControlJob::Cost version;
  ControlJob::Cost decision;
};

template <typename Once>
ControlJob::Cost MeanOf(uint64_t times, Once once) {
  ControlJob::Cost mean;
  for (uint64_t i = 0; i < times; ++i) {
    const ControlJob::Cost cost = once();
    mean.leader_ms += cost.leader_ms / static_cast<double>(times);
    mean.messages += cost.messages;
  }
  mean.messages /= times;
  return mean;
}

Measured Measure(uint64_t nodes, uint64_t versions, uint64_t decisions, bool warm) {
  versions = std::max(versions, kNodesMeasured / nodes);
  decisions = std::max(decisions, kNodesMeasured / nodes);
  ControlJob job(nodes, kRanks);
  job.Decide();      // a fresh start
  job.CommitNext();  // the first of a timeline compares all replicas
  if (!warm) job.TrainBesideLeader();
  Measured measured{.nodes = nodes};
  measured.version = MeanOf(versions, [&] { return job.CommitNext(); });
  measured.decision = MeanOf(decisions, [&] {
    job.CommitNext();  // of the timeline that the last one has opened
    return job.Decide();
  });
  return measured;
}

void Add(const std::string& of, const std::vector<Measured>& all, ControlJob::Cost Measured::* cost,
         std::vector<Record>& records) {
  const auto node_ms = [&](const Measured& one) {
    return (one.*cost).leader_ms / static_cast<double>(one.nodes);
  };
  for (const Measured& one : all) {
    fmt::print("{:>8} {:>6} nodes {:>10.2f} ms {:>9} messages {:>9.1f} us per node, x{:.2f}\n", of,
               one.nodes, (one.*cost).leader_ms, (one.*cost).messages, node_ms(one) * 1e3,
               node_ms(one) / node_ms(all.front()));
    records.push_back({.name = fmt::format("leader_{}_messages_{}", of, one.nodes),
                       .value = static_cast<double>((one.*cost).messages),
                       .unit = "messages",
                       .reference_name = "nodes",
                       .reference = static_cast<double>(one.nodes)});
    records.push_back({.name = fmt::format("leader_{}_{}", of, one.nodes),
                       .value = node_ms(one),
                       .unit = "ms/node",
                       .reference_name = "the most wanted",
                       .reference = kNodeMsMax,
                       .target = 1.0,
                       .less_is_better = true});
  }
  records.push_back({.name = fmt::format("leader_{}_growth", of),
                     .value = node_ms(all.back()),
                     .unit = "ms/node",
                     .reference_name = fmt::format("{} nodes", all.front().nodes),
                     .reference = node_ms(all.front()),
                     .target = kGrowthMax,
                     .less_is_better = true});
}

int Main(int argc, char** argv) {
  CLI::App app("What a job costs its leader");
  std::string out = "build/bench";
  std::vector<uint64_t> sizes = {64, 256, 1024};
  uint64_t versions = 2;
  uint64_t decisions = 2;
  app.add_option("--out", out, "directory of the JSON records");
  app.add_option("--nodes", sizes, "of each job")->delimiter(',')->check(CLI::Range(8, 4096));
  app.add_option("--versions", versions, "that are measured at least")->check(CLI::Range(1, 1000));
  app.add_option("--decisions", decisions, "that are measured at least")
      ->check(CLI::Range(1, 1000));
  bool warm = false;
  app.add_flag("--warm", warm, "leave the processor's caches to the leader between its turns");
  CLI11_PARSE(app, argc, argv);

  std::vector<Measured> all;
  for (const uint64_t nodes : sizes) all.push_back(Measure(nodes, versions, decisions, warm));
  std::vector<Record> records;
  Add("version", all, &Measured::version, records);
  Add("decision", all, &Measured::decision, records);
  for (const Record& record : records) Print(record);
  std::error_code error;
  std::filesystem::create_directories(out, error);
  const absl::Status status = Write(records, out + "/control_plane.json");
  if (!status.ok()) fmt::print(stderr, "unreft_control_bench: {}\n", status.ToString());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace unreft::sim

int main(int argc, char** argv) { return unreft::sim::Main(argc, argv); }
