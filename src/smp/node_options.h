// NodeOptions: every limit of a daemon's core, each with its reason. The daemon's main fills it
// from flags, environment and file (smp/daemon_options.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/executor.h"
#include "base/ids.h"

namespace unreft::smp {

struct NodeOptions {
  std::string job = "default";
  NodeSlot node;

  // 2 hold the newest version and the one under way; the third lets a restore step back when the
  // newest does not verify (PROTOCOL rule 7).
  uint32_t slots_per_rank = 3;
  uint32_t block_bytes = 1 << 20;  // a power of two
  // Pages are populated in chunks, so that a large node does not stall in one call.
  uint64_t populate_chunk_bytes = 64 << 20;
  // The extras region is the bytes expected, doubled, but not less than this.
  uint64_t extras_bytes_min = 64 << 10;
  // Of all slots together; 0 = what the host has.
  uint64_t memory_bytes_max = 0;
  uint64_t ranks_max = 256;
  uint64_t sessions_max = 1024;

  // How long a decision waits for all ranks of an attempt to ask for it.
  Duration restore_wait = std::chrono::seconds(120);
  // A version that some rank has not sealed by then is abandoned.
  Duration version_deadline = std::chrono::seconds(60);
  // Sealed slots are read again this often; 0 = never.
  Duration scrub_interval = std::chrono::seconds(60);
  // Replicas are compared at the first snapshot of a timeline and at every so many steps; 0 =
  // never.
  uint64_t replica_check_every = 100;
  // Blocks whose CRC one task of the work pool computes.
  uint32_t checksum_task_blocks = 16;

  std::string software_version = "0.1.0";
};

}  // namespace unreft::smp
