#include "smp/restore/slab_rebuilder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "base/slot_header.h"

namespace unreft::smp {

SlabRebuilder::SlabRebuilder(NodeState& state, BlockReader& reader, const RestoreCatalog& catalog,
                             absl::AnyInvocable<void()> on_done)
    : state_(state),
      reader_(reader),
      catalog_(catalog),
      on_done_(std::move(on_done)),
      shortage_(state.seams.executor, state.options.memory_retry, [this] { ProvideAgain(); }) {
  for (const auto& [rank, slab] : catalog_.slabs()) {
    if (slab.home != state_.options.node || !slab.lost) continue;
    // An earlier decision on the same version may have brought it back already.
    const std::vector<Slot*> sealed = state_.slots->Sealed(catalog_.version());
    const bool is_back = std::any_of(sealed.begin(), sealed.end(),
                                     [&, rank = rank](Slot* s) { return s->owner == rank; });
    if (is_back) continue;
    if (slab.head.block_bytes != state_.options.block_bytes) {
      state_.seams.log.Error(
          "rank {}: its slab of version {} is not rebuilt: it was saved in blocks of {} bytes, "
          "this node has blocks of {}",
          rank, catalog_.version(), slab.head.block_bytes, state_.options.block_bytes);
      is_refused_ = true;
      continue;
    }
    todo_[rank].blocks = slab.crcs.size();
    Provide(rank);
  }
  state_.seams.executor.Post(lifetime_.Bind([this] {
    if (todo_.empty() && !is_refused_) return on_done_();
    RunRules();
  }));
}

SlabRebuilder::~SlabRebuilder() {
  for (auto& [rank, slab] : todo_) {
    if (slab.slot != nullptr) state_.slots->Free(*slab.slot);
  }
}

void SlabRebuilder::Provide(Rank rank) {
  const SlotNeeds needs = SlotNeedsOf(*catalog_.Find(rank), state_.options);
  const absl::Status status = state_.slots->ProvideForRebuild(rank, needs, catalog_.version());
  if (status.ok()) return;
  shortage_.Arm();
  if (last_refusal_ == status.message()) return;
  last_refusal_ = std::string(status.message());
  state_.seams.log.Error("rank {}: its slab of version {} is not rebuilt: {}", rank,
                         catalog_.version(), status.message());
}

void SlabRebuilder::ProvideAgain() {
  for (const auto& [rank, slab] : todo_) {
    if (slab.slot == nullptr) Provide(rank);
  }
  RunRules();
}

void SlabRebuilder::RunRules() {
  std::vector<Rank> ranks;
  for (const auto& [rank, slab] : todo_) ranks.push_back(rank);
  for (const Rank rank : ranks) {
    const auto it = todo_.find(rank);
    if (it != todo_.end()) RunSlab(rank, it->second);
  }
}

void SlabRebuilder::RunSlab(Rank rank, Slab& slab) {
  if (slab.slot == nullptr) {
    const CatalogSlab& of = *catalog_.Find(rank);
    slab.slot =
        state_.slots->TakeForRebuild(rank, of.manifest(), of.description->manifest().size());
    if (slab.slot == nullptr) return shortage_.Arm();
    state_.seams.log.Info("rank {}: its slab of version {} is rebuilt, {} blocks", rank,
                          catalog_.version(), slab.blocks);
  }
  const auto window = std::max<uint64_t>(1, 2 * state_.options.protect_window);
  while ((slab.next < slab.blocks || !slab.failed.empty()) && slab.running < window) {
    const uint64_t block =
        slab.failed.empty() ? slab.next++ : slab.failed.extract(slab.failed.begin()).value();
    ++slab.running;
    reader_.Decode(
        rank, block, slab.slot->view->block(block), slab.slot->segment,
        lifetime_.Bind([this, rank, block](absl::Status status) { OnBlock(rank, block, status); }));
  }
  if (slab.slot->blocks_done == slab.blocks && slab.running == 0) Seal(rank, slab);
}

void SlabRebuilder::OnBlock(Rank rank, uint64_t block, const absl::Status& status) {
  Slab& slab = todo_.at(rank);
  --slab.running;
  if (!status.ok()) {
    if (absl::IsCancelled(status)) return;
    // As long as the decision stands: a source may come back.
    state_.seams.log.Error("rank {}: its slab of version {} is not rebuilt yet: {}", rank,
                           catalog_.version(), status.message());
    state_.seams.executor.After(state_.options.read_retry, lifetime_.Bind([this, rank, block] {
      const auto it = todo_.find(rank);
      if (it == todo_.end()) return;
      it->second.failed.insert(block);
      RunSlab(rank, it->second);
    }));
    return;
  }
  // The CRC was checked against this entry.
  const uint32_t crc = catalog_.Find(rank)->crcs[block];
  std::memcpy(slab.slot->view->crc_table().data() + block * sizeof(crc), &crc, sizeof(crc));
  slab.finished.insert(block);
  while (!slab.finished.empty() && *slab.finished.begin() == slab.slot->blocks_done) {
    slab.finished.erase(slab.finished.begin());
    ++slab.slot->blocks_done;
  }
  if (state_.on_slot_change) state_.on_slot_change();
  RunSlab(rank, slab);
}

void SlabRebuilder::Seal(Rank rank, Slab& slab) {
  const CatalogSlab& of = *catalog_.Find(rank);
  Slot& slot = *slab.slot;
  slot.SealRebuilt(FillDescription(of, *slot.view));
  state_.seams.log.Info("rank {}: its slab of version {} is back", rank, slot.version);
  todo_.erase(rank);
  if (state_.on_slot_change) state_.on_slot_change();
  if (todo_.empty() && !is_refused_) {
    state_.seams.executor.Post(lifetime_.Bind([this] { on_done_(); }));
  }
}

}  // namespace unreft::smp
