// A meta store that was lost or rolled back knows less than the nodes remember (PROTOCOL rule 3).

#include "tests/unit/smp/leader_fixture.h"

namespace unreft::smp {
namespace {

Version At(uint64_t timeline, uint64_t step) { return {Timeline{timeline}, Step{step}}; }

class LeaderStoreLossTest : public LeaderFixture {
 protected:
  // Version 1:5 is committed, and every node has heard of it.
  LeaderStoreLossTest() {
    Ask(1);
    Protect(At(1, 4));
    ReportAll();
    ReportAll();
    older_ = kv_store_.TakeCopy();
    Protect(At(1, 5));
    ReportAll();
    ReportAll();
    UNREFT_CHECK(VersionOf(commit()) == At(1, 5));
  }

  // A node that had not heard of it, and of whose memory nothing of it is left.
  void HearNothing(NodeSlot slot) {
    ReportingNode& node = nodes_.at(slot);
    node.report.set_committed_step(4);
    node.versions.erase(At(1, 5));
  }

  FakeKvStore::Copy older_;
};

TEST_F(LeaderStoreLossTest, WhatOneNodeRemembersIsWrittenOnceAllHaveTold) {
  for (const uint64_t slot : {0, 1, 3}) HearNothing(NodeSlot{slot});
  LoseStore();
  for (const uint64_t slot : {0, 1, 3}) Report(NodeSlot{slot});
  Settle();
  EXPECT_EQ(commit().world(), 0U) << "node 2 may know more";
  Report(NodeSlot{2});
  Settle();
  EXPECT_EQ(VersionOf(commit()), At(1, 5));
  EXPECT_EQ(commit().world(), kNodes);
  EXPECT_EQ(store_->state().timeline.value.chain(0).timeline(), 1U);
}

TEST_F(LeaderStoreLossTest, AStoreThatWentBackToAnEarlierCommitIsToldOfTheLater) {
  LoseStore(&older_);
  EXPECT_EQ(VersionOf(commit()), At(1, 4));
  ReportAll();
  EXPECT_EQ(VersionOf(commit()), At(1, 5));
}

// So that a restore says what is lost, and not that nothing was ever stored (rule 22).
TEST_F(LeaderStoreLossTest, ACommitOfWhichNothingIsLeftIsStillACommit) {
  for (auto& [slot, node] : nodes_) node.versions.clear();
  LoseStore();
  Ask(2);
  EXPECT_EQ(decision().kind(), static_cast<uint32_t>(DecisionKind::kFailed));
  EXPECT_NE(decision().status_message().find("version 1:5 of 4 ranks was committed"),
            std::string::npos)
      << decision().status_message();
}

}  // namespace
}  // namespace unreft::smp
