#include "smp/job/board.h"

#include <gtest/gtest.h>

#include "smp/job/cluster_records.h"

namespace unreft::smp {
namespace {

constexpr Version kVersion{Timeline{2}, Step{7}};
constexpr NodeSlot kNode0{0};
constexpr NodeSlot kNode1{1};

VersionHolding Sealed(Version version, std::vector<uint64_t> ranks, uint64_t world) {
  VersionHolding holding;
  SetVersion(version, holding);
  for (const uint64_t number : ranks) {
    SealedRank& rank = *holding.add_sealed();
    rank.set_rank(number);
    rank.set_world(world);
  }
  return holding;
}

NodeReport ReportOf(std::vector<VersionHolding> versions, uint64_t timeline = 2) {
  NodeReport report;
  report.set_newest_timeline(timeline);
  for (VersionHolding& version : versions) *report.add_versions() = std::move(version);
  return report;
}

TEST(BoardTest, AVersionIsWholeOnceAsManyRanksHaveSealedItAsTheirWorldHas) {
  Board board;
  board.Take(kNode0, ReportOf({Sealed(kVersion, {0, 1}, 4)}));
  board.Take(kNode1, ReportOf({Sealed(kVersion, {2}, 4)}));
  EXPECT_FALSE(board.versions().at(kVersion).MayBeWhole());
  board.Take(kNode1, ReportOf({Sealed(kVersion, {2, 3}, 4)}));
  EXPECT_TRUE(board.versions().at(kVersion).MayBeWhole());
}

TEST(BoardTest, ARankThatTwoNodesNameCountsOnce) {
  Board board;
  board.Take(kNode0, ReportOf({Sealed(kVersion, {0, 1}, 3)}));
  board.Take(kNode1, ReportOf({Sealed(kVersion, {1}, 3)}));
  EXPECT_FALSE(board.versions().at(kVersion).MayBeWhole());
  // One of both names it no longer: the other does.
  board.Take(kNode1, ReportOf({Sealed(kVersion, {2}, 3)}));
  EXPECT_TRUE(board.versions().at(kVersion).MayBeWhole());
}

TEST(BoardTest, AReportTakesThePlaceOfTheOneBefore) {
  Board board;
  VersionHolding failed = Sealed(kVersion, {}, 0);
  failed.set_failure("no room");
  board.Take(kNode0, ReportOf({failed}));
  EXPECT_EQ(board.versions().at(kVersion).failures.at(kNode0), "no room");
  board.Take(kNode0, ReportOf({}));
  EXPECT_TRUE(board.versions().empty());
}

TEST(BoardTest, AVersionThatAReportNamesTwiceIsGoneWithIt) {
  Board board;
  board.Take(kNode0, ReportOf({Sealed(kVersion, {0}, 2), Sealed(kVersion, {0}, 2)}));
  board.Take(kNode1, ReportOf({Sealed(kVersion, {1}, 2)}));
  board.Take(kNode0, ReportOf({}));
  EXPECT_EQ(board.versions().at(kVersion).sealed.size(), 1U);
  board.Take(kNode1, ReportOf({}));
  EXPECT_TRUE(board.versions().empty());
}

TEST(BoardTest, KnowsOfARankThatHasPassedAVersionThatOthersNameLater) {
  Board board;
  NodeReport report = ReportOf({});
  RegisteredRank& rank = *report.add_registered();
  rank.set_rank(3);
  rank.set_passed_step(8);
  board.Take(kNode1, report);
  board.Take(kNode0, ReportOf({Sealed(kVersion, {0}, 4)}));
  const auto& passed = board.versions().at(kVersion).passed;
  ASSERT_TRUE(passed.contains(kNode1));
  EXPECT_EQ(passed.at(kNode1).rank, Rank{3});
  EXPECT_EQ(passed.at(kNode1).step, Step{8});
  // What it captures now may still be sealed.
  report.mutable_registered(0)->add_capturing(7);
  board.Take(kNode1, report);
  EXPECT_TRUE(board.versions().at(kVersion).passed.empty());
}

TEST(BoardTest, TheNewestStepIsOfTheTimelineThatIsAskedFor) {
  Board board;
  board.Take(kNode0, ReportOf({Sealed({Timeline{1}, Step{90}}, {0}, 2)}));
  board.Take(kNode1, ReportOf({Sealed(kVersion, {1}, 2)}));
  EXPECT_EQ(board.NewestStep(Timeline{2}), Step{7});
  EXPECT_EQ(board.NewestStep(Timeline{1}), Step{90});
  NodeReport farther = ReportOf({});
  farther.set_newest_step(9);
  board.Take(kNode0, farther);
  EXPECT_EQ(board.NewestStep(Timeline{2}), Step{9});
  // Nobody else comes near it.
  farther.set_newest_step(5000);
  board.Take(kNode0, farther);
  EXPECT_EQ(board.NewestStep(Timeline{2}), Step{7});
}

class BoardGroupsTest : public ::testing::Test {
 protected:
  BoardGroupsTest() {
    state_.revision = meta::Revision{1};
    Group& group = *state_.view.value.add_groups();
    group.set_k(1);
    for (uint64_t slot = 0; slot < 2; ++slot) {
      group.add_slots(slot);
      ViewMember& member = *state_.view.value.add_members();
      member.set_slot(slot);
      member.set_incarnation(Memory(slot));
      state_.present[NodeSlot{slot}].set_incarnation(Memory(slot));
    }
  }
  static std::string Memory(uint64_t slot) { return slot == 0 ? "memory 0" : "memory 1"; }
  // A rank on each node; each has a copy of the other's manifests.
  NodeReport Guarded(uint64_t slot) const {
    VersionHolding holding = Sealed(kVersion, {slot}, 2);
    holding.set_guarded(true);
    holding.set_coding(5);
    holding.set_data_chunks(1);
    for (uint64_t member = 0; member < 2; ++member) {
      EncodedMember& encoded = *holding.add_encoded();
      encoded.set_slot(member);
      encoded.set_incarnation(Memory(member));
    }
    DescriptionHolding& description = *holding.add_descriptions();
    description.set_slot(1 - slot);
    description.add_ranks(1 - slot);
    description.set_world(2);
    return By(slot, {holding});
  }
  NodeReport By(uint64_t slot, std::vector<VersionHolding> versions) const {
    NodeReport report = ReportOf(std::move(versions));
    report.set_incarnation(Memory(slot));
    return report;
  }
  bool AreProtected() {
    const RollCall roll(state_.view.value, state_.present, board_.reports());
    return board_.AreGroupsProtected(kVersion, state_, roll);
  }

