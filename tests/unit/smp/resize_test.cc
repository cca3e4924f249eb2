// An operator's order on which nodes the job is to run (docs/protocol.md, rule 32).
#include "smp/job/resize.h"

#include "tests/unit/smp/rules_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ResizeTest : public RulesFixture {
 protected:
  ResizeTest() { options_.nodes = 4; }

  absl::StatusOr<meta::JobChange> Order(std::optional<uint64_t> nodes,
                                        const std::vector<uint64_t>& without = {}) {
    ResizeRequest request;
    ResizeOrder& order = *request.mutable_order();
    if (nodes) order.set_nodes(*nodes);
    order.mutable_without()->Assign(without.begin(), without.end());
    order.set_ordered_s(7);
    return OrderResize(request, records_, options_);
  }
  absl::StatusOr<meta::JobChange> Cancel() {
    ResizeRequest request;
    request.set_cancel(true);
    return OrderResize(request, records_, options_);
  }
  void Write(const meta::JobChange& change) { records_.timeline.value = *change.timeline; }
  void ExpectWrong(const absl::Status& status, const char* why) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
  void RunRanks(uint64_t slot, uint64_t ranks) {
    Report(slot).set_ranks(ranks);
    Tell(slot);
  }
};

TEST_F(ResizeTest, AnOrderIsWrittenBesideWhatTheRecordHas) {
  records_.timeline.value.mutable_rewind()->set_timeline(1);
  const auto change = Order(3, {2, 1, 2});
  ASSERT_FALSE(change.ok()) << "2 nodes are left";
  const auto fits = Order(2, {2, 1, 2});
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_FALSE(fits->pins || fits->view || fits->commit);
  EXPECT_EQ(fits->timeline->rewind().timeline(), 1U);
  EXPECT_EQ(fits->timeline->resize().nodes(), 2U);
  EXPECT_THAT(fits->timeline->resize().without(), ElementsAre(1, 2));
  EXPECT_EQ(fits->timeline->resize().ordered_s(), 7U);
  EXPECT_EQ(DescribeOrder(*fits->timeline), "the job is to run on 2 nodes, without node 1, 2");
  Write(*fits);
  const auto other = Order({}, {3});
  EXPECT_FALSE(other->timeline->resize().has_nodes()) << "it takes the place of the one before";
  EXPECT_EQ(DescribeOrder(*other->timeline), "the job is to run without node 3");
  EXPECT_EQ(DescribeOrder(*Order(4)->timeline), "the job is to run on 4 nodes");
}

TEST_F(ResizeTest, AnOrderIsTakenBackOnce) {
  Write(*Order(3));
  Write(*Cancel());
  EXPECT_FALSE(records_.timeline.value.has_resize());
  EXPECT_TRUE(absl::IsNotFound(Cancel().status()));
}

TEST_F(ResizeTest, WhatTheJobDoesNotHaveCannotBeOrdered) {
  ExpectWrong(Order(0).status(), "0 nodes: needed 1 to 4");
  ExpectWrong(Order(5).status(), "5 nodes: needed 1 to 4, the most that the job can have");
  ExpectWrong(Order({}, {4}).status(), "node 4 cannot be left out: needed one of 0 to 3");
  ExpectWrong(Order({}, {0, 1, 2, 3}).status(), "all 4 nodes of the job are left out");
  ExpectWrong(Order(3, {0, 1}).status(),
              "3 nodes without node 0, 1: needed 3 others, found 2 of the job's 4");
  ExpectWrong(Order({}).status(), "found neither");
  options_.nodes = 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(Order(1).status()));
  EXPECT_THAT(std::string(Order(1).status().message()), HasSubstr("several nodes is needed"));
}

TEST_F(ResizeTest, ItIsMetOnceRanksRunAsIsOrdered) {
  RunRanks(0, 2);
  RecordCommit(At(1, 5));
  const ResizeReply none = DescribeResize(records_, CallRoll());
  EXPECT_FALSE(none.has_order());
  EXPECT_THAT(none.running(), ElementsAre(0));
  EXPECT_THAT(none.there(), ElementsAre(0, 1));
  EXPECT_EQ(VersionOf(none), At(1, 5));
  Write(*Order(2));
  EXPECT_FALSE(DescribeResize(records_, CallRoll()).met());
  RunRanks(1, 1);
  EXPECT_TRUE(DescribeResize(records_, CallRoll()).met());
  Write(*Order({}, {1}));
  EXPECT_FALSE(DescribeResize(records_, CallRoll()).met());
  RunRanks(1, 0);
  EXPECT_TRUE(DescribeResize(records_, CallRoll()).met());
  RunRanks(0, 0);
  EXPECT_FALSE(DescribeResize(records_, CallRoll()).met()) << "none run";
}

TEST_F(ResizeTest, LostNodesAreNamed) {
  EXPECT_THAT(DescribeResize(records_, CallRoll()).lost(), IsEmpty());
  records_.view.value.mutable_members(1)->set_lost(true);
  EXPECT_THAT(DescribeResize(records_, CallRoll()).lost(), ElementsAre(1));
}

TEST_F(ResizeTest, NodesWithoutRanksAreLeftOutAsIsOrdered) {
  const std::set<NodeSlot> all{NodeSlot{0}, NodeSlot{1}, NodeSlot{2}, NodeSlot{3}};
  const std::set<NodeSlot> two{NodeSlot{0}, NodeSlot{2}};
  const auto out = [&](const std::set<NodeSlot>& asking) {
    return LeftOutByOrder(records_.timeline.value, all, asking);
  };
  EXPECT_THAT(out(two), IsEmpty()) << "nothing is ordered";
  Write(*Order(2));
  EXPECT_THAT(out(two), ElementsAre(NodeSlot{1}, NodeSlot{3}));
  EXPECT_THAT(out(all), IsEmpty()) << "their launcher did not heed it";
  Write(*Order(3));
  EXPECT_THAT(out(two), ElementsAre(NodeSlot{3})) << "node 1 is of the three";
  Write(*Order({}, {1}));
  EXPECT_THAT(out(two), ElementsAre(NodeSlot{1}));
  EXPECT_THAT(out({NodeSlot{1}}), IsEmpty());
}

}  // namespace
}  // namespace unreft::smp
