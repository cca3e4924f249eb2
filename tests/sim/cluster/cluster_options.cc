#include "tests/sim/cluster/cluster_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tests/sim/tight_memory.h"

namespace unreft::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::pair<uint32_t, uint32_t> kShapes[] = {{2, 1}, {2, 2}, {3, 1}, {3, 2}, {4, 2}};

struct Size {
  uint64_t weight;
  uint64_t nodes_min;
  uint64_t nodes_max;
  uint64_t rows_max;  // of a rank's layer, 64 bytes each
  uint64_t ranks_max;
};

constexpr uint64_t kReplicatedOneIn = 4;
constexpr uint64_t kSparesOneIn = 4;
constexpr uint64_t kPinsOneIn = 3;
constexpr uint64_t kDomainsOneIn = 2;
// In which commits are rare: what is restored stays the newest for long.
constexpr uint64_t kSparseOneIn = 4;
constexpr uint64_t kSparseSteps = 8;
// In which nothing holds the ranks together.
constexpr uint64_t kDriftOneIn = 6;

// In which what describes slabs does not fit into a message.
constexpr uint64_t kPagedOneIn = 4;
// A page and what is around it, and any other message.
constexpr size_t kOtherMessagesMax = 4096;

constexpr uint64_t kTightOneIn = 3;
constexpr uint64_t kCopiesOneIn = 3;
// Of those whose memory is not tight, which are a little more than two thirds.
constexpr uint64_t kLateOneIn = 3;

constexpr Size kSizes[] = {{16, 4, 6, 12, 2}, {3, 4, 8, 90, 2}, {1, 9, 16, 30, 2}};

Size DrawSize(Random& random) {
  uint64_t weights = 0;
  for (const Size& size : kSizes) weights += size.weight;
  uint64_t drawn = random.Below(weights);
  const Size* size = kSizes;
  while (drawn >= size->weight) drawn -= size++->weight;
  return *size;
}

smp::NodeOptions DrawNodeOptions(Random& random, const Size& size) {
  smp::NodeOptions node;
  const uint64_t nodes = size.nodes_min + random.Below(size.nodes_max - size.nodes_min + 1);
  auto [k, m] = kShapes[random.Below(std::size(kShapes))];
  if (k + m > nodes) std::tie(k, m) = std::pair(2u, 2u);
  node.job = kJob;
  node.slots_per_rank = random.OneIn(4) ? 2 : 3;
  node.block_bytes = 64;
  node.populate_chunk_bytes = 4096 << random.Below(4);
  node.extras_bytes_min = 1024;
  node.memory_bytes_max = 2 << 20;
  node.memory_retry = milliseconds(100);
  node.restore_wait = seconds(8);
  node.version_deadline = milliseconds(400 + random.Below(400));
  node.scrub_interval = Duration{};
  node.replica_check_every = 0;
  node.checksum_task_blocks = static_cast<uint32_t>(8 << random.Below(5));
  node.nodes = nodes;
  node.data_chunks = k;
  node.parity_chunks = m;
  node.presence_ttl = seconds(1);
  node.lost_grace = seconds(1 + random.Below(2));
  node.report_interval = milliseconds(50 + random.Below(100));
  node.protect_window = static_cast<uint32_t>(1 + random.Below(6));
  node.read_timeout = milliseconds(300);
  node.read_retry = milliseconds(5);
  node.call_timeout = milliseconds(200);
  node.verify_timeout = milliseconds(500);
  node.restore_staging_bytes = 4096 << random.Below(4);
  // What stands still without it is a fault: nothing may wait for the last net.
  if (random.OneIn(2)) node.version_deadline = std::chrono::hours(24);
  return node;
}

TrainerOptions DrawTrainerOptions(Random& random) {
  TrainerOptions options;
  options.step_max = milliseconds(2 + random.Below(40));
  options.snapshot_every = 1 + random.Below(4);
  snapshot::ClientOptions& client = options.client;
  client.session = {milliseconds(5), milliseconds(80), milliseconds(400)};
  client.capture.fence_timeout = milliseconds(60);
  client.capture.bucket_bytes = uint64_t{256} << random.Below(5);
  client.capture.buckets_in_flight = static_cast<uint32_t>(1 + random.Below(3));
  client.capture.progress_every_bytes = uint64_t{256} << random.Below(6);
  client.any_world = true;
  client.connect_timeout = seconds(6);
  client.restore_timeout = seconds(16);
  client.register_timeout = seconds(6);
  options.device.copy_max = microseconds(20 + random.Below(200));
  return options;
}

