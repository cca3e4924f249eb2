// What a member does with what the job has given up, and with what nobody ends.

#include <gmock/gmock.h>

#include "tests/unit/smp/member_fixture.h"

namespace unreft::smp {
namespace {

class MemberAbandoningTest : public MemberFixture {
 protected:
  // Node 1 leads, and a fresh start was decided.
  MemberAbandoningTest() {
    leader_ = &Join(1, true);
    StartMember();
    Put("timeline", Decided(1, 1, Version{}));
    UNREFT_CHECK(node_.decisions.size() == 1);
  }

  void PutGivenUp(uint64_t after, uint64_t through) {
    AbandonRecord record;
    record.set_timeline(1);
    record.set_after_step(after);
    record.set_through_step(through);
    record.set_reason("rank 7: skipped");
    Put("abandoned", record);
  }
  // Sealed, and found by this process.
  void Hold(Version version, Rank rank) {
    node_.held.push_back(
        {{.version = version, .rank = rank}, std::make_shared<const layout::SlotManifest>()});
  }
};

TEST_F(MemberAbandoningTest, AVersionThatIsGivenUpIsSoOnThisNodeAlsoIfItIsClaimedLater) {
  Do([](Member& member) { member.ReportClaimed(At(1, 5), Rank{0}); });
  PutGivenUp(4, 8);
  ASSERT_EQ(node_.abandoned.size(), 1U) << "the other one was never here";
  EXPECT_EQ(node_.abandoned[0].reason, "rank 7: skipped");
  EXPECT_EQ(node_.capture_from, At(1, 9));
  Do([](Member& member) { member.ReportClaimed(At(1, 6), Rank{0}); });
  ASSERT_EQ(node_.abandoned.size(), 2U);
  EXPECT_EQ(node_.abandoned[1].version, At(1, 6));
  EXPECT_FALSE(Said(At(1, 6)));
}

// It said each of them again in every report.
TEST_F(MemberAbandoningTest, OfWhatIsGivenUpNoFailureIsSaid) {
  PutGivenUp(4, 8);
  Do([](Member& member) { member.ReportFailed(At(1, 6), Rank{0}, "skipped"); });
  EXPECT_FALSE(Said(At(1, 6)));
  EXPECT_TRUE(node_.abandoned.empty());
}

// Its slot was held until something newer was committed, which needed that slot.
TEST_F(MemberAbandoningTest, WhatWasSealedInAnEarlierProcessIsGivenUp) {
  Hold(At(1, 4), Rank{0});
  Hold(At(1, 6), Rank{0});
  PutGivenUp(4, 8);
  ASSERT_EQ(node_.abandoned.size(), 1U);
  EXPECT_EQ(node_.abandoned[0].version, At(1, 6));
}

// All ranks skipped up to a step that had nothing to do with them.
TEST_F(MemberAbandoningTest, WhereAnotherTimelineBeganAgainSaysNothing) {
  PutGivenUp(4, 500);
  Put("timeline", Decided(2, 2, Version{}));
  EXPECT_EQ(node_.capture_from, At(2, 0));
}

TEST_F(MemberAbandoningTest, WhatIsSealedTooLateIsGivenUp) {
  Put("commit", Committed(At(1, 5)));
  Do([](Member& member) { member.ReportSealed(At(1, 4), Rank{0}); });
  ASSERT_EQ(node_.abandoned.size(), 1U);
  EXPECT_EQ(node_.abandoned[0].version, At(1, 4));
}

TEST_F(MemberAbandoningTest, VersionsThatNobodyEndsAreBounded) {
  Do([](Member& member) {
    for (uint64_t step = 1; step <= 40; ++step) member.ReportClaimed(At(1, step), Rank{0});
  });
  EXPECT_EQ(leader_->reports.back().versions_size(), 16);
  EXPECT_EQ(node_.abandoned.size(), 24U);
  EXPECT_TRUE(Said(At(1, 40)));
}

// It was waited for until version_deadline.
TEST_F(MemberAbandoningTest, ASlabThatHasRottedBeforeTheCommitIsSaid) {
  Do([](Member& member) { member.ReportSealed(At(1, 6), Rank{0}); });
  node_.rotten = {{At(1, 6), Rank{0}, "slot 4: block 3 has rotted"}, {At(1, 2), Rank{0}, "old"}};
  Put("commit", Committed(At(1, 4)));
  Settle(std::chrono::seconds(2));
  const NodeReport& report = leader_->reports.back();
  ASSERT_EQ(report.versions_size(), 1);
  EXPECT_EQ(VersionOf(report.versions(0)), At(1, 6));
  EXPECT_EQ(report.versions(0).failure(), "rank 0: slot 4: block 3 has rotted");
}

}  // namespace
}  // namespace unreft::smp
