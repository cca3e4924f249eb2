// Who is in a protection group after a decision, and who is left out.
#include "smp/job/formation.h"

#include "smp/job/commit_rules.h"
#include "smp/job/decision_rules.h"
#include "smp/job/obstacles.h"
#include "smp/job/view_rules.h"
#include "tests/unit/smp/rules_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr Version kVersion{Timeline{1}, Step{5}};

std::vector<std::vector<uint64_t>> SlotsOf(const ViewRecord& view) {
  std::vector<std::vector<uint64_t>> slots;
  for (const Group& group : view.groups()) {
    slots.emplace_back(group.slots().begin(), group.slots().end());
  }
  return slots;
}

// Node 1 is lost, and version 1:5 is committed; one rank asks, of node 0.
class FormationTest : public RulesFixture {
 protected:
  FormationTest() {
    RecordCommit(kVersion);
    Protect(kVersion);
    for (uint64_t slot = 0; slot < kNodes; ++slot) {
      Report(slot).set_any_world(true);
      Report(slot).set_any_groups(true);
      Tell(slot);
    }
    LoseNode();
    AskFromNode0();
  }

  void LoseNode() {
    Lose(1);
    records_.view.value.mutable_members(1)->set_lost(true);
  }
  void ComeBack() {
    Enter(1);
    records_.view.value.mutable_members(1)->set_lost(false);
    Report(1).set_round_closed(records_.timeline.value.round());
    Tell(1);
  }
  void AskFromNode0() {
    TimelineRecord& timeline = records_.timeline.value;
    timeline.set_closing(true);
    timeline.set_round(1);
    timeline.set_attempt(1);
    timeline.set_world(1);
    timeline.clear_asked();
    AddAsked(0, 11);
    reading_.Follow(1);
    NodeReport& report = Report(0);
    report.set_round_closed(1);
    report.set_ranks(1);
    report.clear_asking();
    report.add_asking()->set_pid(11);
    Tell(0);
  }
  void AddAsked(uint64_t slot, int64_t pid) {
    AskingRank& asked = *records_.timeline.value.add_asked();
    asked.set_rank(slot);
    asked.set_pid(pid);
    asked.set_slot(slot);
  }
  void ReadAll() {
    for (uint64_t slot = 0; slot < kNodes; ++slot) {
      reading_.End(RoundReading::LifeOf(NodeSlot{slot}, Report(slot)), kVersion);
    }
  }
  Move Decide() {
    ReadAll();
    return Ask(&DecisionRule);
  }
  // What was decided is in the records, and its timeline is open.
  void Follow(const Move& decided) {
    records_.timeline.value = *decided.write->timeline;
    records_.view.value = *decided.write->view;
    if (decided.write->commit) records_.commit.value = *decided.write->commit;
    Report(0).clear_asking();
    Tell(0);
  }
};

TEST_F(FormationTest, ANodeThatIsLostWhenADecisionIsMadeIsLeftOut) {
  const Move move = Decide();
  ASSERT_TRUE(move.write && move.write->view && move.write->timeline && move.write->commit);
  const ViewRecord& view = *move.write->view;
  EXPECT_EQ(view.number(), 2U);
  EXPECT_EQ(view.members_size(), 2) << "it stays a member";
  EXPECT_THAT(SlotsOf(view), ElementsAre(ElementsAre(0)));
  EXPECT_EQ(view.groups(0).k(), 1U);
  EXPECT_EQ(view.exposure(),
            "1 of 2 nodes is left, in groups that stand the loss of 0: 1 was asked for");
  EXPECT_THAT(TextsOf(move),
              Contains(AllOf(HasSubstr("nodes 0 as RS(1,0)"), HasSubstr("node 1 is left out"))));
  // It is decoded in the groups that it is encoded in.
  EXPECT_EQ(move.write->commit->groups(0).slots_size(), 2);
  EXPECT_EQ(VersionOf(*move.write->commit), kVersion);
}

TEST_F(FormationTest, WithNothingCommittedItIsLeftOutToo) {
  records_.commit = {};
  Report(0).clear_versions();
  Tell(0);
  const Move move = Decide();
  ASSERT_TRUE(move.write && move.write->view);
  EXPECT_THAT(SlotsOf(*move.write->view), ElementsAre(ElementsAre(0)));
}

