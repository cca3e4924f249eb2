// Which memory the leader gives each slot: who is absent, lost or back, and which spare is first.

#include "tests/unit/smp/leader_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;

class LeaderMembershipTest : public LeaderFixture {
 protected:
  // The first attempt, of a job of which nothing is stored.
  LeaderMembershipTest() {
    Ask(1);
    UNREFT_CHECK(decision().kind() == static_cast<uint32_t>(DecisionKind::kFresh));
  }
};

// An upgrade has as much time as a daemon that was killed.
TEST_F(LeaderMembershipTest, WhoSaysGoodByeIsAbsentAtOnceAndLostNoEarlier) {
  AddSpare(7);
  SayGoodBye(NodeSlot{3});
  EXPECT_FALSE(store_->state().present.contains(NodeSlot{3}));
  Settle(std::chrono::milliseconds(1500));
  EXPECT_EQ(view().members(3).incarnation(), "a3") << "the grace has begun with the good-bye";
  EXPECT_FALSE(view().members(3).lost());
  Settle(std::chrono::milliseconds(1500));
  EXPECT_EQ(view().members(3).incarnation(), "spare7");
}

TEST_F(LeaderMembershipTest, WhoHasSaidGoodByeComesBack) {
  AddSpare(7);
  SayGoodBye(NodeSlot{3});
  Settle(std::chrono::milliseconds(1500));
  StartAgain(NodeSlot{3});
  EXPECT_TRUE(store_->state().present.contains(NodeSlot{3}));
  Settle(std::chrono::seconds(5));
  EXPECT_EQ(view().members(3).incarnation(), "a3");
}

TEST_F(LeaderMembershipTest, ASpareTakesTheSlotOfALostNode) {
  AddSpare(4);
  const uint64_t before = view().number();
  EXPECT_EQ(store_->state().spares.size(), 1U);
  Leave(NodeSlot{2});
  EXPECT_EQ(view().members(2).incarnation(), "spare4");
  EXPECT_FALSE(view().members(2).lost());
  EXPECT_EQ(view().number(), before + 1) << "it is one step from lost to taken";
  EXPECT_TRUE(store_->state().spares.empty());
  ASSERT_TRUE(store_->state().present.contains(NodeSlot{2}));
  const PresenceRecord& presence = store_->state().present.at(NodeSlot{2});
  EXPECT_EQ(presence.incarnation(), "spare4");
  EXPECT_EQ(presence.slot(), 2U);
  EXPECT_EQ(presence.address(), "node4");
}

TEST_F(LeaderMembershipTest, TheViewSaysWhereANodeIsAlsoWhileItsDaemonIsAway) {
  EXPECT_EQ(PlaceOf(view().members(2)), 2U);
  AddSpare(4);
  Leave(NodeSlot{2});
  EXPECT_EQ(PlaceOf(view().members(2)), 4U);
  InTurn([&] { spares_.clear(); });
  Settle(seconds(6));
  ASSERT_FALSE(store_->state().present.contains(NodeSlot{2}));
  EXPECT_EQ(PlaceOf(view().members(2)), 4U);
  // A new node in the slot is at the slot's own place.
  Join(NodeSlot{2}, "b");
  Settle(seconds(1));
  EXPECT_EQ(PlaceOf(view().members(2)), 2U);
}

TEST_F(LeaderMembershipTest, WhoComesBackToASlotThatASpareTookIsRefused) {
  AddSpare(4);
  Leave(NodeSlot{2});
  Join(NodeSlot{2});  // the memory that was lost
  Settle(seconds(3));
  EXPECT_EQ(view().members(2).incarnation(), "spare4");
  absl::Status status;
  const std::string report = nodes_.at(NodeSlot{2}).report.SerializeAsString();
  InTurn([&] { status = leader_->OnReport(NodeSlot{2}, report).status(); });
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

TEST_F(LeaderMembershipTest, OneSpareIsForOneSlot) {
  AddSpare(4);
  InTurn([&] { nodes_.erase(NodeSlot{1}); });
  Leave(NodeSlot{3});
  EXPECT_NE(view().members(1).lost(), view().members(3).lost());
  const int taken = view().members(1).lost() ? 3 : 1;
  EXPECT_EQ(view().members(taken).incarnation(), "spare4");
  AddSpare(5);
  Settle(seconds(1));
  EXPECT_EQ(view().members(4 - taken).incarnation(), "spare5");
}

TEST_F(LeaderMembershipTest, ASpareThatIsGoneIsNotTaken) {
  AddSpare(4);
  InTurn([&] { spares_.clear(); });
  Settle(seconds(4));
  EXPECT_TRUE(store_->state().spares.empty());
  Leave(NodeSlot{2});
  EXPECT_TRUE(view().members(2).lost());
}

TEST_F(LeaderMembershipTest, ASlotIsFreeAgainWhenItsSpareIsLost) {
  AddSpare(4);
  Leave(NodeSlot{2});
  InTurn([&] { spares_.clear(); });
  Settle(seconds(6));
  EXPECT_TRUE(view().members(2).lost());
  EXPECT_EQ(view().members(2).incarnation(), "spare4");
}

TEST_F(LeaderMembershipTest, TheSpareOfAnotherFailureDomainThanTheGroupsComesFirst) {
  AddSpare(4, "rack");
  AddSpare(5, "rack");
  AddSpare(6, "other");
  Leave(NodeSlot{2});
  EXPECT_EQ(view().members(2).failure_domain(), "rack");
  Leave(NodeSlot{3});
  EXPECT_EQ(view().members(3).failure_domain(), "other");
}

}  // namespace
}  // namespace unreft::smp
