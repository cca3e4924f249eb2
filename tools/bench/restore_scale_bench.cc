// unreft_restore_scale_bench: what a restore costs that grows with the job: the plans of one node's
// ranks by the tables that all ranks stored, and the leader's choice of a version and its holders.
//
//   unreft_restore_scale_bench [--out DIR] [--ranks N] [--tensors N]
//
// Every rank has a box of its own of every tensor, as on a mesh of FSDP and tensor parallelism; a
// node of a job with three quarters of the ranks restores. One thread does all; seconds are its CPU
// time. Peak memory is the process's, which keeps the tables as they came too, as a daemon does.
#include <fmt/format.h>
#include <sys/resource.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "layout/capture_plan.h"
#include "layout/manifest_view.h"
#include "recovery/restorable.h"
#include "recovery/restore_planner.h"
#include "recovery/restore_tables.h"
#include "tools/bench/record.h"

namespace unreft::bench {
namespace {

constexpr uint64_t kNodeRanks = 8;  // and how often each tensor is cut by columns
constexpr double kSecondsMax = 5;
constexpr double kGibMax = 2;

struct Sizes {
  uint64_t ranks = 10'000;
  uint64_t tensors = 1'000;
};

// Of this thread's CPU time, which other work of the machine changes less than the time that
// passes.
class Stopwatch {
 public:
  double Lap() {
    const double now = Now();
    return now - std::exchange(begin_, now);
  }

 private:
  static double Now() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }
  double begin_ = Now();
};

double PeakGib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);  // of KiB
}

void AddRecords(const std::string& name, double seconds, std::vector<Record>& records) {
  const auto add = [&](std::string of, double value, std::string unit, double most) {
    records.push_back({.name = std::move(of),
                       .value = value,
                       .unit = std::move(unit),
                       .reference_name = "the most wanted",
                       .reference = most,
                       .target = 1.0,
                       .less_is_better = true});
  };
  add(name, seconds, "s", kSecondsMax);
  add(name + "_memory", PeakGib(), "GiB", kGibMax);
}

// What rank `rank` of `ranks` holds: in each node the ranks share rows of all tensors.
std::vector<TensorSpec> TensorsOf(const Sizes& sizes, uint64_t rank, uint64_t ranks) {
  const std::vector<uint64_t> shape = {sizes.ranks * 3, kNodeRanks * 512};
  const uint64_t nodes = ranks / kNodeRanks;
  const uint64_t node = rank / kNodeRanks;
  const uint64_t begin = shape[0] * node / nodes;
  const uint64_t end = shape[0] * (node + 1) / nodes;
  std::vector<TensorSpec> specs;
  for (uint64_t t = 0; t < sizes.tensors; ++t) {
    specs.push_back({.name = fmt::format("model.layers.{}.mlp.experts.{}.weight", t / 8, t % 8),
                     .dtype = Dtype::kBfloat16,
                     .global_shape = shape,
                     .offset = {begin, rank % kNodeRanks * 512},
                     .extent = {end - begin, 512}});
  }
  return specs;
}

std::shared_ptr<const std::string> ManifestOf(const Sizes& sizes, uint64_t rank) {
  auto table = layout::TensorTable::Create(TensorsOf(sizes, rank, sizes.ranks));
  UNREFT_CHECK(table.ok(), "{}", table.status().ToString());
  const auto plan = layout::CapturePlan::Make(*table, layout::CaptureMode::kSharded);
  layout::SlotManifest manifest{.job = "bench",
                                .version = {Timeline{1}, Step{1000}},
                                .rank = Rank{rank},
                                .world = sizes.ranks,
                                .layout_digest = plan.digest(),
                                .block_bytes = 1 << 20,
                                .data_bytes = plan.data_bytes()};
  manifest.tensors = {table->specs().begin(), table->specs().end()};
  manifest.parts = {plan.parts().begin(), plan.parts().end()};
  return std::make_shared<const std::string>(layout::EncodeManifest(manifest));
}

// The answer of one node, as the catalog takes it: of the ranks from `first` on.
void ReadNode(std::span<const std::shared_ptr<const std::string>> manifests, uint32_t first,
              std::span<layout::ManifestView> views, recovery::RestoreTables& tables) {
  std::vector<recovery::RestoreTables::Slab> slabs;
  for (uint32_t i = 0; i < views.size(); ++i) {
    const absl::Status status = views[i].Read(*manifests[i]);
    UNREFT_CHECK(status.ok(), "{}", status.ToString());
    slabs.push_back({first + i, manifests[i], &views[i]});
  }
  tables.AddSlabs(slabs);
}

