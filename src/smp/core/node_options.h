// NodeOptions: every limit of a daemon's core, each with its reason. The daemon's main fills it
// from flags, environment and file (smp/node/daemon_options.h).
//
// The room core is what all rooms of src/smp use: options, what a rank has registered, and the
// retry of what memory was lacking for. It includes no other room. Start here.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/executor.h"
#include "base/ids.h"
#include "base/segment_store.h"
#include "base/version.h"

namespace unreft::smp {

struct NodeOptions {
  std::string job = "default";
  NodeSlot node;
  // The number by which its memory is named: the slot's, but for a spare that took the slot over.
  std::optional<uint64_t> place;

  // 2 hold the newest version and the one under way; the third lets a restore step back when the
  // newest does not verify (docs/protocol.md, rule 7).
  uint32_t slots_per_rank = 3;
  // Versions that may be kept for somebody beside these (`unreft pin`): a slot of each rank, and a
  // guard, for each.
  uint32_t pins = 0;
  uint32_t block_bytes = 1 << 20;  // a power of two
  // Pages are populated in chunks, so that a large node does not stall in one call.
  uint64_t populate_chunk_bytes = 64 << 20;
  // The extras region is the bytes expected, doubled, but not less than this.
  uint64_t extras_bytes_min = 64 << 10;
  // Of all slots, guards and the staging together; 0 = what the host has.
  uint64_t memory_bytes_max = 0;
  uint64_t ranks_max = 256;
  uint64_t sessions_max = 1024;
  // Of a connection until it has said who it is, or asked something.
  Duration hello_timeout = std::chrono::seconds(5);

  // While something is refused for want of memory or disk, whether there is some is looked at this
  // often.
  Duration memory_retry = std::chrono::seconds(1);

  // How long a decision waits for all ranks of an attempt to ask for it.
  Duration restore_wait = std::chrono::seconds(120);
  // A version that some rank has not sealed by then is abandoned.
  Duration version_deadline = std::chrono::seconds(60);
  // Sealed slots are read again this often; 0 = never.
  Duration scrub_interval = std::chrono::seconds(60);
  // Replicas are compared at the first snapshot of a timeline and at every so many steps; 0 =
  // never.
  uint64_t replica_check_every = 100;
  // --- several nodes ---

  uint64_t nodes = 1;      // node slots of the job: the most that it ever has
  uint64_t nodes_min = 0;  // with so many it may begin; 0: with all
  // The meta store is of this process alone (smp/node/own_meta.h): of a job of one node.
  bool has_own_store = false;
  uint32_t data_chunks = 1;    // k of the protection groups
  uint32_t parity_chunks = 0;  // m: so many nodes of a group may be lost
  std::string failure_domain;  // of this node; empty = one of its own
  // A daemon that does not renew its presence for so long is absent, and lost after the grace.
  Duration presence_ttl = std::chrono::seconds(2);
  Duration lost_grace = std::chrono::seconds(2);
  // A node tells the leader its state on every change, and at least this often.
  Duration report_interval = std::chrono::seconds(1);
  // Positions of a stripe that are encoded or rebuilt at a time; bounds the scratch memory.
  uint32_t protect_window = 4;
  // Of a read between nodes, the time included that its blocks take to be captured.
  Duration read_timeout = std::chrono::seconds(30);
  Duration read_retry = std::chrono::milliseconds(50);
  // Of the segment through which the ranks that restore get other nodes' bytes, all together; a
  // block for each is made in any case.
  uint64_t restore_staging_bytes = uint64_t{256} << 20;
  // Reads of other nodes that wait for a capture.
  uint64_t reads_waiting_max = 4096;
  Duration call_timeout = std::chrono::seconds(5);     // of a question between nodes
  Duration verify_timeout = std::chrono::seconds(60);  // of reading a version again
  // Answers that describe slabs are asked for in pages of so many bytes (docs/protocol.md, rule
  // 33): well below what a message of the transport may have.
  uint64_t answer_page_bytes = uint64_t{8} << 20;
  // The most that all pages of an answer may have together: of a node that says more no page is
  // taken. Protobuf reads no more than 2 GiB.
  uint64_t answer_bytes_max = uint64_t{1} << 30;

  // Blocks whose CRC one task of the work pool computes.
  uint32_t checksum_task_blocks = 16;

  // What of the node's addresses is TCP without TLS (--insecure), for those who ask; empty:
  // nothing.
  std::string insecure;
  // How its peers and the meta store are talked to, for those who ask: "TLS", "a socket file" or
  // "TCP without TLS"; empty in a job of one node.
  std::string peers_wire;
  std::string store_wire;

  std::string software_version = SoftwareVersion();
  // When this process was started, in seconds since 1970; 0: nobody says.
  uint64_t started_s = 0;
  // Where the options that are the same on all nodes have their values from, by name: a flag, a
  // variable, a file; what is not there is a default.
  std::map<std::string, std::string, std::less<>> sources;

  uint32_t SlotsPerRank() const { return slots_per_rank + pins; }
  uint64_t NodesMin() const { return nodes_min == 0 ? nodes : nodes_min; }
};

// Of the names of all segments of this node.
inline std::string MemoryPrefix(const NodeOptions& options) {
  return SegmentPrefix(options.job, options.place.value_or(options.node.value));
}

}  // namespace unreft::smp
