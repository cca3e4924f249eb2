#include "snapshot/restorer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <utility>

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

// The pieces of each slot together, in the order of its slab.
std::vector<WirePiece> BySlot(std::vector<WirePiece> pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const WirePiece& a, const WirePiece& b) {
    return std::pair(a.slot, a.source_offset) < std::pair(b.slot, b.source_offset);
  });
  return pieces;
}

// The first run of elements whose `key` is that of the first; removes it from `items`.
template <typename T, typename Key>
std::span<const T> TakeRun(std::span<const T>& items, Key key) {
  size_t count = 1;
  while (count < items.size() && key(items[count]) == key(items[0])) ++count;
  const std::span<const T> run = items.first(count);
  items = items.subspan(count);
  return run;
}

}  // namespace

absl::StatusOr<std::vector<TargetRange>> FindGaps(const Plan& plan,
                                                  std::span<const BoundTensor> targets) {
  std::vector<const WirePiece*> pieces;
  pieces.reserve(plan.pieces.size());
  for (const WirePiece& piece : plan.pieces) {
    if (piece.slot >= plan.slots.size() || piece.target >= targets.size()) {
      return absl::InternalError(fmt::format("plan: slot {} of {}, tensor {} of {}", piece.slot,
                                             plan.slots.size(), piece.target, targets.size()));
    }
    pieces.push_back(&piece);
  }
  std::sort(pieces.begin(), pieces.end(), [](const WirePiece* a, const WirePiece* b) {
    return std::pair(a->target, a->target_offset) < std::pair(b->target, b->target_offset);
  });
  std::vector<TargetRange> gaps;
  uint64_t left_out = 0;
  size_t next = 0;
  for (uint32_t target = 0; target < targets.size(); ++target) {
    const uint64_t bytes = ShardBytes(targets[target].spec);
    const auto leave_out = [&](uint64_t begin, uint64_t end) {
      if (begin < end) gaps.push_back({target, begin, end});
      left_out += end - begin;
    };
    uint64_t at = 0;
    for (; next < pieces.size() && pieces[next]->target == target; ++next) {
      const WirePiece& piece = *pieces[next];
      if (piece.target_offset < at || piece.target_offset > bytes ||
          piece.bytes > bytes - piece.target_offset) {
        return absl::InternalError(
            fmt::format("plan: tensor {} has {} bytes, of which {} are written; a piece writes {} "
                        "at {}",
                        targets[target].spec.name, bytes, at, piece.bytes, piece.target_offset));
      }
      leave_out(at, piece.target_offset);
      at = piece.target_offset + piece.bytes;
    }
    leave_out(at, bytes);
  }
  if (left_out == plan.staged_bytes) return gaps;
  return absl::InternalError(fmt::format(
      "plan: its pieces leave out {} bytes, the first of them of "
      "tensor {}, and {} are to come staged",
      left_out, gaps.empty() ? "-" : targets[gaps[0].target].spec.name, plan.staged_bytes));
}

RestoreReport Restorer::Read(const Plan& plan, std::span<const BoundTensor> targets,
                             GoesOn goes_on) const {
  if (auto gaps = FindGaps(plan, targets); !gaps.ok()) return {.status = gaps.status()};
  WireSlot where;
  absl::Status status = ReadSlots(plan, targets, goes_on, where);
  // Also after a failure: nothing is copied to the targets any more.
  const absl::Status copied = copier_.EndRestore();
  if (!status.ok()) return ReportOf(std::move(status), where);
  return {.status = copied};
}