void MeasurePlans(const Sizes& sizes, std::vector<Record>& records) {
  const uint64_t ranks = sizes.ranks * 3 / 4 / kNodeRanks * kNodeRanks;
  std::vector<std::vector<TensorSpec>> targets;
  for (uint64_t i = 0; i < kNodeRanks; ++i) {
    targets.push_back(TensorsOf(sizes, ranks / 2 / kNodeRanks * kNodeRanks + i, ranks));
  }
  Stopwatch watch;
  recovery::WantedBoxes wanted;
  for (const auto& of_rank : targets) wanted.Add(of_rank);
  recovery::RestoreTables tables(sizes.ranks, std::move(wanted));
  double decoding = watch.Lap();
  std::vector<layout::ManifestView> views(kNodeRanks);
  size_t described = 0;
  for (uint64_t first = 0; first < sizes.ranks; first += kNodeRanks) {
    std::vector<std::shared_ptr<const std::string>> manifests;
    for (uint64_t i = 0; i < kNodeRanks; ++i) {
      manifests.push_back(ManifestOf(sizes, first + i));
      described += manifests.back()->size();
    }
    watch.Lap();
    ReadNode(manifests, static_cast<uint32_t>(first), views, tables);
    decoding += watch.Lap();
  }
  size_t pieces = 0;
  watch.Lap();
  for (const auto& of_rank : targets) {
    const auto plan = recovery::PlanRestore(*tables.For(of_rank), of_rank);
    UNREFT_CHECK(plan.ok(), "{}", plan.status().ToString());
    pieces += plan->size();
  }
  const double planning = watch.Lap();
  fmt::print(
      "tables of {} ranks x {} tensors: decoded in {:.2f} s, {} plans in {:.2f} s: {} pieces, "
      "peak {:.2f} GiB, of which {:.2f} as they came\n",
      sizes.ranks, sizes.tensors, decoding, targets.size(), planning, pieces, PeakGib(),
      static_cast<double>(described) / (1 << 30));
  AddRecords("restore_plans", decoding + planning, records);
}

// What all nodes hold of one version, in groups of 8 of which two may be lost.
std::map<NodeSlot, recovery::NodeHolding> HoldingsOf(const Sizes& sizes,
                                                     std::span<const ec::Group> groups) {
  std::map<NodeSlot, recovery::NodeHolding> nodes;
  const auto ranks_of = [](NodeSlot slot) {
    std::vector<Rank> ranks;
    for (uint64_t i = 0; i < kNodeRanks; ++i) ranks.push_back(Rank{slot.value * kNodeRanks + i});
    return ranks;
  };
  for (const ec::Group& group : groups) {
    const size_t n = group.slots.size();
    for (size_t i = 0; i < n; ++i) {
      recovery::NodeHolding& node = nodes[group.slots[i]];
      node.sealed = ranks_of(group.slots[i]);
      node.world = sizes.ranks;
      node.guarded = true;
      node.coding = 7;
      node.data_chunks = group.k;
      for (const NodeSlot slot : group.slots) node.encoded.emplace_back(slot, "incarnation");
      for (size_t back = 1; back <= n - group.k; ++back) {
        const NodeSlot before = group.slots[(i + n - back) % n];
        node.descriptions.push_back({before, ranks_of(before), sizes.ranks});
      }
    }
  }
  return nodes;
}

void MeasureChoice(const Sizes& sizes, std::vector<Record>& records) {
  const uint64_t nodes = sizes.ranks / kNodeRanks;
  std::vector<ec::Group> groups;
  for (uint64_t first = 0; first < nodes; first += 8) {
    ec::Group& group = groups.emplace_back();
    for (uint64_t slot = first; slot < std::min(first + 8, nodes); ++slot) {
      group.slots.push_back(NodeSlot{slot});
    }
    group.k = static_cast<uint32_t>(std::max<size_t>(group.slots.size(), 3) - 2);
  }
  recovery::Holdings held;
  recovery::Memories memories;
  for (uint64_t step = 1; step <= 3; ++step) {
    held[{Timeline{1}, Step{step}}] = HoldingsOf(sizes, groups);
  }
  for (const auto& [slot, holding] : held.begin()->second) memories[slot] = "incarnation";
  recovery::TimelineChain chain;
  chain.Open(Timeline{1}, Version{});
  // The first node of every eighth group is lost, so that its slabs are to be decoded.
  for (size_t i = 0; i < groups.size(); i += 8) {
    if (groups[i].slots.size() < 4) continue;
    for (auto& [version, holding] : held) holding.erase(groups[i].slots[0]);
    memories.erase(groups[i].slots[0]);
  }
  Stopwatch watch;
  const auto versions = recovery::RestorableVersions(held, groups, chain);
  UNREFT_CHECK(versions.size() == held.size(), "{} of {}", versions.size(), held.size());
  std::string lacking;
  const auto found = recovery::FindProtected(versions.front().version, held.rbegin()->second,
                                             groups, memories, &lacking);
  UNREFT_CHECK(found.has_value(), "{}", lacking);
  const double seconds = watch.Lap();
  fmt::print("the choice among {} versions of {} ranks: {:.3f} s\n", held.size(), sizes.ranks,
             seconds);
  AddRecords("restore_choice", seconds, records);
}

int Main(int argc, char** argv) {
  CLI::App app("What a restore costs that grows with the job");
  std::string out = "build/bench";
  Sizes sizes;
  app.add_option("--out", out, "directory of the JSON records");
  app.add_option("--ranks", sizes.ranks, "that stored the version")->check(CLI::Range(32, 100'000));
  app.add_option("--tensors", sizes.tensors, "of each rank")->check(CLI::Range(1, 10'000));
  CLI11_PARSE(app, argc, argv);
  sizes.ranks = sizes.ranks / kNodeRanks * kNodeRanks;

  std::vector<Record> records;
  MeasureChoice(sizes, records);  // first: the peak of memory only grows
  MeasurePlans(sizes, records);
  for (const Record& record : records) Print(record);
  std::error_code error;
  std::filesystem::create_directories(out, error);
  const absl::Status status = Write(records, out + "/restore_scale.json");
  if (!status.ok()) fmt::print(stderr, "unreft_restore_scale_bench: {}\n", status.ToString());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace unreft::bench

int main(int argc, char** argv) { return unreft::bench::Main(argc, argv); }