  Board board_;
  meta::JobState state_;
};

TEST_F(BoardGroupsTest, AGroupIsProtectedOnceAllItsGuardsAreComplete) {
  board_.Take(kNode0, Guarded(0));
  board_.Take(kNode1, By(1, {Sealed(kVersion, {1}, 2)}));
  EXPECT_FALSE(AreProtected());
  board_.Take(kNode1, Guarded(1));
  EXPECT_TRUE(AreProtected());
  // A guard that did not verify is no longer said.
  board_.Take(kNode1, By(1, {Sealed(kVersion, {1}, 2)}));
  EXPECT_FALSE(AreProtected());
}

TEST_F(BoardGroupsTest, WhatWasFoundOfAGroupHoldsForTheRecordsItWasFoundIn) {
  board_.Take(kNode0, Guarded(0));
  board_.Take(kNode1, Guarded(1));
  EXPECT_TRUE(AreProtected());
  // Another memory is in the slot, and what it seals is in no guard.
  state_.view.value.mutable_members(1)->set_incarnation("memory 2");
  state_.present[kNode1].set_incarnation("memory 2");
  NodeReport report = Guarded(1);
  report.set_incarnation("memory 2");
  board_.Take(kNode1, report);
  state_.revision = meta::Revision{2};
  EXPECT_FALSE(AreProtected());
}

}  // namespace
}  // namespace unreft::smp
