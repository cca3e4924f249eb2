// unreft_restore_bench: what the nodes of a job read from each other when it goes on in another
// layout, against what they need of each other. Simulated nodes with the real daemon core and the
// real client: tensor parallel before, of one rank a node, and data parallel after it, of two.
//
//   unreft_restore_bench [--out DIR] [--nodes N]
//
// Each node needs the whole state but for what it has itself. Without a loss it should read just
// that. With a node lost, each of the blocks that it had may be decoded once, of k chunks.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/cluster/cluster.h"
#include "tools/bench/record.h"

namespace unreft::sim {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kRows = 2;  // of each of the model's layers, on each node before
constexpr NodeSlot kLost{1};

struct Shape {
  uint32_t k;
  uint32_t m;
};

ClusterOptions OptionsOf(uint64_t nodes, Shape shape) {
  ClusterOptions options;
  smp::NodeOptions& node = options.node;
  node.job = kJob;
  node.block_bytes = kRowBytes;
  node.populate_chunk_bytes = 64 << 10;
  node.extras_bytes_min = 1024;
  node.memory_bytes_max = 4 << 20;
  node.nodes = nodes;
  node.data_chunks = shape.k;
  node.parity_chunks = shape.m;
  node.lost_grace = seconds(1);
  node.presence_ttl = seconds(1);
  node.version_deadline = hours(24);
  node.scrub_interval = Duration{};
  node.restore_staging_bytes = 128 * kRowBytes;
  options.tensors = TensorParallelAmong(nodes, kRows);
  options.ranks.assign(nodes, 1);
  TrainerOptions& trainer = options.trainer;
  trainer.world = nodes;
  trainer.snapshot_every = 16;
  trainer.client.any_world = true;
  trainer.client.restore_timeout = seconds(60);
  trainer.client.register_timeout = seconds(60);
  trainer.client.connect_timeout = seconds(60);
  return options;
}

struct Measured {
  double needed = 0;  // bytes that lie on another node than who wants them, or nowhere
  double read = 0;
  double lost = 0;
};

class Reshaping {
 public:
  Reshaping(uint64_t nodes, Shape shape, bool with_loss)
      : with_loss_(with_loss),
        cluster_({.faults = false}, OptionsOf(nodes, shape), Random(nodes)) {}

  std::optional<Measured> Run() {
    const uint64_t nodes = cluster_.options().node.nodes;
    cluster_.Start();
    if (!RunUntil([&] { return cluster_.observer().commits_checked() > 0; }, "commits")) return {};
    const uint64_t decisions = cluster_.observer().decisions();
    const uint64_t attempts = cluster_.launcher().attempts();
    cluster_.launcher().NextWorld(2 * nodes);
    if (with_loss_) {
      cluster_.Avoid(kLost);
      (void)cluster_.Destroy(kLost.value, hours(1));
    } else {
      cluster_.launcher().KillOne();
    }
    if (!RunUntil([&] { return cluster_.observer().decisions() > decisions; }, "decides")) {
      return {};
    }
    const uint64_t before = cluster_.network().counts().read_bytes;
    const bool trains = RunUntil(
        [&] { return cluster_.launcher().attempts() > attempts && cluster_.launcher().Trains(); },
        "trains in the other layout");
    if (!trains) return {};
    const uint64_t left = nodes - (with_loss_ ? 1 : 0);
    const double own = BytesOfNode();
    return Measured{
        .needed = own * static_cast<double>(left * (nodes - 1)),
        .read = static_cast<double>(cluster_.network().counts().read_bytes - before),
        .lost = with_loss_ ? own : 0,
    };
  }

 private:
  bool RunUntil(absl::FunctionRef<bool()> done, const char* what) {
    const Duration end = cluster_.now() + seconds(60);
    while (!done()) {
      if (cluster_.now() < end && cluster_.RunOne()) continue;
      fmt::print(stderr, "unreft_restore_bench: the job never {}: {}\n", what,
                 cluster_.trace().failure().value_or("60 s have passed"));
      return false;
    }
    return true;
  }
  double BytesOfNode() const {
    uint64_t bytes = 0;
    for (const TensorSpec& spec :
         cluster_.options().tensors(Rank{0}, cluster_.options().trainer.world)) {
      bytes += ShardBytes(spec);
    }
    return static_cast<double>(bytes);
  }

  const bool with_loss_;
  Cluster cluster_;
};

bool Measure(uint64_t nodes, Shape shape, std::vector<bench::Record>& records) {
  const std::string code = fmt::format("rs_{}_{}", shape.k, shape.m);
  const auto whole = Reshaping(nodes, shape, /*with_loss=*/false).Run();
  const auto lost = Reshaping(nodes, shape, /*with_loss=*/true).Run();
  if (!whole || !lost) return false;
  records.push_back({.name = fmt::format("reshape_{}_nodes_{}", nodes, code),
                     .value = whole->read,
                     .unit = "bytes read",
                     .reference_name = "needed of other nodes",
                     .reference = whole->needed,
                     .target = 1.05,
                     .less_is_better = true});
  records.push_back({.name = fmt::format("reshape_{}_nodes_{}_lost_one", nodes, code),
                     .value = lost->read - lost->needed,
                     .unit = "bytes read beyond need",
                     .reference_name = "k times what was lost",
                     .reference = lost->lost * shape.k,
                     .target = 1.0,
                     .less_is_better = true});
  return true;
}

int Main(int argc, char** argv) {
  CLI::App app("What nodes read when a job goes on in another layout");
  std::string out = "build/bench";
  uint64_t nodes = 64;
  app.add_option("--out", out, "directory of the JSON records");
  app.add_option("--nodes", nodes, "of the job")->check(CLI::Range(8, 256));
  CLI11_PARSE(app, argc, argv);

  std::vector<bench::Record> records;
  for (const Shape shape : {Shape{2, 2}, Shape{6, 2}}) {
    if (!Measure(nodes, shape, records)) return 1;
  }
  for (const bench::Record& record : records) Print(record);
  std::error_code error;
  std::filesystem::create_directories(out, error);
  const absl::Status status = Write(records, out + "/restore.json");
  if (!status.ok()) fmt::print(stderr, "unreft_restore_bench: {}\n", status.ToString());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace unreft::sim

int main(int argc, char** argv) { return unreft::sim::Main(argc, argv); }
