// Which view the leader writes, and that it writes none otherwise.
#include "smp/job/view_rules.h"

#include "tests/unit/smp/rules_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ViewRulesTest : public RulesFixture {
 protected:
  Move Next() { return Ask(&ViewRule); }
};

TEST_F(ViewRulesTest, AViewThatIsAsItShouldBeIsLeftAlone) {
  EXPECT_TRUE(IsNone(Next()));
  EXPECT_FALSE(Next().wake);
}

TEST_F(ViewRulesTest, WhoIsAwayIsLostOnceItsGraceIsOver) {
  records_.present.erase(NodeSlot{1});
  FollowAbsences();
  Move move = Next();
  EXPECT_TRUE(IsNone(move));
  EXPECT_EQ(move.wake, now_ + options_.lost_grace);
  now_ += options_.lost_grace;
  move = Next();
  ASSERT_TRUE(move.write && move.write->view);
  EXPECT_EQ(move.write->view->number(), 2U);
  EXPECT_FALSE(move.write->view->members(0).lost());
  EXPECT_TRUE(move.write->view->members(1).lost());
  EXPECT_THAT(move.write->absent, ElementsAre(NodeSlot{1})) << "our watch may be behind";
  EXPECT_THAT(TextsOf(move)[0], HasSubstr("node 1 is lost"));
}

TEST_F(ViewRulesTest, TheGraceOfOneThatIsBackIsOver) {
  Lose(1);
  Enter(1);
  FollowAbsences();
  EXPECT_TRUE(IsNone(Next()));
}

// It had the key in a store that had lost the view, and that is as it was again.
TEST_F(ViewRulesTest, AnEmptyMemoryIsNotTakenBeforeTheOneBeforeItIsLost) {
  records_.present[NodeSlot{1}].set_incarnation("empty memory");
  FollowAbsences();
  Move move = Next();
  EXPECT_TRUE(IsNone(move));
  EXPECT_EQ(move.wake, now_ + options_.lost_grace);
  now_ += options_.lost_grace;
  move = Next();
  ASSERT_TRUE(move.write && move.write->view);
  EXPECT_TRUE(move.write->view->members(1).lost());
  EXPECT_EQ(move.write->view->members(1).incarnation(), Memory(1));
  records_.view.value = *move.write->view;
  move = Next();
  ASSERT_TRUE(move.write && move.write->view);
  EXPECT_FALSE(move.write->view->members(1).lost());
  EXPECT_EQ(move.write->view->members(1).incarnation(), "empty memory");
}

TEST_F(ViewRulesTest, AMemoryThatALaterViewHadNamedHasItsSlotInAStoreThatWentBack) {
  records_.present[NodeSlot{1}].set_incarnation("later memory");
  Report(1).set_incarnation("later memory");
  Report(1).set_view(0);
  TellBoard(board_, NodeSlot{1}, Report(1));
  EXPECT_TRUE(IsNone(Next())) << "no view has named it";
  Report(1).set_view(2);
  TellBoard(board_, NodeSlot{1}, Report(1));
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->view);
  EXPECT_EQ(move.write->view->members(1).incarnation(), "later memory");
  EXPECT_EQ(move.write->view->number(), 3U);
}

TEST_F(ViewRulesTest, OfOneThatHasSaidGoodByeTheGraceBeginsWithItsLeasesEnd) {
  records_.leaving.insert(NodeSlot{1});
  Lose(1);
  EXPECT_TRUE(IsNone(Next()));
  records_.leaving.clear();
  Lose(1);
  EXPECT_TRUE(Next().write);
}

TEST_F(ViewRulesTest, ASpareTakesALostSlotOfItsFailureDomainFirst) {
  for (int slot = 0; slot < 2; ++slot) {
    records_.view.value.mutable_members(slot)->set_failure_domain(slot == 0 ? "a" : "b");
  }
  AddSpare(7, "a");
  EXPECT_TRUE(IsNone(Next())) << "nobody is lost";
  AddSpare(8, "b");
  Lose(1);
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->takeover);
  EXPECT_EQ(move.write->takeover->place, 8U);
  EXPECT_EQ(move.write->takeover->slot, NodeSlot{1});
  EXPECT_FALSE(move.write->view->members(1).lost());
  EXPECT_EQ(move.write->view->members(1).incarnation(), "spare memory");
  EXPECT_THAT(TextsOf(move), ElementsAre("node 1 has new memory, that of spare 8", HasSubstr("2")));
}

