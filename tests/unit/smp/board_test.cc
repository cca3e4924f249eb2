#include "smp/job/board.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "smp/job/cluster_records.h"
#include "tests/unit/smp/board_telling.h"

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
  TellBoard(board, kNode0, ReportOf({Sealed(kVersion, {0, 1}, 4)}));
  TellBoard(board, kNode1, ReportOf({Sealed(kVersion, {2}, 4)}));
  EXPECT_FALSE(board.versions().at(kVersion).MayBeWhole());
  TellBoard(board, kNode1, ReportOf({Sealed(kVersion, {2, 3}, 4)}));
  EXPECT_TRUE(board.versions().at(kVersion).MayBeWhole());
}

TEST(BoardTest, ARankThatTwoNodesNameCountsOnce) {
  Board board;
  TellBoard(board, kNode0, ReportOf({Sealed(kVersion, {0, 1}, 3)}));
  TellBoard(board, kNode1, ReportOf({Sealed(kVersion, {1}, 3)}));
  EXPECT_FALSE(board.versions().at(kVersion).MayBeWhole());
  // One of both names it no longer: the other does.
  TellBoard(board, kNode1, ReportOf({Sealed(kVersion, {2}, 3)}));
  EXPECT_TRUE(board.versions().at(kVersion).MayBeWhole());
}

TEST(BoardTest, AReportTakesThePlaceOfTheOneBefore) {
  Board board;
  VersionHolding failed = Sealed(kVersion, {}, 0);
  failed.set_failure("no room");
  TellBoard(board, kNode0, ReportOf({failed}));
  EXPECT_EQ(board.versions().at(kVersion).failures.at(kNode0), "no room");
  TellBoard(board, kNode0, ReportOf({}));
  EXPECT_TRUE(board.versions().empty());
}

TEST(BoardTest, AReportThatCannotBeBelievedChangesNothing) {
  Board board;
  const VersionHolding held = Sealed(kVersion, {0}, 2);
  TellBoard(board, kNode0, ReportOf({held}));
  const NodeReport twice = ReportOf({held, Sealed({Timeline{2}, Step{8}}, {0}, 2), held});
  EXPECT_EQ(TryTellBoard(board, kNode0, twice).message(), "version 2:7 is named twice");
  const NodeReport far = ReportOf({Sealed({Timeline{2}, Step{UINT64_MAX}}, {0}, 2)});
  EXPECT_TRUE(absl::IsInvalidArgument(TryTellBoard(board, kNode0, far)));
  ReportParts garbled;
  garbled.versions = {"\x08"};
  EXPECT_TRUE(absl::IsInvalidArgument(board.Take(kNode0, garbled)));
  ASSERT_EQ(board.versions().size(), 1U);
  EXPECT_EQ(board.versions().at(kVersion).sealed.size(), 1U);
  EXPECT_EQ(board.Of(kNode0)->SerializeAsString(), ReportOf({held}).SerializeAsString());
}

TEST(BoardTest, WhatAnotherProcessSaysOfItsRanksIsNotWhatTheOneBeforeSaid) {
  Board board;
  NodeReport report = ReportOf({});
  EXPECT_FALSE(board.HasSameRanks(kNode0, report)) << "it has not reported";
  report.add_registered()->set_layout_digest(5);
  TellBoard(board, kNode0, report);
  NodeReport next = report;
  next.set_number(2);
  next.mutable_registered(0)->set_passed_step(8);
  EXPECT_TRUE(board.HasSameRanks(kNode0, next));
  next.mutable_registered(0)->set_layout_digest(6);
  EXPECT_FALSE(board.HasSameRanks(kNode0, next));
  next = report;
  next.set_session(2);
  EXPECT_FALSE(board.HasSameRanks(kNode0, next));
}

