// The messages of the local session between a trainer's client and the daemon of its node
// (docs/formats/local_session.md).
//
//   client                               daemon
//     │ Hello  ────────────────────────────▶ │  who I am
//     │ ◀──────────────────────────  Welcome │  or Refused
//     │ RestoreRequest ────────────────────▶ │  answered when all ranks of the attempt asked
//     │ ◀─────────────────────────  Decision │  the one version that every rank restores, or none
//     │ ExtrasRequest ─────────────────────▶ │  those of a rank that saved it, if they were others
//     │ ◀──────────────────────────── Extras │
//     │ PlanRequest ───────────────────────▶ │  the boxes that I hold now
//     │ ◀────────────────────────  PlanPage │  which of their bytes are where, as often as needed
//     │ ◀─────────────────────────────  Plan │  the end of the pages, and what they speak of
//     │ ◀───────────────────────────  Staged │  a block of another node's bytes, as often as needed
//     │ StagedDone ────────────────────────▶ │  the block is copied, its place is free
//     │ RestoreDone ───────────────────────▶ │
//     │ Register ──────────────────────────▶ │  what I shall capture
//     │ ◀───────────────────────  Registered │  my slots and control page
//     │ Claimed, Progress, Captured ───────▶ │  doorbells of one snapshot
//     │ Skipped, GaveUp ───────────────────▶ │
//     │ ◀─────────────────────  VersionState │  sealed, committed, abandoned
//     │ ◀─────────────────────────  Obstacle │  what keeps every version from being committed
//     │ EverCommittedRequest ──────────────▶ │  at any time: was anything ever committed?
//     │ ◀─────────────────────  EverCommitted│
//
// After either side's crash or a lost connection the client says Hello and Register again, then
// repeats the doorbells of snapshots until a VersionState (or GaveUp) ends them. Every message
// carries what it is about (slot, generation, version), so one that comes late is ignored.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/channel.h"
#include "base/ids.h"
#include "base/plan_piece.h"
#include "base/tensor_spec.h"
#include "base/wire.h"

