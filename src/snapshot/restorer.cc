#include "snapshot/restorer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <utility>

#include "snapshot/stream_copy.h"

namespace unreft::snapshot {
namespace {

// How often the caller is asked while other threads copy.
constexpr auto kAskEvery = std::chrono::milliseconds(20);

RestoreReport ReportOf(absl::Status status, const WireSlot& where) {
  // Aborted: the slot went to another generation. Internal: the plan is at fault, not the bytes.
  const bool bad = !status.ok() && !absl::IsAborted(status) && !absl::IsInternal(status) &&
                   !absl::IsCancelled(status);
  if (!bad) return {.status = std::move(status)};
  return {.status = std::move(status), .bad_slot = where.slot, .bad_generation = where.generation};
}

// Those of slots of this node, the pieces of each together and in the order of its slab.
std::vector<PlanPiece> LocalPieces(const RestorePlan& plan) {
  std::vector<PlanPiece> pieces;
  for (const PlanPiece& piece : plan.pieces) {
    if (!plan.sources[piece.source].is_staged()) pieces.push_back(piece);
  }
  std::sort(pieces.begin(), pieces.end(), [](const PlanPiece& a, const PlanPiece& b) {
    return std::pair(a.source, a.source_offset) < std::pair(b.source, b.source_offset);
  });
  return pieces;
}

absl::Status CheckWithinSlab(std::span<const PlanPiece> pieces, uint64_t slab_bytes) {
  for (const PlanPiece& piece : pieces) {
    if (PieceFits(piece, slab_bytes, UINT64_MAX)) continue;
    return absl::InternalError(
        fmt::format("plan: {} rows of {} bytes, each {} behind the one before, from {} on of a "
                    "slab of {}",
                    piece.rows, piece.bytes, piece.source_pitch, piece.source_offset, slab_bytes));
  }
  return absl::OkStatus();
}

// What of one block goes to one place.
struct Cut {
  uint64_t block_offset = 0;
  std::byte* target = nullptr;
  uint64_t bytes = 0;
  bool on_device = false;
};

// Cuts blocks out of pieces of one slab, which are in its order. The blocks ascend.
class Cutter {
 public:
  Cutter(std::span<const PlanPiece> pieces, std::span<const BoundTensor> targets,
         uint64_t block_bytes)
      : pieces_(pieces), targets_(targets), block_bytes_(block_bytes) {}

  // In the order of the block; they may overlap, as pieces may in the slab.
  std::span<const Cut> CutsOf(uint64_t block) {
    const uint64_t begin = block * block_bytes_;
    const uint64_t end = begin + block_bytes_;
    std::erase_if(begun_, [&](const PlanPiece* piece) { return piece->source_end() <= begin; });
    for (; next_ < pieces_.size() && pieces_[next_].source_offset < end; ++next_) {
      if (pieces_[next_].source_end() > begin) begun_.push_back(&pieces_[next_]);
    }
    cuts_.clear();
    for (const PlanPiece* piece : begun_) {
      const BoundTensor& target = targets_[piece->target];
      ForEachRowIn(*piece, begin, end, [&](uint64_t from, uint64_t to, uint64_t bytes) {
        cuts_.push_back({from - begin, target.data + to, bytes, target.on_device()});
      });
    }
    std::stable_sort(cuts_.begin(), cuts_.end(),
                     [](const Cut& a, const Cut& b) { return a.block_offset < b.block_offset; });
    return cuts_;
  }

 private:
  const std::span<const PlanPiece> pieces_;
  const std::span<const BoundTensor> targets_;
  const uint64_t block_bytes_;
  size_t next_ = 0;                      // of the pieces, the first that was not looked at
  std::vector<const PlanPiece*> begun_;  // and have not ended
  std::vector<Cut> cuts_;
};

// Collects in rooms of the copier what of the blocks goes to a device.
class Rooms {
 public:
  explicit Rooms(DeviceCopier& copier) : copier_(copier) {}
  ~Rooms() {
    if (!room_.empty()) copier_.Send(room_, {}).IgnoreError();
  }
  Rooms(const Rooms&) = delete;
  Rooms& operator=(const Rooms&) = delete;