// Else some version of it would be encoded in the old groups, and another in the new ones.
TEST_F(FormationTest, NewGroupsHaveATimelineOfTheirOwn) {
  TimelineEntry& entry = *records_.timeline.value.add_chain();
  entry.set_timeline(2);
  entry.set_parent_timeline(1);
  entry.set_parent_step(5);
  DecisionRecord& last = *records_.timeline.value.mutable_decision();
  last.set_timeline(2);
  last.add_asked()->set_pid(11);
  Report(0).set_newest_timeline(2);
  Tell(0);
  EXPECT_EQ(NewestTimeline(*Decide().write->timeline), Timeline{3});
  records_.view.value.mutable_groups(0)->mutable_slots()->RemoveLast();
  records_.view.value.mutable_groups(0)->set_k(1);
  const Move again = Decide();
  EXPECT_FALSE(again.write->view) << "the formation is that";
  EXPECT_EQ(NewestTimeline(*again.write->timeline), Timeline{2});
}

TEST_F(FormationTest, WhoIsBackIsInWithTheNextDecision) {
  Follow(Decide());
  ComeBack();
  EXPECT_TRUE(IsNone(Ask(&ViewRule))) << "not before";
  EXPECT_EQ(Report(1).asking_size(), 0);
  AskFromNode0();
  ComeBack();
  const Move move = Decide();
  ASSERT_TRUE(move.write && move.write->view);
  EXPECT_THAT(SlotsOf(*move.write->view), ElementsAre(ElementsAre(0, 1)));
  EXPECT_EQ(move.write->view->exposure(), "");
  EXPECT_THAT(TextsOf(move), Contains(HasSubstr("all nodes are in again")));
}

// It may be cut off from the store alone, and its rank train on.
TEST_F(FormationTest, ALostNodeFromWhichARankAskedIsIn) {
  AddAsked(1, 12);
  records_.timeline.value.set_world(2);
  const Move move = Decide();
  ASSERT_TRUE(move.write);
  EXPECT_FALSE(move.write->view);
}

// In one decision: who is back is in, though a rank of a lost node has asked.
TEST_F(FormationTest, WhoIsBackIsInBesideALostNodeFromWhichARankAsked) {
  ViewRecord& view = records_.view.value;
  ViewMember& third = *view.add_members();
  third.set_slot(2);
  third.set_incarnation(Memory(2));
  Enter(2);
  Report(2).set_any_groups(true);
  Report(2).set_round_closed(1);
  Tell(2);
  AddAsked(1, 12);
  AddAsked(2, 13);
  records_.timeline.value.set_world(3);
  const Move move = Decide();
  ASSERT_TRUE(move.write && move.write->view);
  EXPECT_THAT(SlotsOf(*move.write->view), ElementsAre(ElementsAre(0, 1, 2)));
}

// Its host may be taken away then, and nothing waits for it.
TEST_F(FormationTest, ANodeThatAnOrderLeavesOutIsLeftOutThoughItIsThere) {
  ComeBack();
  ASSERT_FALSE(Decide().write->view) << "the formation is that";
  records_.timeline.value.mutable_resize()->add_without(1);
  const Move move = Decide();
  ASSERT_TRUE(move.write && move.write->view && move.write->timeline);
  EXPECT_THAT(SlotsOf(*move.write->view), ElementsAre(ElementsAre(0)));
  EXPECT_THAT(TextsOf(move),
              Contains(HasSubstr("node 1 is left out by the order of 'unreft resize'")));
  EXPECT_TRUE(move.write->timeline->has_resize()) << "it stands";
  Follow(move);
  AskFromNode0();
  EXPECT_FALSE(Decide().write->view) << "it is in no group";
  records_.timeline.value.clear_resize();
  const Move again = Decide();
  ASSERT_TRUE(again.write && again.write->view);
  EXPECT_THAT(SlotsOf(*again.write->view), ElementsAre(ElementsAre(0, 1)));
}

TEST_F(FormationTest, ANodeFromWhichARankAsksIsInWhateverIsOrdered) {
  ComeBack();
  records_.timeline.value.mutable_resize()->add_without(1);
  AddAsked(1, 12);
  records_.timeline.value.set_world(2);
  EXPECT_FALSE(Decide().write->view);
}

TEST_F(FormationTest, ARoundThatAnEarlierReleaseBeganKeepsTheGroups) {
  records_.timeline.value.mutable_asked(0)->clear_slot();
  const Move move = Decide();
  ASSERT_TRUE(move.write);
  EXPECT_FALSE(move.write->view);
}

