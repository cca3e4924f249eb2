// What is encoded of a version is encoded anew when it lacks slabs of a member, and only then.
#include "tests/unit/smp/protector_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;

class EncodedAnewTest : public ProtectorFixture {
 protected:
  // Node 1's slot has that memory from now on, which tells of its slab of the version, or of none.
  void HasSlot(const std::string& memory, bool has_slab) {
    NameMemories(memory);
    AnnounceSlab(memory, has_slab);
    Settle(seconds(2));
  }
};

// What the other has is nothing, and was complete at once: the version held a slot of every rank.
TEST_F(EncodedAnewTest, AMemoryThatReturnsIsEncodedInPlaceOfTheOther) {
  HasSlot("b", /*has_slab=*/false);
  HasSlot("a", /*has_slab=*/true);
  EXPECT_TRUE(IsEncodedOf("a"));
}

// It was freed and made again, because what this daemon hands on was of the memory that had had the
// slot meanwhile; the version was committed just then, on the word of a report.
TEST_F(EncodedAnewTest, AGuardThatIsOfTheMemoryThatReturnsIsKept) {
  HasSlot("a", /*has_slab=*/true);
  ASSERT_TRUE(IsEncodedOf("a"));
  StartAgain();
  HasSlot("b", /*has_slab=*/false);
  HasSlot("a", /*has_slab=*/true);
  EXPECT_TRUE(IsEncodedOf("a"));
  InTurn([&] {
    EXPECT_EQ(protector_->guards().Complete(kNext)->generation, Generation{1});  // the first
  });
}

// It was complete, and was taken for right.
TEST_F(EncodedAnewTest, AnAdoptedGuardOfAMemoryThatWasReplacedIsMadeAnew) {
  HasSlot("b", /*has_slab=*/false);
  ASSERT_TRUE(IsEncodedOf("b"));
  StartAgain();
  HasSlot("a", /*has_slab=*/true);
  EXPECT_TRUE(IsEncodedOf("a"));
}

// A decision counts on what was reported before it.
TEST_F(EncodedAnewTest, NoCompleteGuardIsMadeAnewWhileADecisionIsMade) {
  HasSlot("b", /*has_slab=*/false);
  const auto close = [this](bool closing) {
    InTurn([&] {
      job_.timeline.value.set_closing(closing);
      protector_->OnJobChange();
    });
    Settle(seconds(2));
  };
  close(true);
  HasSlot("a", /*has_slab=*/true);
  EXPECT_TRUE(IsEncodedOf("b"));
  close(false);
  EXPECT_TRUE(IsEncodedOf("a"));
}

// A daemon that had just started was asked before it heard of its ranks, and said that it had none;
// their slabs were in no guard, and the version held a slot of every rank for ever.
TEST_F(EncodedAnewTest, SlabsThatAMemberTellsOfLaterAreEncodedToo) {
  HasSlot("a", /*has_slab=*/false);
  ASSERT_EQ(SlabsEncoded(), 0);
  AnnounceSlab("a", /*has_slab=*/true);
  Settle(seconds(2));
  EXPECT_EQ(SlabsEncoded(), 1);
}

TEST_F(EncodedAnewTest, AnAnnouncementThatIsLateTakesNothingBack) {
  InTurn([&] { state_->lives_before.emplace_back(); });  // nothing is encoded before it is known
  HasSlot("a", /*has_slab=*/true);
  AnnounceSlab("a", /*has_slab=*/false);
  InTurn([&] {
    state_->lives_before.clear();
    protector_->OnRanksChange();
  });
  Settle(seconds(2));
  EXPECT_EQ(SlabsEncoded(), 1);
}

TEST_F(EncodedAnewTest, RanksThatThisNodeHearsOfLaterAreToldOf) {
  HasSlot("a", /*has_slab=*/true);
  ASSERT_EQ(announced_[kNext], 1);
  ASSERT_EQ(slabs_announced_, 0);
  Slot* slot = nullptr;
  InTurn([&] {
    ASSERT_TRUE(state_->slots->Provide(Rank{0}, {kBlocks * kBlockBytes, 100, 4096}).ok());
  });
  Settle();
  InTurn([&] {
    slot = state_->slots->Grant(Rank{0}, table_.Start(), 2, Attempt{1}, kNext.timeline);
    ASSERT_NE(slot, nullptr);
    slot->registration = std::make_shared<Registration>();
    slot->version = kNext;
    slot->phase = SlotPhase::kCapturing;
    protector_->OnClaimed(kNext);
  });
  Settle(seconds(2));
  EXPECT_EQ(announced_[kNext], 2);
  EXPECT_EQ(slabs_announced_, 1);
}

// What was done without it was begun anew at every change, and never done (rule 18).
TEST_F(EncodedAnewTest, WhatIsEncodedWithoutALostMemberIsBegunAgainOnceItIsBack) {
  serves_reads_ = false;
  HasSlot("a", /*has_slab=*/true);
  ASSERT_EQ(manifests_asked_, 1);
  const auto see = [this](bool lost) {
    InTurn([&] {
      job_.view.value.mutable_members(1)->set_lost(lost);
      protector_->OnJobChange();
    });
    Settle(seconds(2));
  };
  for (int i = 0; i < 3; ++i) see(true);
  EXPECT_EQ(manifests_asked_, 1);
  serves_reads_ = true;
  see(false);
  EXPECT_EQ(manifests_asked_, 2);
  EXPECT_EQ(SlabsEncoded(), 1);
}

}  // namespace
}  // namespace unreft::smp