  // Makes place for those of a block's cuts that go to a device. False if no room has so much.
  absl::StatusOr<bool> MakePlace(std::span<const Cut> cuts) {
    uint64_t needed = 0;
    for (const Cut& cut : cuts) {
      if (cut.on_device) needed += cut.bytes + GapMax(cut);
    }
    if (needed == 0) return false;
    if (needed > room_.size() - used_) {
      if (absl::Status status = Flush(); !status.ok()) return status;
      room_ = copier_.TakeRoom();
    }
    return needed <= room_.size() - used_;
  }

  // Where to copy the bytes of a cut that there is place for.
  std::byte* Place(const Cut& cut) {
    // As far from a line's beginning as where they come from, as copies past the cache want it.
    if (GapMax(cut) > 0) used_ += (cut.block_offset - used_) % kLine;
    pieces_.push_back({used_, cut.bytes, cut.target});
    used_ += cut.bytes;
    return room_.data() + pieces_.back().offset;
  }

  // Those that were placed and not told of yet are verified: they have the CRCs of `parts`.
  void Verified(std::span<const SealedSlot::Part> parts) {
    for (const SealedSlot::Part& part : parts) {
      if (part.wants_crc) pieces_[verified_++].crc = part.crc;
    }
  }

  // Gives what was collected to the device.
  absl::Status Flush() {
    if (room_.empty()) return absl::OkStatus();
    const absl::Status status = copier_.Send(std::exchange(room_, {}), pieces_);
    pieces_.clear();
    used_ = verified_ = 0;
    return status;
  }

 private:
  static constexpr uint64_t kLine = 64;
  static uint64_t GapMax(const Cut& cut) { return cut.bytes < kStreamBytesMin ? 0 : kLine; }

