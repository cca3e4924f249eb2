// A rank's slots with content that verifies.
#pragma once

#include <cstring>
#include <memory>
#include <optional>

#include "base/slot_header.h"
#include "smp/capture/slot_sealer.h"
#include "smp/memory/slot_store.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {

class SealedSlotFixture : public SmpFixture {
 protected:
  static constexpr Rank kRank{1};
  static constexpr uint64_t kDataBytes = 4000;
  static constexpr SlotNeeds kNeeds{kDataBytes, 100, 4096};

  std::unique_ptr<SlotStore> NewStore(absl::AnyInvocable<void()> on_change = [] {}) {
    memory_.emplace(SegmentPool::Seams{*executor_, pool_, segments_, log_}, options_);
    return std::make_unique<SlotStore>(SlotStore::Seams{*executor_, *memory_, processes_, log_},
                                       options_, boot_id_, random_.NextId(), ProcessNumber{1},
                                       std::move(on_change));
  }

  // A slot of the rank that holds the version, captured and sealed as a trainer's is.
  Slot& Seal(SlotStore& store, Version version, uint64_t data_bytes = kDataBytes) {
    Slot* slot = nullptr;
    const SlotNeeds needs{data_bytes, 100, 4096};
    InTurn([&] { UNREFT_CHECK(store.Provide(kRank, needs).ok()); });
    Settle();
    SlotSealer sealer(*executor_, pool_, "job", 4, nullptr, [](Slot&, const absl::Status&) {});
    InTurn([&] {
      slot = store.Grant(kRank, table_.Start(), 2, Attempt{1}, version.timeline);
      UNREFT_CHECK(slot != nullptr);
      const TensorSpec spec{
          .name = "w", .global_shape = {data_bytes / 4}, .offset = {0}, .extent = {data_bytes / 4}};
      auto registration = std::make_shared<Registration>();
      registration->table = *layout::TensorTable::Create({spec});
      registration->plan =
          layout::CapturePlan::Make(registration->table, layout::CaptureMode::kSharded);
      slot->registration = registration;
      slot->version = version;
      slot->phase = SlotPhase::kCapturing;
      std::memset(slot->view->data().data(), 7, data_bytes);
      Captured captured;
      captured.version = version;
      captured.layout_digest = registration->plan.digest();
      captured.data_bytes = registration->plan.data_bytes();
      captured.extras_bytes = 3;
      UNREFT_CHECK(sealer.Complete(*slot, captured).ok());
    });
    Settle();
    UNREFT_CHECK(slot->phase == SlotPhase::kSealed, "slot {}", slot->id);
    return *slot;
  }
  // As memory rots.
  static void Flip(Slot& slot) { slot.view->data()[100] ^= std::byte{1}; }

  std::optional<SegmentPool> memory_;  // of the newest store
};

}  // namespace unreft::smp