// An earlier memory of a slot, whose daemon is back.
class WaitingTest : public ViewRulesTest {
 protected:
  WaitingRecord& AddWaiting(uint64_t slot) {
    meta::Stored<WaitingRecord>& waiting = records_.waiting[slot];
    waiting.modified = meta::Revision{3};
    waiting.value.set_lease(1);
    waiting.value.mutable_presence()->set_slot(slot);
    waiting.value.mutable_presence()->set_incarnation("earlier memory");
    return waiting.value;
  }
  WaitingRecord& AddAsking(uint64_t slot, uint64_t attempt) {
    WaitingRecord& waiting = AddWaiting(slot);
    waiting.set_ranks(1);
    waiting.set_asking(1);
    waiting.set_attempt(attempt);
    waiting.set_world(kNodes);
    return waiting;
  }
};

TEST_F(WaitingTest, HasItsSlotAgainWhereItsRanksTrainUnlessTheOtherHasSome) {
  EXPECT_EQ(AddWaiting(1).ranks(), 0U);
  EXPECT_TRUE(IsNone(Next()));
  AddWaiting(1).set_ranks(2);
  Move move = Next();
  ASSERT_TRUE(move.write && move.write->takeover);
  EXPECT_TRUE(move.write->takeover->returns);
  EXPECT_EQ(move.write->view->members(1).incarnation(), "earlier memory");
  Report(1).set_ranks(1);
  Tell(1);
  EXPECT_TRUE(IsNone(Next()));
}

// Those of an attempt that is over, whose launcher could not reach them, had the slot given back
// between two others: rank 0 of the next had asked the one that lost it so.
TEST_F(WaitingTest, HasItsSlotAgainWhereItsRanksAskWhenNoOthersAreLacking) {
  AddAsking(1, 5);
  EXPECT_TRUE(IsNone(Next()));
  Report(0).set_attempt(6);
  Report(0).set_world(kNodes);
  Report(0).add_asking()->set_rank(0);
  Tell(0);
  EXPECT_TRUE(IsNone(Next())) << "another attempt's";
  Report(0).set_attempt(5);
  Tell(0);
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->takeover);
  EXPECT_TRUE(move.write->takeover->returns);
}

TEST_F(WaitingTest, TwoForOneAttemptHaveTheirSlotsAgain) {
  AddAsking(0, 5);
  AddAsking(1, 6);
  EXPECT_TRUE(IsNone(Next()));
  AddAsking(1, 5);
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->takeover);
  EXPECT_EQ(move.write->takeover->slot, NodeSlot{0});
}

// It was left out from the beginning; what it says of itself counts from now on.
class ToComeTest : public RulesFixture {
 protected:
  ToComeTest() {
    options_.nodes = 3;
    ViewMember& member = *records_.view.value.add_members();
    member.set_slot(2);
    member.set_place(2);
    member.set_lost(true);
  }
  Move Next() { return Ask(&ViewRule); }
};

TEST_F(ToComeTest, IsTakenInWithItsFailureDomainAndIsInNoGroup) {
  EXPECT_TRUE(IsNone(Next()));
  Enter(2);
  records_.present[NodeSlot{2}].set_failure_domain("rack");
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->view);
  const ViewMember& member = move.write->view->members(2);
  EXPECT_FALSE(member.lost());
  EXPECT_EQ(member.incarnation(), Memory(2));
  EXPECT_EQ(member.failure_domain(), "rack");
  EXPECT_EQ(move.write->view->groups(0).slots_size(), 2);
  EXPECT_THAT(TextsOf(move), ElementsAre("node 2 has come; it is left out until the job restarts",
                                         "view 2: 3 nodes, none is lost"));
}

TEST_F(ToComeTest, ItsSlotIsNoSpares) {
  AddSpare(7);
  EXPECT_TRUE(IsNone(Next()));
  Lose(1);
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->takeover);
  EXPECT_EQ(move.write->takeover->slot, NodeSlot{1});
  EXPECT_THAT(TextsOf(move).back(), HasSubstr("none is lost; node 2 has not come yet"));
}

class FirstViewTest : public RulesFixture {
 protected:
  FirstViewTest() {
    records_.view = {};
    records_.seed = {};
  }
  Move Next() { return Ask(&FirstView); }
};

TEST_F(FirstViewTest, WaitsForAllNodesAndTheirReports) {
  records_.present.erase(NodeSlot{1});
  EXPECT_TRUE(Next().waits);
  Enter(1);
  Move move = Next();
  ASSERT_TRUE(move.write && move.write->view);
  EXPECT_EQ(move.write->view->members_size(), 2);
  EXPECT_EQ(move.write->view->groups_size(), 1);
  records_.present[NodeSlot{1}].set_session(2);
  move = Next();
  EXPECT_TRUE(move.waits && !move.write) << "of an earlier process";
}