// Each host's own, or one for two nodes. A spare's name is before or after all others: whoever
// forms groups of them anew deals them out in another order.
std::vector<std::string> DrawFailureDomains(Random& random, uint64_t nodes, uint64_t spares) {
  const uint64_t sharing = random.OneIn(3) ? 2 : 1;
  std::vector<std::string> domains;
  for (uint64_t slot = 0; slot < nodes; ++slot) {
    domains.push_back(fmt::format("h{:02}", slot / sharing));
  }
  for (uint64_t place = nodes; place < nodes + spares; ++place) {
    domains.push_back(fmt::format("{}{:02}", random.OneIn(2) ? 'a' : 'z', place));
  }
  return domains;
}

// Up to a half of the nodes, which come while there are faults. The job begins once the grace of
// those that are not there is over, so that is a short one.
void DrawLate(Random& random, ClusterOptions& options) {
  smp::NodeOptions& node = options.node;
  const uint64_t count = 1 + random.Below(node.nodes / 2);
  while (options.late.size() < count) {
    const NodeSlot slot{random.Below(node.nodes)};
    options.late[slot] = milliseconds(500 + random.Below(2000));
  }
  node.nodes_min = node.nodes - count;
  node.lost_grace = milliseconds(100 + random.Below(400));
}

}  // namespace

std::vector<uint64_t> ClusterOptions::Homes() const {
  std::vector<uint64_t> homes;
  for (uint64_t slot = 0; slot < ranks.size(); ++slot) {
    homes.insert(homes.end(), ranks[slot], slot);
  }
  return homes;
}

ClusterOptions DrawClusterOptions(Random& random) {
  const Size size = DrawSize(random);
  ClusterOptions options;
  options.node = DrawNodeOptions(random, size);
  options.trainer = DrawTrainerOptions(random);
  options.replicated = random.OneIn(kReplicatedOneIn);
  if (options.replicated) options.node.replica_check_every = 1 + random.Below(6);
  options.tensors =
      options.replicated ? ReplicatedTensors(1 + size.rows_max / 4) : ShardedTensors(size.rows_max);
  for (uint64_t slot = 0; slot < options.node.nodes; ++slot) {
    // Once in a while a node without ranks: it only keeps what is of others.
    const bool none = slot > 0 && random.OneIn(8);
    options.ranks.push_back(none ? 0 : 1 + random.Below(size.ranks_max));
    options.trainer.world += options.ranks.back();
  }
  if (random.OneIn(kSparesOneIn)) {
    options.spares = 1 + random.Below(2);
    // Such that losses come to be known while there are faults.
    options.node.presence_ttl = milliseconds(400);
    options.node.lost_grace = milliseconds(300 + random.Below(700));
  }
  // Draws of their own, so that the others stay as they are.
  Random beside = random;
  if (beside.OneIn(kPinsOneIn)) {
    options.node.pins = 1;
    options.node.memory_bytes_max *= 2;
  }
  if (beside.OneIn(kDomainsOneIn)) {
    options.failure_domains = DrawFailureDomains(beside, options.node.nodes, options.spares);
  }
  if (beside.OneIn(kSparseOneIn)) options.trainer.snapshot_every *= kSparseSteps;
  if (beside.OneIn(kDriftOneIn)) {
    options.trainer.steps_apart_max = 1 + beside.Below(60);
    // Longer than the slowest takes to come to where the fastest is.
    options.node.version_deadline = std::chrono::hours(24);
  }
  options.trainer.counts_from_zero = beside.OneIn(2);
  options.fault_pause_max = milliseconds(100 + random.Below(500));
  // Ranks whose replicas differ capture more than this is for.
  if (beside.OneIn(kTightOneIn) && !options.replicated) {
    options.is_memory_tight = true;
    options.node.extras_bytes_min = kExtrasBytesMost;
    options.node.memory_bytes_max =
        TightMemory(options.node, options.tensors, options.Homes(), options.world_max());
  } else if (beside.OneIn(kLateOneIn)) {
    DrawLate(beside, options);
  }
  if (beside.OneIn(kPagedOneIn)) {
    options.node.answer_page_bytes = uint64_t{64} << beside.Below(6);
    options.message_bytes_max = kOtherMessagesMax;
  }
  // Slabs of a larger world may lie otherwise than tight memory is for.
  options.has_copies = beside.OneIn(kCopiesOneIn) && !options.is_memory_tight;
  return options;
}

}  // namespace unreft::sim