TEST(BoardTest, KnowsOfARankThatHasPassedAVersionThatOthersNameLater) {
  Board board;
  NodeReport report = ReportOf({});
  RegisteredRank& rank = *report.add_registered();
  rank.set_rank(3);
  rank.set_passed_step(8);
  TellBoard(board, kNode1, report);
  TellBoard(board, kNode0, ReportOf({Sealed(kVersion, {0}, 4)}));
  const auto& passed = board.versions().at(kVersion).passed;
  ASSERT_TRUE(passed.contains(kNode1));
  EXPECT_EQ(passed.at(kNode1).rank, Rank{3});
  EXPECT_EQ(passed.at(kNode1).step, Step{8});
  // What it captures now may still be sealed.
  report.mutable_registered(0)->add_capturing(7);
  TellBoard(board, kNode1, report);
  EXPECT_TRUE(board.versions().at(kVersion).passed.empty());
}

TEST(BoardTest, TheNewestStepIsOfTheTimelineThatIsAskedFor) {
  Board board;
  TellBoard(board, kNode0, ReportOf({Sealed({Timeline{1}, Step{90}}, {0}, 2)}));
  TellBoard(board, kNode1, ReportOf({Sealed(kVersion, {1}, 2)}));
  EXPECT_EQ(board.NewestStep(Timeline{2}), Step{7});
  EXPECT_EQ(board.NewestStep(Timeline{1}), Step{90});
  NodeReport farther = ReportOf({});
  farther.set_newest_step(9);
  TellBoard(board, kNode0, farther);
  EXPECT_EQ(board.NewestStep(Timeline{2}), Step{9});
  // Nobody else comes near it.
  farther.set_newest_step(5000);
  TellBoard(board, kNode0, farther);
  EXPECT_EQ(board.NewestStep(Timeline{2}), Step{7});
}

// Reports in which versions come, stay, change and go, in any order.
class DrawnReports {
 public:
  NodeReport Next(NodeSlot slot) {
    std::map<Version, VersionHolding>& held = held_[slot];
    for (uint64_t step = 1; step <= kSteps; ++step) {
      const Version version{Timeline{1 + Draw(2)}, Step{step}};
      const uint64_t what = Draw(6);
      if (what == 0) held.erase(version);
      if (what == 1) held[version] = Holding(version);
    }
    std::vector<VersionHolding> versions;
    for (const auto& [version, holding] : held) versions.push_back(holding);
    std::ranges::shuffle(versions, random_);
    NodeReport report = ReportOf(std::move(versions), 1 + Draw(2));
    report.set_session(1 + Draw(2));
    report.set_newest_step(Draw(kSteps));
    for (uint64_t rank = 0; rank < Draw(3); ++rank) {
      RegisteredRank& registered = *report.add_registered();
      registered.set_rank(rank);
      if (Draw(2) == 0) registered.set_passed_step(Draw(kSteps));
      if (Draw(2) == 0) registered.add_capturing(Draw(kSteps));
    }
    return report;
  }
  uint64_t Draw(uint64_t below) { return random_() % below; }

 private:
  static constexpr uint64_t kSteps = 6;

  VersionHolding Holding(Version version) {
    std::vector<uint64_t> ranks;
    for (uint64_t rank = 0; rank < 3; ++rank) {
      if (Draw(2) == 0) ranks.push_back(rank);
    }
    VersionHolding holding = Sealed(version, ranks, 2 + Draw(2));
    if (Draw(4) == 0) holding.set_failure("no room");
    holding.set_guarded(Draw(2) == 0);
    return holding;
  }

  std::mt19937_64 random_{1};
  std::map<NodeSlot, std::map<Version, VersionHolding>> held_;
};

std::map<Version, std::string> HeldBy(const NodeReport& report) {
  std::map<Version, std::string> held;
  for (const VersionHolding& holding : report.versions()) {
    held[VersionOf(holding)] = holding.SerializeAsString();
  }
  return held;
}

void ExpectAlike(const Board& board, const Board& other) {
  ASSERT_EQ(board.versions().size(), other.versions().size());
  for (const auto& [version, tally] : board.versions()) {
    const Tally& same = other.versions().at(version);
    EXPECT_EQ(tally.nodes, same.nodes);
    EXPECT_EQ(tally.failures, same.failures);
    EXPECT_EQ(tally.sealed, same.sealed);
    EXPECT_EQ(tally.worlds, same.worlds);
    ASSERT_EQ(tally.passed.size(), same.passed.size());
    for (const auto& [slot, passed] : tally.passed) {
      ASSERT_TRUE(same.passed.contains(slot));
      EXPECT_EQ(passed.rank, same.passed.at(slot).rank);
      EXPECT_EQ(passed.step, same.passed.at(slot).step);
    }
  }
  for (const auto& [slot, report] : board.reports()) {
    EXPECT_EQ(HeldBy(report), HeldBy(*other.Of(slot)));
  }
}

