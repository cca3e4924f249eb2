#include "smp/memory/slot_verifier.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/unit/smp/sealed_slot_fixture.h"

namespace unreft::smp {
namespace {

constexpr Version kVersion{Timeline{1}, Step{5}};

class SlotVerifierTest : public SealedSlotFixture {
 protected:
  ~SlotVerifierTest() override {
    verifier_.reset();
    store_.reset();
  }

  // A slot that is taken for sealed; its header says otherwise.
  Slot& SealedFalsely() {
    Slot* slot = nullptr;
    InTurn([&] { UNREFT_CHECK(store_->Provide(kRank, {.data_bytes = 4000}).ok()); });
    Settle();
    InTurn([&] {
      slot = store_->Grant(kRank, table_.Start(), 1, Attempt{1}, Timeline{1});
      slot->phase = SlotPhase::kSealed;
    });
    return *slot;
  }

  int changes_ = 0;  // that the store has told
  std::unique_ptr<SlotStore> store_ = NewStore([this] { ++changes_; });
  std::unique_ptr<SlotVerifier> verifier_ =
      std::make_unique<SlotVerifier>(*executor_, pool_, *store_);
};

TEST_F(SlotVerifierTest, WhatDoesNotVerifyIsQuarantined) {
  Slot& slot = SealedFalsely();
  std::optional<absl::Status> status;
  InTurn([&] { verifier_->Verify({&slot}, [&](absl::Status found) { status = found; }); });
  Settle();
  ASSERT_TRUE(status);
  EXPECT_FALSE(status->ok());
  EXPECT_EQ(slot.phase, SlotPhase::kQuarantined);
}

// Several tasks read it, each another part.
TEST_F(SlotVerifierTest, ABitOfALargeSlotIsFoundWhereverItIs) {
  const uint64_t block_bytes = options_.block_bytes;
  const uint64_t bytes = 300 * block_bytes;
  Slot& slot = Seal(*store_, kVersion, bytes);
  const auto verify = [&] {
    std::optional<absl::Status> status;
    InTurn([&] { verifier_->Verify({&slot}, [&](absl::Status found) { status = found; }); });
    Settle();
    return status.value_or(absl::InternalError("never told"));
  };
  EXPECT_EQ(verify(), absl::OkStatus());
  for (const uint64_t block : {0, 74, 75, 150, 299}) {
    slot.view->data()[block * block_bytes + 3] ^= std::byte{1};
    const absl::Status status = verify();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr(fmt::format("block {} has CRC", block)));
    EXPECT_EQ(slot.phase, SlotPhase::kQuarantined);
    slot.view->data()[block * block_bytes + 3] ^= std::byte{1};
    slot.phase = SlotPhase::kSealed;
  }
  EXPECT_EQ(verify(), absl::OkStatus());
  EXPECT_TRUE(slot.readings.empty());
}

// It was taken for rot or not, as it happened: the daemon writes it again when it offers slots, and
// what one pass had read before was quarantined after.
TEST_F(SlotVerifierTest, ABitOfTheGeometryIsMendedAndNoRot) {
  Slot& slot = Seal(*store_, kVersion);
  for (size_t at = 0; at < sizeof(SlotGeometry); ++at) {
    slot.segment->bytes()[at] ^= std::byte{8};
    std::optional<absl::Status> status;
    InTurn([&] { verifier_->Verify({&slot}, [&](absl::Status found) { status = found; }); });
    Settle();
    ASSERT_TRUE(status);
    EXPECT_EQ(*status, absl::OkStatus()) << at;
    EXPECT_EQ(slot.phase, SlotPhase::kSealed);
    EXPECT_EQ(SlotView::Check(slot.segment->bytes()).status(), absl::OkStatus()) << at;
  }
}

// The second one took what the first had quarantined for nothing of its own: what the scrubber had
// found was restored.
TEST_F(SlotVerifierTest, BothOfTwoAtATimeAreTold) {
  Slot& slot = SealedFalsely();
  std::vector<absl::Status> told;
  InTurn([&] {
    for (int call = 0; call < 2; ++call) {
      verifier_->Verify({&slot}, [&](absl::Status found) { told.push_back(found); });
    }
  });
  Settle();
  ASSERT_EQ(told.size(), 2U);
  for (const absl::Status& status : told) EXPECT_FALSE(status.ok());
}

// What the next snapshot had written by then was taken for rotten.
TEST_F(SlotVerifierTest, ASlotThatIsCapturedAnewMeanwhileIsLeftAlone) {
  Slot& slot = Seal(*store_, kVersion);
  std::optional<absl::Status> status;
  InTurn([&] {
    verifier_->Verify({&slot}, [&](absl::Status found) { status = found; });
    store_->Free(slot);
    EXPECT_EQ(store_->Grant(kRank, table_.Start(), 1, Attempt{1}, Timeline{1}), &slot);
  });
  Settle();
  ASSERT_TRUE(status);
  EXPECT_TRUE(absl::IsAborted(*status)) << *status;
  EXPECT_EQ(slot.phase, SlotPhase::kGranted);
}

TEST_F(SlotVerifierTest, ASlotIsNotGivenAwayWhileItIsRead) {
  Slot& slot = Seal(*store_, kVersion);
  changes_ = 0;
  std::optional<absl::Status> status;
  InTurn([&] {
    verifier_->Verify({&slot}, [&](absl::Status found) { status = found; });
    // As the pool does; it has not come to the end when the slot is wanted.
    ASSERT_EQ(slot.readings.size(), 1U);
    ASSERT_TRUE(slot.readings[0]->Begin());
    store_->Free(slot);
    EXPECT_TRUE(slot.readings[0]->stopped());
    EXPECT_EQ(slot.phase, SlotPhase::kDraining);
    EXPECT_NE(store_->Grant(kRank, table_.Start(), 1, Attempt{1}, Timeline{1}), &slot);
  });
  EXPECT_EQ(changes_, 0);
  Settle();
  ASSERT_TRUE(status);
  EXPECT_TRUE(absl::IsAborted(*status)) << *status;
  EXPECT_EQ(slot.phase, SlotPhase::kFree);
  EXPECT_EQ(changes_, 1);
}

TEST_F(SlotVerifierTest, WhatHasRottedIsToldBeforeWhatWasFreed) {
  Slot& freed = Seal(*store_, kVersion);
  Slot& rotten = Seal(*store_, {Timeline{1}, Step{6}});
  Slot& freed_too = Seal(*store_, {Timeline{1}, Step{7}});
  Flip(rotten);
  std::optional<absl::Status> status;
  InTurn([&] {
    verifier_->Verify({&freed, &rotten, &freed_too}, [&](absl::Status found) { status = found; });
    store_->Free(freed);
    store_->Free(freed_too);
  });
  Settle();
  ASSERT_TRUE(status);
  EXPECT_TRUE(absl::IsDataLoss(*status)) << *status;
  EXPECT_EQ(rotten.phase, SlotPhase::kQuarantined);
  EXPECT_EQ(freed.phase, SlotPhase::kFree);
}

// Otherwise a scrub and a decision in which the same slot is read would keep it for ever.
TEST_F(SlotVerifierTest, NothingIsHeldOnceAllHaveReadIt) {
  Slot& slot = Seal(*store_, kVersion);
  InTurn([&] {
    for (int call = 0; call < 2; ++call) verifier_->Verify({&slot}, [](const absl::Status&) {});
  });
  Settle();
  EXPECT_FALSE(slot.InUse());
  InTurn([&] { store_->Free(slot); });
  EXPECT_EQ(slot.phase, SlotPhase::kFree);
}

}  // namespace
}  // namespace unreft::smp
