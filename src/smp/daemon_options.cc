#include "smp/daemon_options.h"

#include <fmt/format.h>

#include <bit>

namespace unreft::smp {

void AddDaemonOptions(CLI::App& app, DaemonOptions& options) {
  NodeOptions& node = options.node;
  AddCommonOptions(app, options.common);
  AddConfigFile(app);
  AddOption(app, node.slots_per_rank, "slots_per_rank",
            "slots of each rank: 2, and one more to step back to an older version",
            Range<uint32_t>{2, 64});
  AddOption(app, node.block_bytes, "block_bytes", "unit of checksum, a power of two",
            Range<uint32_t>{4096, 1u << 30});
  AddOption(app, node.populate_chunk_bytes, "populate_chunk_bytes",
            "pages of a new slot are reserved so many at a time",
            Range<uint64_t>{4096, UINT64_MAX});
  AddOption(app, node.extras_bytes_min, "extras_bytes_min",
            "the least room for a rank's extras in a slot");
  AddOption(app, node.memory_bytes_max, "memory_bytes_max",
            "limit of all slots together; 0: what the host has");
  AddOption(app, node.ranks_max, "ranks_max", "most ranks of a job on this node",
            Range<uint64_t>{1, 65536});
  AddOption(app, node.sessions_max, "sessions_max", "most connections at a time",
            Range<uint64_t>{1, 1 << 20});
  AddOption(app, node.restore_wait, "restore_wait_s",
            "how long a restore waits for all ranks of the attempt to ask");
  AddOption(app, node.version_deadline, "version_deadline_s",
            "a version that some rank has not sealed by then is abandoned");
  AddOption(app, node.scrub_interval, "scrub_interval_s",
            "how often the committed version is read again; 0: never");
  AddOption(app, node.replica_check_every, "replica_check_every",
            "replicas are compared every so many steps; 0: never");
  AddOption(app, node.checksum_task_blocks, "checksum_task_blocks",
            "blocks that one task of the work pool checks", Range<uint32_t>{1, 1 << 20});
  AddOption(app, options.work_threads, "work_threads",
            "threads that compute checksums; 0: half of the host's");
}

absl::Status FinishDaemonOptions(DaemonOptions& options) {
  if (absl::Status status = FinishCommonOptions(options.common); !status.ok()) return status;
  options.node.job = options.common.job;
  options.node.node = NodeSlot{options.common.node};
  if (!std::has_single_bit(options.node.block_bytes)) {
    return absl::InvalidArgumentError(
        fmt::format("block_bytes: needed a power of two, found {}", options.node.block_bytes));
  }
  return absl::OkStatus();
}

}  // namespace unreft::smp
