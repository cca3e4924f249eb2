// The byte layout of a node segment: what a daemon must know again after its own death
// (docs/formats/node.md). One page, written by the daemon alone.
//
// Two bodies are written in turn, each with its CRC and a sequence number; the valid one with the
// higher number holds. So the death of the writer between two bytes loses at most the last write.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/random.h"
#include "base/segment_store.h"

namespace unreft {

inline constexpr uint64_t kNodeMagic = 0x45444f4e46524e55;  // "UNRFNODE"
inline constexpr uint16_t kNodeFormat = 1;
inline constexpr uint16_t kNodeMinReader = 1;
inline constexpr size_t kDecisionsKept = 32;

// One recovery decision: it opened `timeline` on top of `parent`. A timeline with parent 0:0 began
// with a fresh start.
struct DecisionEntry {
  uint64_t timeline = 0;
  uint64_t parent_timeline = 0;
  uint64_t parent_step = 0;
};
static_assert(sizeof(DecisionEntry) == 24);

struct NodeBody {
  uint64_t magic = kNodeMagic;
  uint16_t format = kNodeFormat;
  uint16_t min_reader = kNodeMinReader;
  uint32_t decisions = 0;  // entries used of `decision`, the newest last
  uint64_t sequence = 0;
  RandomId boot_id = {};
  RandomId incarnation = {};
  uint64_t session = 0;  // number of the daemon process that wrote this
  uint64_t committed_timeline = 0;
  uint64_t committed_step = 0;
  uint64_t committed_world = 0;  // ranks of the committed version; 0 = nothing was ever committed
  uint16_t capture_began = 0;    // 1 once a capture began in the newest timeline
  uint16_t captures_all = 0;     // 1 once replicas were found to differ
  uint32_t view = 0;             // number of the newest view that this memory was in; 0 = none
  DecisionEntry decision[kDecisionsKept] = {};
  uint32_t taken_slot = 0;  // of a spare: one more than the slot that it was given; 0 = none
  uint32_t crc = 0;         // CRC32C of all bytes before it
};
static_assert(offsetof(NodeBody, captures_all) == 90 && sizeof(NodeBody) == 872);

struct NodeHeader {
  NodeBody body[2];
};
inline constexpr uint64_t kNodeSegmentBytes = 4096;
static_assert(sizeof(NodeHeader) <= kNodeSegmentBytes);

// The newest valid body. DataLoss when neither is valid; FailedPrecondition for another format.
absl::StatusOr<NodeBody> ReadNodeBody(std::span<const std::byte> bytes);

// Writes `body` with the sequence number after the newest one's, over the older body.
void WriteNodeBody(std::span<std::byte> bytes, NodeBody body);

}  // namespace unreft
