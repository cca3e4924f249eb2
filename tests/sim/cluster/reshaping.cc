#include "tests/sim/cluster/reshaping.h"

#include <fmt/format.h>

#include <chrono>
#include <string_view>

namespace unreft::sim {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr NodeSlot kLost{1};

ClusterOptions OptionsOf(const ReshapingOptions& reshaping) {
  ClusterOptions options;
  smp::NodeOptions& node = options.node;
  node.job = kJob;
  node.block_bytes = kRowBytes;
  node.populate_chunk_bytes = 64 << 10;
  node.extras_bytes_min = 1024;
  node.memory_bytes_max = 4 << 20;
  node.nodes = reshaping.nodes;
  node.data_chunks = reshaping.data_chunks;
  node.parity_chunks = reshaping.parity_chunks;
  node.lost_grace = seconds(1);
  node.presence_ttl = seconds(1);
  node.version_deadline = hours(24);
  node.scrub_interval = Duration{};
  node.restore_staging_bytes = 128 * kRowBytes;
  node.answer_page_bytes = reshaping.answer_page_bytes;
  options.message_bytes_max = reshaping.message_bytes_max;
  options.tensors = TensorParallelAmong(reshaping.nodes, reshaping.rows);
  options.ranks.assign(reshaping.nodes, 1);
  TrainerOptions& trainer = options.trainer;
  trainer.world = reshaping.nodes;
  // So late that no node protects anything while another still restores: it would count as read.
  trainer.snapshot_every = 64;
  trainer.client.any_world = true;
  trainer.client.restore_timeout = seconds(60);
  trainer.client.register_timeout = seconds(60);
  trainer.client.connect_timeout = seconds(60);
  return options;
}

class Reshaping {
 public:
  explicit Reshaping(const ReshapingOptions& options)
      : options_(options),
        cluster_({.seed = options.seed, .faults = false, .bug = options.bug}, OptionsOf(options),
                 Random(options.seed)) {}

  absl::StatusOr<ReshapingReads> Run() {
    cluster_.Start();
    absl::Status status =
        RunUntil([&] { return cluster_.observer().commits_checked() > 0; }, "commits");
    if (!status.ok()) return status;
    const uint64_t decisions = cluster_.observer().decisions();
    const uint64_t attempts = cluster_.launcher().attempts();
    cluster_.launcher().NextWorld(2 * options_.nodes);
    cluster_.network().options().busy_one_in = options_.reads_busy_one_in;
    if (options_.with_loss) {
      cluster_.Avoid(kLost);
      (void)cluster_.Destroy(kLost.value, hours(1));
    } else {
      cluster_.launcher().KillOne();
    }
    status = RunUntil([&] { return cluster_.observer().decisions() > decisions; }, "decides");
    if (!status.ok()) return status;
    if (!options_.with_loss) cluster_.reads().Begin(*cluster_.observer().decided());
    const uint64_t before = cluster_.network().counts().read_bytes;
    status = RunUntil(
        [&] { return cluster_.launcher().attempts() > attempts && cluster_.launcher().Trains(); },
        "trains in the other layout");
    if (!status.ok()) return status;
    const uint64_t left = options_.nodes - (options_.with_loss ? 1 : 0);
    const double own = BytesOfNode();
    return ReshapingReads{
        .needed = own * static_cast<double>(left * (options_.nodes - 1)),
        .read = static_cast<double>(cluster_.network().counts().read_bytes - before),
        .lost = options_.with_loss ? own : 0,
    };
  }

 private:
  absl::Status RunUntil(absl::FunctionRef<bool()> done, std::string_view what) {
    const Duration end = cluster_.now() + seconds(60);
    while (!done()) {
      if (cluster_.now() < end && cluster_.RunOne()) continue;
      return absl::InternalError(fmt::format(
          "the job never {}: {}", what, cluster_.trace().failure().value_or("60 s have passed")));
    }
    return absl::OkStatus();
  }
  double BytesOfNode() const {
    uint64_t bytes = 0;
    for (const TensorSpec& spec : cluster_.options().tensors(Rank{0}, options_.nodes)) {
      bytes += ShardBytes(spec);
    }
    return static_cast<double>(bytes);
  }

  const ReshapingOptions options_;
  Cluster cluster_;
};

}  // namespace

absl::StatusOr<ReshapingReads> Reshape(const ReshapingOptions& options) {
  return Reshaping(options).Run();
}

}  // namespace unreft::sim
