// A fresh start by an operator's order: what it costs, and which timeline it opens; and what would
// be restored without one.

#include <gmock/gmock.h>

#include "tests/unit/smp/leader_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

class LeaderFreshStartTest : public LeaderFixture {
 protected:
  LeaderFreshStartTest() {
    Ask(1);
    Protect(At(1, 5));
    ReportAll();
    UNREFT_CHECK(VersionOf(commit()) == At(1, 5));
  }

  absl::StatusOr<uint64_t> Declare(bool force) {
    absl::StatusOr<uint64_t> opens = absl::UnknownError("no answer");
    InTurn([&] {
      leader_->DeclareFreshStart(NodeSlot{2}, force, [&](auto answer) { opens = answer; });
    });
    Settle();
    return opens;
  }
  void SetRanks(uint64_t ranks) {
    for (auto& [slot, node] : nodes_) node.report.set_ranks(ranks);
    ReportAll();
  }
};

TEST_F(LeaderFreshStartTest, IsRefusedWhileRanksAreConnected) {
  SetRanks(2);
  const auto refused = Declare(false);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("needed 0, found 8"), HasSubstr("--force")));
  EXPECT_EQ(VersionOf(commit()), At(1, 5));
  EXPECT_EQ(commit().world(), 4U);
}

TEST_F(LeaderFreshStartTest, ByForceItIsDeclaredAndSaidWhatItCosts) {
  SetRanks(1);
  const auto opens = Declare(true);
  ASSERT_TRUE(opens.ok()) << opens.status();
  EXPECT_EQ(commit().world(), 0U);
  EXPECT_THAT(sink_.lines(), Contains(AllOf(HasSubstr("by an order to node 2"), HasSubstr("1:5"),
                                            HasSubstr("4 ranks are connected"))));
}

TEST_F(LeaderFreshStartTest, TellsTheTimelineThatTheNextAttemptOpens) {
  SetRanks(0);
  const auto opens = Declare(false);
  ASSERT_TRUE(opens.ok()) << opens.status();
  Ask(2);
  EXPECT_EQ(decision().kind(), static_cast<uint32_t>(DecisionKind::kFresh));
  EXPECT_EQ(NumberOf(Timeline{decision().timeline()}), *opens);
}

TEST_F(LeaderFreshStartTest, WhatWouldBeRestoredIsKnown) {
  ExposureReply exposure = leader_->Exposure();
  EXPECT_TRUE(exposure.restorable_known());
  EXPECT_EQ(exposure.restorable_step(), 5U);
  Protect(At(1, 6));
  ReportAll();
  ASSERT_EQ(VersionOf(commit()), At(1, 6));
  EXPECT_EQ(leader_->Exposure().restorable_step(), 6U);
  // Three of four nodes find what they hold of it wrong: two chunks of four are needed.
  for (uint64_t slot = 0; slot < 3; ++slot) {
    nodes_.at(NodeSlot{slot}).versions.erase(At(1, 6));
  }
  ReportAll();
  exposure = leader_->Exposure();
  EXPECT_EQ(VersionOf(exposure), At(1, 6));
  EXPECT_EQ(exposure.restorable_timeline(), At(1, 0).timeline.value);
  EXPECT_EQ(exposure.restorable_step(), 5U);
  EXPECT_EQ(exposure.restorable_world(), 4U);
}

}  // namespace
}  // namespace unreft::smp
