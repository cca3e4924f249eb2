#include "smp/slot_verifier.h"

#include <optional>
#include <vector>

#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {
namespace {

constexpr Rank kRank{1};

class SlotVerifierTest : public SmpFixture {
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

  std::unique_ptr<SlotStore> store_ =
      std::make_unique<SlotStore>(SlotStore::Seams{*executor_, pool_, segments_, processes_, log_},
                                  options_, boot_id_, random_.NextId(), [] {});
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

}  // namespace
}  // namespace unreft::smp