namespace unreft {

// Persistent numbers; never reused.
enum class FrameType : uint16_t {
  kHello = 1,
  kWelcome = 2,
  kRefused = 3,
  kRestoreRequest = 4,
  kDecision = 5,
  kPlanRequest = 6,
  kPlan = 7,
  kRestoreDone = 8,
  kRegister = 9,
  kRegistered = 10,
  kClaimed = 11,
  kProgress = 12,
  kCaptured = 13,
  kSkipped = 14,
  kGaveUp = 15,
  kVersionState = 16,
  kAdminRequest = 17,
  kAdminReply = 18,
  kStaged = 19,
  kStagedDone = 20,
  kEverCommittedRequest = 21,
  kEverCommitted = 22,
  kObstacle = 23,
  kPlanPage = 24,
  kExtrasRequest = 25,
  kExtras = 26,
};

// The newest that this release knows.
inline constexpr FrameType kNewestFrameType = FrameType::kExtras;

std::string_view FrameTypeName(FrameType type);

// TensorSpec on the wire.
struct WireTensor {
  TensorSpec spec;
  void Fields(auto& wire) {
    wire(spec.name, spec.dtype, spec.global_shape, spec.offset, spec.extent, spec.replica_index,
         spec.replica_count, spec.is_volatile);
  }
};

std::vector<WireTensor> ToWire(std::span<const TensorSpec> specs);
std::vector<TensorSpec> FromWire(std::vector<WireTensor> tensors);

// A status on the wire: an absl code and its message.
struct WireStatus {
  uint32_t code = 0;
  std::string message;
  WireStatus() = default;
  WireStatus(const absl::Status& status)  // NOLINT: a status is what it carries
      : code(static_cast<uint32_t>(status.code())), message(status.message()) {}
  absl::Status ToStatus() const {
    return absl::Status(static_cast<absl::StatusCode>(code), message);
  }
  void Fields(auto& wire) { wire(code, WireText{message}); }
};

struct Hello {
  static constexpr FrameType kType = FrameType::kHello;
  std::string job;
  Rank rank;
  uint64_t world = 0;  // ranks of the attempt
  Attempt attempt;
  ProcessLife life;   // as it knows itself; checked against the kernel's word
  Timeline timeline;  // of the Decision that this life follows; 0 = it has none yet
  std::string client_version;
  void Fields(auto& wire) {
    wire(job, rank, world, attempt, life.pid, life.start_time, timeline, WireText{client_version});
  }
};

// Where bytes of a slot lie, for a reader that maps the segment itself.
struct WireSlot {
  SlotId slot;
  Generation generation;
  std::string segment;
  void Fields(auto& wire) { wire(slot, generation, segment); }
  bool operator==(const WireSlot&) const = default;
};

struct Welcome {
  static constexpr FrameType kType = FrameType::kWelcome;
  ProcessNumber session;  // of the daemon process
  NodeSlot node;
  Timeline timeline;  // the newest that was opened
  uint32_t block_bytes = 0;
  std::string daemon_version;
  // The sealed slots of this rank, the newest version first, for a client that maps them while it
  // waits for the decision. A hint: any of them may be reused at once.
  std::vector<WireSlot> sealed;
  // The newest message that the daemon knows: it ends the session of a client that sends a newer
  // one. 0 = it is of a release that did not say so, and knows StagedDone.
  uint16_t newest_frame = 0;
  void Fields(auto& wire) {
    wire(session, node, timeline, block_bytes, WireText{daemon_version});
    wire.Appended(sealed);
    wire.Appended(newest_frame);
  }
};

// The session ends here; trying again will not help unless `retry`.
struct Refused {
  static constexpr FrameType kType = FrameType::kRefused;
  WireStatus status;
  bool retry = false;
  void Fields(auto& wire) { wire(status, retry); }
};

struct RestoreRequest {
  static constexpr FrameType kType = FrameType::kRestoreRequest;
  uint64_t request = 0;  // repeated in the answer; a repetition of the same number is one request
  // A version that another number of ranks saved will do, too.
  bool any_world = false;
  // Of the versions of this step and earlier ones the newest; not so: of all.
  bool has_at_or_before = false;
  Step at_or_before;
  void Fields(auto& wire) {
    wire(request);
    wire.Appended(any_world);
    wire.Appended(has_at_or_before, at_or_before);
  }
};

enum class DecisionKind : uint8_t {
  kFresh = 1,     // the store says that nothing was ever committed
  kRestored = 2,  // `version` is what every rank restores
  kFailed = 3,    // `status` says why; nothing is restored
};

// What a rank had stored beside its tensors: in a slot of this node, or else the bytes themselves.
struct WireExtras {
  WireSlot slot;  // generation 0 when it is not there
  std::string remote;
  uint32_t remote_crc = 0;  // CRC32C, as the slot was sealed with
  bool has_remote = false;
};

struct Decision {
  static constexpr FrameType kType = FrameType::kDecision;
  uint64_t request = 0;
  DecisionKind kind = DecisionKind::kFailed;
  WireStatus status;
  Version version;    // decided
  Timeline timeline;  // opened by it: snapshots from now on belong to it
  // Every logical tensor of the version, each once, with the box that this rank held, or the whole
  // tensor where it held none, as is so for all where another number of ranks has saved it.
  std::vector<WireTensor> tensors;
  WireExtras extras;  // this rank's; none where another number of ranks has saved the version
  // How many ranks have saved it. 0: of a daemon that did not say so, as many as there are now.
  uint64_t source_world = 0;
  // The durable copy that it was loaded from for this attempt; empty: it was in memory.
  std::string durable_copy;
  void Fields(auto& wire) {
    wire(request, kind, status, version.timeline, version.step, timeline, tensors, extras.slot);
    wire.Appended(extras.remote, extras.remote_crc, extras.has_remote);
    wire.Appended(source_world);
    wire.Appended(durable_copy);
  }
};

// For the extras of one of the ranks that saved the decided version.
struct ExtrasRequest {
  static constexpr FrameType kType = FrameType::kExtrasRequest;
  uint64_t request = 0;
  Rank rank;
  void Fields(auto& wire) { wire(request, rank); }
};

struct Extras {
  static constexpr FrameType kType = FrameType::kExtras;
  uint64_t request = 0;
  WireStatus status;
  WireExtras extras;
  void Fields(auto& wire) {
    wire(request, status, extras.slot, extras.remote, extras.remote_crc, extras.has_remote);
  }
};

struct PlanRequest {
  static constexpr FrameType kType = FrameType::kPlanRequest;
  uint64_t request = 0;
  std::vector<WireTensor> tensors;
  bool reads_pages = false;  // a client that does not gets `pieces` in Plan and in Staged
  std::vector<uint32_t> allow_shape_mismatch;  // which of `tensors`
  void Fields(auto& wire) {
    wire(request, tensors);
    wire.Appended(reads_pages);
    wire.Appended(allow_shape_mismatch);
  }
};

// Where a slab is that bytes come from: in a slot of this node, or, with generation 0, on other
// nodes, from where its blocks come staged.
struct PlanSource {
  Rank rank;
  WireSlot slot;
  bool is_staged() const { return slot.generation == Generation{}; }
  void Fields(auto& wire) { wire(rank, slot); }
  bool operator==(const PlanSource&) const = default;
};

// Some of the pieces of the Plan that follows: `source` is an index in its `sources`, `target` in
// the request's `tensors`. Those of all pages together write every byte of every tensor once, and
// are as many as kPlanPiecesMax at most.
struct PlanPage {
  static constexpr FrameType kType = FrameType::kPlanPage;
  uint64_t request = 0;
  std::vector<PlanPiece> pieces;
  void Fields(auto& wire) { wire(request, pieces); }
};

// For a client that reads no pages: copy `bytes` from `source_offset` of the slab of `slots[slot]`
// to `target_offset` of the shard of `tensors[target]` of the request.
struct WirePiece {
  uint32_t slot = 0;
  uint32_t target = 0;
  uint64_t source_offset = 0;
  uint64_t target_offset = 0;
  uint64_t bytes = 0;
  void Fields(auto& wire) { wire(slot, target, source_offset, target_offset, bytes); }
  bool operator==(const WirePiece&) const = default;
};

// The slots stay as they are until RestoreDone or the end of the session. The reader checks each
// block that it touches against the slot's CRC table.
struct Plan {
  static constexpr FrameType kType = FrameType::kPlan;
  uint64_t request = 0;
  WireStatus status;
  // For a client that reads no pages, else empty.
  std::vector<WireSlot> slots;
  std::vector<WirePiece> pieces;  // the local ones
  // What lies on other nodes comes block by block, as Staged, through this segment, which the
  // client maps for this plan alone.
  std::string staging_segment;
  uint64_t staging_bytes = 0;  // the part of the segment that is used
  uint64_t staged_bytes = 0;   // of all staged pieces; 0 = nothing is staged
  // For a client that reads pages, else empty.
  std::vector<PlanSource> sources;
  uint64_t paged_pieces = 0;  // in all pages, which came before
  uint32_t block_bytes = 0;   // of what is staged
  void Fields(auto& wire) {
    wire(request, status, slots, pieces);
    wire.Appended(staging_segment, staging_bytes, staged_bytes);
    wire.Appended(sources, paged_pieces, block_bytes);
  }
};

// A block lies at [offset, offset + bytes) of the staging segment, and stays until StagedDone.
struct Staged {
  static constexpr FrameType kType = FrameType::kStaged;
  uint64_t request = 0;  // of the plan
  WireStatus status;     // not ok: the rest will not come
  uint64_t offset = 0;
  uint64_t bytes = 0;  // 0 = no block
  uint32_t crc = 0;    // CRC32C of the block
  // For a client that reads no pages, else empty. What goes where: `source_offset` counts from the
  // block's begin, `slot` is 0.
  std::vector<WirePiece> pieces;
  bool last = false;  // all was sent
  // Which block it is: of the slab of a source of the plan.
  uint32_t source = 0;
  uint64_t block = 0;
  void Fields(auto& wire) {
    wire(request, status, offset, bytes, crc, pieces, last);
    wire.Appended(source, block);
  }
};

// The client touches the block no more. DataLoss: its CRC was wrong, the daemon sends it again or
// ends the staging.
struct StagedDone {
  static constexpr FrameType kType = FrameType::kStagedDone;
  uint64_t request = 0;
  uint64_t offset = 0;
  WireStatus status;
  void Fields(auto& wire) { wire(request, offset, status); }
};

struct RestoreDone {
  static constexpr FrameType kType = FrameType::kRestoreDone;
  WireStatus status;  // of the copying
  // The slot whose bytes did not verify; generation 0 when none.
  SlotId bad_slot;
  Generation bad_generation;
  void Fields(auto& wire) { wire(status, bad_slot, bad_generation); }
};

struct Register {
  static constexpr FrameType kType = FrameType::kRegister;
  uint64_t request = 0;
  std::vector<WireTensor> tensors;
  uint64_t extras_bytes = 0;  // expected; the region gets headroom above it
  void Fields(auto& wire) { wire(request, tensors, extras_bytes); }
};

// A slot as the client maps it: extras and data lie in [extras_offset, end of segment).
struct WireSlotRegion {
  SlotId slot;
  std::string segment;
  uint64_t extras_offset = 0;
  uint64_t extras_capacity = 0;
  uint64_t data_offset = 0;
  uint64_t data_capacity = 0;
  void Fields(auto& wire) {
    wire(slot, segment, extras_offset, extras_capacity, data_offset, data_capacity);
  }
};

// Also sent unasked, with the last request's number, when the slots or the mode change.
struct Registered {
  static constexpr FrameType kType = FrameType::kRegistered;
  uint64_t request = 0;
  WireStatus status;
  std::string control_segment;
  uint8_t capture_mode = 0;  // layout::CaptureMode
  uint64_t layout_digest = 0;
  uint32_t block_bytes = 0;
  uint64_t replica_check_every = 0;  // steps; 0 = never
  std::vector<WireSlotRegion> slots;
  void Fields(auto& wire) {
    wire(request, status, control_segment, capture_mode, layout_digest, block_bytes,
         replica_check_every, slots);
  }
};

struct Claimed {
  static constexpr FrameType kType = FrameType::kClaimed;
  SlotId slot;
  Generation generation;
  Version version;
  void Fields(auto& wire) { wire(slot, generation, version.timeline, version.step); }
};

// Rung when ControlPage::progress moved on by some MiB; the number is in the word.
struct Progress {
  static constexpr FrameType kType = FrameType::kProgress;
  SlotId slot;
  Generation generation;
  void Fields(auto& wire) { wire(slot, generation); }
};

struct Captured {
  static constexpr FrameType kType = FrameType::kCaptured;
  SlotId slot;
  Generation generation;
  Version version;
  uint64_t layout_digest = 0;  // of the plan that the bytes follow
  uint64_t data_bytes = 0;
  uint64_t extras_bytes = 0;
  // One sampled digest per registered tensor with replicas, in the order of registration; empty
  // when this snapshot was not checked.
  std::vector<uint32_t> replica_digests;
  // The CRC32C of each block as the tensors had it where they are, computed there; empty when that
  // is not asked for.
  std::vector<uint32_t> block_crcs;
  void Fields(auto& wire) {
    wire(slot, generation, version.timeline, version.step, layout_digest, data_bytes, extras_bytes,
         replica_digests);
    wire.Appended(block_crcs);
  }
};

// No slot was claimed for this step.
struct Skipped {
  static constexpr FrameType kType = FrameType::kSkipped;
  Version version;
  std::string reason;
  void Fields(auto& wire) { wire(version.timeline, version.step, WireText{reason}); }
};

// A claimed slot will not be completed; the client writes to it no more.
struct GaveUp {
  static constexpr FrameType kType = FrameType::kGaveUp;
  SlotId slot;
  Generation generation;
  Version version;
  std::string reason;
  uint64_t extras_bytes_needed = 0;  // non-zero: the extras region was too small
  void Fields(auto& wire) {
    wire(slot, generation, version.timeline, version.step, WireText{reason}, extras_bytes_needed);
  }
};

enum class VersionPhase : uint8_t { kSealed = 1, kCommitted = 2, kAbandoned = 3 };

struct VersionState {
  static constexpr FrameType kType = FrameType::kVersionState;
  Version version;
  VersionPhase phase = VersionPhase::kSealed;
  std::string reason;  // of an abandonment
  void Fields(auto& wire) { wire(version.timeline, version.step, phase, WireText{reason}); }
};

// Whether anything was ever committed in this job. Decides nothing, opens no timeline and waits for
// no other rank.
struct EverCommittedRequest {
  static constexpr FrameType kType = FrameType::kEverCommittedRequest;
  uint64_t request = 0;
  void Fields(auto& wire) { wire(request); }
};

struct EverCommitted {
  static constexpr FrameType kType = FrameType::kEverCommitted;
  uint64_t request = 0;
  WireStatus status;  // not ok: the daemon cannot say
  bool ever = false;
  void Fields(auto& wire) { wire(request, status, ever); }
};

// What keeps every version from being committed, as far as the daemon sees, in words for a user,
// such as a rank that never registered; empty = nothing any more.
struct Obstacle {
  static constexpr FrameType kType = FrameType::kObstacle;
  std::string what;
  void Fields(auto& wire) { wire(WireText{what}); }
};

// The CLI's questions; `verb` and its arguments as JSON, the answer as JSON.
struct AdminRequest {
  static constexpr FrameType kType = FrameType::kAdminRequest;
  std::string verb;
  std::string arguments;
  void Fields(auto& wire) { wire(verb, arguments); }
};

struct AdminReply {
  static constexpr FrameType kType = FrameType::kAdminReply;
  WireStatus status;
  std::string result;
  void Fields(auto& wire) { wire(status, result); }
};

template <typename Message>
Frame ToFrame(Message message) {
  return Frame{static_cast<uint16_t>(Message::kType), EncodeWire(std::move(message))};
}

// InvalidArgument when the frame is of another type or malformed.
template <typename Message>
absl::StatusOr<Message> FromFrame(const Frame& frame) {
  if (frame.type != static_cast<uint16_t>(Message::kType)) {
    return absl::InvalidArgumentError(fmt::format("local session: needed a frame {}, found type {}",
                                                  FrameTypeName(Message::kType), frame.type));
  }
  return DecodeWire<Message>(frame.payload, FrameTypeName(Message::kType));
}

}  // namespace unreft