TEST(BoardTest, WhateverWasSaidBeforeOnlyTheNewestReportsCount) {
  DrawnReports drawn;
  Board board;
  std::map<NodeSlot, NodeReport> newest;
  for (int i = 0; i < 2000; ++i) {
    const NodeSlot slot{drawn.Draw(3)};
    NodeReport& report = newest[slot];
    report = drawn.Next(slot);
    if (drawn.Draw(4) != 0) {
      TellBoard(board, slot, report);
    } else if (board.Of(slot) != nullptr) {  // as an answer to a question says it
      const NodeReport rest = *board.Of(slot);
      board.TakeVersions(slot, report.versions(), 7);
      *report.mutable_versions() = board.Of(slot)->versions();
      Board::Versions versions = report.versions();
      report = rest;
      report.mutable_versions()->Swap(&versions);
    } else {
      newest.erase(slot);
      continue;
    }
    Board afresh;
    for (const auto& [other, told] : newest) TellBoard(afresh, other, told);
    ASSERT_NO_FATAL_FAILURE(ExpectAlike(board, afresh)) << "after report " << i;
    const Timeline timeline{1 + drawn.Draw(2)};
    EXPECT_EQ(board.NewestStep(timeline), afresh.NewestStep(timeline)) << "after report " << i;
  }
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
  TellBoard(board_, kNode0, Guarded(0));
  TellBoard(board_, kNode1, By(1, {Sealed(kVersion, {1}, 2)}));
  EXPECT_FALSE(AreProtected());
  TellBoard(board_, kNode1, Guarded(1));
  EXPECT_TRUE(AreProtected());
  // A guard that did not verify is no longer said.
  TellBoard(board_, kNode1, By(1, {Sealed(kVersion, {1}, 2)}));
  EXPECT_FALSE(AreProtected());
}

TEST_F(BoardGroupsTest, WhatWasFoundOfAGroupHoldsForTheRecordsItWasFoundIn) {
  TellBoard(board_, kNode0, Guarded(0));
  TellBoard(board_, kNode1, Guarded(1));
  EXPECT_TRUE(AreProtected());
  // Another memory is in the slot, and what it seals is in no guard.
  state_.view.value.mutable_members(1)->set_incarnation("memory 2");
  state_.present[kNode1].set_incarnation("memory 2");
  NodeReport report = Guarded(1);
  report.set_incarnation("memory 2");
  TellBoard(board_, kNode1, report);
  state_.revision = meta::Revision{2};
  EXPECT_FALSE(AreProtected());
}

// Guards, slabs and processes come and go: what was found before is found again, or looked at anew.
TEST_F(BoardGroupsTest, WhateverWasFoundBeforeOnlyTheNewestReportsCount) {
  std::mt19937_64 random(1);
  std::map<NodeSlot, NodeReport> newest;
  int protected_times = 0;
  for (int i = 0; i < 2000; ++i) {
    const uint64_t slot = random() % 2;
    NodeReport& report = newest[NodeSlot{slot}];
    const uint64_t what = random() % 8;
    if (what == 0) report = By(slot, {});
    if (what == 1) report = By(slot, {Sealed(kVersion, {slot}, 2)});
    if (what >= 2) report = Guarded(slot);
    if (what == 2) report.mutable_versions(0)->set_coding(6);
    if (what == 3) report.set_session(9);  // of a process that is not the present one
    TellBoard(board_, NodeSlot{slot}, report);
    Board afresh;
    for (const auto& [other, told] : newest) TellBoard(afresh, other, told);
    const RollCall roll(state_.view.value, state_.present, afresh.reports());
    const bool expected = afresh.AreGroupsProtected(kVersion, state_, roll);
    ASSERT_EQ(AreProtected(), expected) << "after report " << i;
    protected_times += expected;
  }
  EXPECT_GT(protected_times, 100);
}

}  // namespace
}  // namespace unreft::smp