  DeviceCopier& copier_;
  std::span<std::byte> room_;  // empty: none is taken
  uint64_t used_ = 0;          // of the room
  std::vector<RoomPiece> pieces_;
  size_t verified_ = 0;  // of the pieces
};

}  // namespace

RestoreReport Restorer::Read(const RestorePlan& plan, std::span<const BoundTensor> targets,
                             GoesOn goes_on) const {
  absl::Status status = CheckPlan(plan, targets);
  if (!status.ok()) return {.status = std::move(status)};
  WireSlot where;
  status = ReadSlots(plan, targets, goes_on, where);
  // Also after a failure: nothing is copied to the targets any more.
  const absl::Status copied = copier_.EndRestore();
  if (!status.ok()) return ReportOf(std::move(status), where);
  return {.status = copied};
}

// `where` is the slot that was read last.
absl::Status Restorer::ReadSlots(const RestorePlan& plan, std::span<const BoundTensor> targets,
                                 GoesOn goes_on, WireSlot& where) const {
  const std::vector<PlanPiece> pieces = LocalPieces(plan);
  for (uint32_t source = 0; source < plan.sources.size(); ++source) {
    const std::span<const PlanPiece> of_slot = PiecesOf(pieces, source);
    if (of_slot.empty()) continue;
    where = plan.sources[source].slot;
    absl::StatusOr<SealedSlot> slot = slots_.Open(where);
    if (!slot.ok()) return slot.status();
    absl::Status status = ReadSlot(*slot, of_slot, targets, goes_on);
    // A reader that was overtaken sees bytes of another generation: that is no bad memory.
    if (absl::Status still = slot->StillThere(); !still.ok()) status = still;
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

RestoreReport Restorer::ReadExtras(const WireSlot& where, std::vector<std::byte>& extras) const {
  absl::StatusOr<SealedSlot> slot = slots_.Open(where);
  if (!slot.ok()) return ReportOf(slot.status(), where);
  absl::StatusOr<std::vector<std::byte>> found = slot->Extras();
  if (absl::Status still = slot->StillThere(); !still.ok()) return ReportOf(still, where);
  if (!found.ok()) return ReportOf(found.status(), where);
  extras = *std::move(found);
  return {};
}

absl::Status Restorer::ReadSlot(const SealedSlot& slot, std::span<const PlanPiece> pieces,
                                std::span<const BoundTensor> targets, GoesOn goes_on) const {
  absl::Status status = CheckWithinSlab(pieces, slot.seal().data_bytes);
  if (!status.ok()) return status;
  const std::vector<uint64_t> blocks = BlocksOf(pieces, slot.block_bytes());
  const uint32_t threads = IsOnDevice(targets) ? device_threads_ : threads_;
  return threads > 1 ? ReadOnThreads(slot, pieces, targets, blocks, threads, goes_on)
                     : ReadBlocks(slot, pieces, targets, blocks, goes_on);
}

absl::Status Restorer::ReadBlocks(const SealedSlot& slot, std::span<const PlanPiece> pieces,
                                  std::span<const BoundTensor> targets,
                                  std::span<const uint64_t> blocks, GoesOn goes_on) const {
  Cutter cutter(pieces, targets, slot.block_bytes());
  Rooms rooms(copier_);
  std::vector<SealedSlot::Part> parts;
  std::vector<Cut> later;
  std::vector<CopyOp> ops;
  for (const uint64_t number : blocks) {
    if (!goes_on()) return absl::CancelledError("the caller ended the restore");
    parts.clear();
    later.clear();
    const std::span<const Cut> cuts = cutter.CutsOf(number);
    const absl::StatusOr<bool> has_place = rooms.MakePlace(cuts);
    if (!has_place.ok()) return has_place.status();
    uint64_t end = 0;
    for (const Cut& cut : cuts) {
      // Bytes that go to two places are copied to the second when they are verified.
      if (cut.block_offset < end || (cut.on_device && !*has_place)) {
        later.push_back(cut);
        continue;
      }
      std::byte* const target = cut.on_device ? rooms.Place(cut) : cut.target;
      parts.push_back({cut.block_offset, target, cut.bytes, /*wants_crc=*/cut.on_device});
      end = cut.block_offset + cut.bytes;
    }
    absl::StatusOr<std::span<const std::byte>> block = slot.Block(number, parts);
    if (!block.ok()) return block.status();
    rooms.Verified(parts);
    if (later.empty()) continue;
    // Who waits for a room of the copier's may not hold one.
    if (absl::Status status = rooms.Flush(); !status.ok()) return status;
    ops.clear();
    for (const Cut& cut : later) {
      ops.push_back({block->data() + cut.block_offset, cut.target, cut.bytes, cut.on_device});
    }
    if (absl::Status status = copier_.Restore(ops); !status.ok()) return status;
  }
  return rooms.Flush();
}

absl::Status Restorer::ReadOnThreads(const SealedSlot& slot, std::span<const PlanPiece> pieces,
                                     std::span<const BoundTensor> targets,
                                     std::span<const uint64_t> blocks, uint32_t count,
                                     GoesOn goes_on) const {
  std::atomic<bool> is_ended = false;
  std::vector<std::future<absl::Status>> shares;
  for (uint32_t i = 0; i < count; ++i) {
    const size_t begin = blocks.size() * i / count;
    const size_t end = blocks.size() * (i + 1) / count;
    const std::span<const uint64_t> share = blocks.subspan(begin, end - begin);
    shares.push_back(std::async(std::launch::async, [=, this, &slot, &is_ended] {
      return ReadBlocks(slot, pieces, targets, share, [&is_ended] { return !is_ended.load(); });
    }));
  }
  absl::Status first;
  for (std::future<absl::Status>& share : shares) {
    while (share.wait_for(kAskEvery) != std::future_status::ready) {
      if (!goes_on()) is_ended = true;
    }
    first.Update(share.get());
  }
  return first;
}

}  // namespace unreft::snapshot