TEST_F(FirstViewTest, GroupsThatCannotBeAreSaid) {
  options_.parity_chunks = 2;
  const Move move = Next();
  EXPECT_FALSE(move.write);
  ASSERT_FALSE(move.say.empty());
  EXPECT_EQ(move.say[0].level, LogLevel::kError);
}

// A number names one view, whatever the store has forgotten.
TEST_F(FirstViewTest, ItsNumberIsOneThatNoNodeHasHeardOf) {
  Report(1).set_view(7);
  TellBoard(board_, NodeSlot{1}, Report(1));
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->view);
  EXPECT_EQ(move.write->view->number(), 8U);
}

// Four nodes, of which two are enough to begin with, and know nothing of any job.
class BeginsWithFewerTest : public FirstViewTest {
 protected:
  BeginsWithFewerTest() {
    options_.nodes = 4;
    options_.nodes_min = 2;
    for (uint64_t slot = 0; slot < 2; ++slot) {
      Report(slot).set_view(0);
      TellBoard(board_, NodeSlot{slot}, Report(slot));
    }
    absences_.Follow(records_, {}, options_.nodes, now_);
  }
  void TellThatItIsNew(uint64_t slot) {
    Enter(slot);
    Tell(slot);
    Report(slot).set_view(0);
    TellBoard(board_, NodeSlot{slot}, Report(slot));
    absences_.Follow(records_, {}, options_.nodes, now_);
  }
};

TEST_F(BeginsWithFewerTest, OnceTheGraceOfTheOthersIsOver) {
  EXPECT_TRUE(Next().waits && !Next().write);
  now_ += options_.lost_grace;
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->view);
  const ViewRecord& view = *move.write->view;
  ASSERT_EQ(view.members_size(), 4);
  ASSERT_EQ(view.groups_size(), 1);
  EXPECT_THAT(view.groups(0).slots(), ElementsAre(0, 1));
  for (int slot = 0; slot < 4; ++slot) {
    EXPECT_EQ(view.members(slot).slot(), static_cast<uint64_t>(slot));
    EXPECT_EQ(view.members(slot).place(), static_cast<uint64_t>(slot));
    EXPECT_EQ(view.members(slot).lost(), slot >= 2);
    EXPECT_EQ(view.members(slot).incarnation(), slot >= 2 ? "" : Memory(slot));
  }
  EXPECT_THAT(TextsOf(move),
              ElementsAre(HasSubstr("begins with 2 of 4 nodes: node 2, 3 is left out"),
                          "view 1: 4 nodes, none is lost; node 2, 3 has not come yet"));
}

TEST_F(BeginsWithFewerTest, NotWithFewerThanItMay) {
  options_.nodes_min = 3;
  now_ += options_.lost_grace;
  EXPECT_FALSE(Next().write);
}

TEST_F(BeginsWithFewerTest, WithAllThatAreThereByThen) {
  TellThatItIsNew(3);
  EXPECT_FALSE(Next().write);
  now_ += options_.lost_grace;
  Move move = Next();
  ASSERT_TRUE(move.write && move.write->view);
  EXPECT_THAT(move.write->view->groups(0).slots(), ElementsAre(0, 1, 3));
  now_ -= options_.lost_grace;
  TellThatItIsNew(2);
  move = Next();
  ASSERT_TRUE(move.write && move.write->view) << "nobody is waited for";
  EXPECT_EQ(move.write->view->groups_size(), 2);
}

// The others may know more: the job is not begun anew without them.
TEST_F(BeginsWithFewerTest, NotWhereSomebodyKnowsOfAJob) {
  now_ += options_.lost_grace;
  Report(1).set_kept_epoch(1);
  TellBoard(board_, NodeSlot{1}, Report(1));
  EXPECT_FALSE(Next().write);
}

TEST_F(BeginsWithFewerTest, InGroupsOfAsManyAsThereAre) {
  options_.parity_chunks = 2;
  options_.data_chunks = 2;
  now_ += options_.lost_grace;
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->view);
  EXPECT_EQ(move.write->view->groups(0).k(), 1U);
  EXPECT_THAT(move.write->view->exposure(), HasSubstr("stand the loss of 1: 2 was asked for"));
}

}  // namespace
}  // namespace unreft::smp