TEST_F(FormationTest, ADaemonThatKnowsTheFirstGroupsAloneKeepsThem) {
  Report(0).set_any_groups(false);
  Tell(0);
  const Move move = Decide();
  ASSERT_TRUE(move.write);
  EXPECT_FALSE(move.write->view);
}

TEST_F(FormationTest, NothingIsWaitedForOfWhoIsLeftOut) {
  Follow(Decide());
  const NodeSlot out{1};
  EXPECT_FALSE(IsIn(records_.view.value, out));
  ComeBack();
  records_.present[out].set_session(2);  // and has told nothing yet
  const RollCall roll = CallRoll();
  EXPECT_FALSE(roll.have_all_told());
  EXPECT_TRUE(roll.have_all_in_told());
  EXPECT_THAT(DescribeObstacles(FactsOf(roll), absl::OkStatus()), Not(HasSubstr("node 1")));
}

TEST_F(FormationTest, ASpareTakesALostSlotThatIsInBeforeOneThatIsLeftOut) {
  ViewRecord& view = records_.view.value;
  ViewMember& third = *view.add_members();
  third.set_slot(2);
  third.set_incarnation(Memory(2));
  third.set_lost(true);
  Group& group = *view.mutable_groups(0);
  group.clear_slots();
  group.add_slots(0);
  group.add_slots(2);
  records_.timeline.value.set_closing(false);
  AddSpare(7);
  const Move move = Ask(&ViewRule);
  ASSERT_TRUE(move.write && move.write->takeover);
  EXPECT_EQ(move.write->takeover->slot, NodeSlot{2}) << "node 1 is left out";
}

TEST_F(FormationTest, TheLossOfWhoIsLeftOutStopsNothing) {
  Follow(Decide());
  ComeBack();
  Lose(1);
  const Move move = Ask(&ViewRule);
  ASSERT_TRUE(move.write && move.write->view);
  EXPECT_THAT(TextsOf(move),
              Contains(AllOf(HasSubstr("node 1 is lost"), HasSubstr("in no protection group"))));
}

// Three nodes of four as RS(1,2), right after the decision.
class LowerFormationTest : public RulesFixture {
 protected:
  LowerFormationTest() {
    options_.data_chunks = 2;
    options_.parity_chunks = 2;
    ViewRecord& view = records_.view.value;
    Group& group = *view.mutable_groups(0);
    for (uint64_t slot = 2; slot < 4; ++slot) {
      ViewMember& member = *view.add_members();
      member.set_slot(slot);
      member.set_incarnation(Memory(slot));
      member.set_place(slot);
      member.set_lost(slot == 3);
    }
    group.add_slots(2);
    Enter(2);
    Tell(2);
  }
  void Lack(uint64_t slot) {
    Report(slot).set_lacks_memory(true);
    Tell(slot);
  }
};

TEST_F(LowerFormationTest, WhereMemoryIsShortThereIsOneParityLess) {
  EXPECT_TRUE(IsNone(Ask(&ViewRule)));
  Lack(2);
  const Move move = Ask(&ViewRule);
  ASSERT_TRUE(move.write && move.write->view);
  EXPECT_EQ(move.write->view->groups(0).k(), 2U);
  EXPECT_EQ(move.write->view->number(), 2U);
  EXPECT_THAT(move.write->view->exposure(),
              HasSubstr("stand the loss of 1: 2 was asked for, and memory is short for more"));
  EXPECT_THAT(TextsOf(move), ElementsAre(HasSubstr("node 2 has too little memory for 2 parities")));
  records_.view.value = *move.write->view;
  EXPECT_TRUE(IsNone(Ask(&ViewRule))) << "it has yet to try with these";
  Report(2).set_view(2);
  TellBoard(board_, NodeSlot{2}, Report(2));
  EXPECT_TRUE(IsNone(Ask(&ViewRule))) << "one is the least";
}

TEST_F(LowerFormationTest, WhatAJobWasStartedWithIsKept) {
  Lack(2);
  records_.view.value.mutable_members()->RemoveLast();
  EXPECT_TRUE(IsNone(Ask(&ViewRule)));
}

TEST_F(LowerFormationTest, WhatWasCommittedSinceSaysThatItFits) {
  Lack(2);
  RecordCommit(kVersion);
  EXPECT_TRUE(IsNone(Ask(&ViewRule)));
  records_.timeline.value.add_chain()->set_timeline(2);
  EXPECT_FALSE(IsNone(Ask(&ViewRule))) << "it is of the timeline before";
}

}  // namespace
}  // namespace unreft::smp