// `where` is the slot that was read last.
absl::Status Restorer::ReadSlots(const Plan& plan, std::span<const BoundTensor> targets,
                                 GoesOn goes_on, WireSlot& where) const {
  const std::vector<WirePiece> sorted = BySlot(plan.pieces);
  std::span<const WirePiece> left = sorted;
  while (!left.empty()) {
    const std::span<const WirePiece> pieces =
        TakeRun(left, [](const WirePiece& p) { return p.slot; });
    where = plan.slots[pieces[0].slot];
    absl::StatusOr<SealedSlot> slot = slots_.Open(where);
    if (!slot.ok()) return slot.status();
    absl::Status status = ReadSlot(*slot, pieces, targets, goes_on);
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

absl::StatusOr<std::vector<Restorer::Cut>> Restorer::MakeCuts(
    const SealedSlot& slot, std::span<const WirePiece> pieces,
    std::span<const BoundTensor> targets) {
  const uint64_t block_bytes = slot.block_bytes();
  std::vector<Cut> cuts;
  for (const WirePiece& piece : pieces) {
    const uint64_t slab = slot.seal().data_bytes;
    if (piece.source_offset > slab || piece.bytes > slab - piece.source_offset) {
      return absl::InternalError(fmt::format("plan: bytes {} + {} of a slab of {}",
                                             piece.source_offset, piece.bytes, slab));
    }
    std::byte* target = targets[piece.target].data + piece.target_offset;
    uint64_t at = piece.source_offset;
    for (uint64_t left = piece.bytes; left > 0;) {
      const uint64_t offset = at % block_bytes;
      const uint64_t run = std::min(left, block_bytes - offset);
      cuts.push_back({at / block_bytes, offset, target, run, targets[piece.target].on_device()});
      at += run;
      target += run;
      left -= run;
    }
  }
  // Pieces may overlap in the slab, so that their cuts interleave.
  std::stable_sort(cuts.begin(), cuts.end(), [](const Cut& a, const Cut& b) {
    return std::pair(a.block, a.block_offset) < std::pair(b.block, b.block_offset);
  });
  return cuts;
}

absl::Status Restorer::ReadSlot(const SealedSlot& slot, std::span<const WirePiece> pieces,
                                std::span<const BoundTensor> targets, GoesOn goes_on) const {
  absl::StatusOr<std::vector<Cut>> cuts = MakeCuts(slot, pieces, targets);
  if (!cuts.ok()) return cuts.status();
  const uint32_t threads = IsOnDevice(targets) ? device_threads_ : threads_;
  return threads > 1 ? CopyCutsOnThreads(slot, *cuts, threads, goes_on)
                     : CopyCuts(slot, *cuts, goes_on);
}

absl::Status Restorer::CopyCuts(const SealedSlot& slot, std::span<const Cut> cuts,
                                GoesOn goes_on) const {
  std::vector<SealedSlot::Part> parts;
  std::vector<Cut> later;
  std::vector<CopyOp> ops;
  while (!cuts.empty()) {
    if (!goes_on()) return absl::CancelledError("the caller ended the restore");
    const std::span<const Cut> run = TakeRun(cuts, [](const Cut& cut) { return cut.block; });
    parts.clear();
    later.clear();
    uint64_t end = 0;
    for (const Cut& cut : run) {
      // Bytes that go to two places are copied to the second when they are verified.
      if (cut.on_device || cut.block_offset < end) {
        later.push_back(cut);
      } else {
        parts.push_back({cut.block_offset, cut.target, cut.bytes});
        end = cut.block_offset + cut.bytes;
      }
    }
    absl::StatusOr<std::span<const std::byte>> block = slot.Block(run[0].block, parts);
    if (!block.ok()) return block.status();
    if (later.empty()) continue;
    ops.clear();
    for (const Cut& cut : later) {
      ops.push_back({block->data() + cut.block_offset, cut.target, cut.bytes, cut.on_device});
    }
    if (absl::Status status = copier_.Restore(ops); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Restorer::CopyCutsOnThreads(const SealedSlot& slot, std::span<const Cut> cuts,
                                         uint32_t count, GoesOn goes_on) const {
  std::atomic<bool> is_ended = false;
  std::vector<std::future<absl::Status>> shares;
  for (uint32_t i = 0; i < count; ++i) {
    // A block that is cut in two shares is verified by both.
    const size_t begin = cuts.size() * i / count;
    const size_t end = cuts.size() * (i + 1) / count;
    shares.push_back(std::async(
        std::launch::async, [this, &slot, &is_ended, share = cuts.subspan(begin, end - begin)] {
          return CopyCuts(slot, share, [&is_ended] { return !is_ended.load(); });
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
