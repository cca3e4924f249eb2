#include "smp/job/own_versions.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/smp/job_records_testing.h"
#include "tests/unit/smp/recording_node.h"
#include "tests/unit/smp/recording_protection.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

class OwnVersionsTest : public SmpFixture {
 protected:
  // In timeline 2, where 2:10 is committed.
  OwnVersionsTest() {
    InTurn([this] {
      record_->AdoptTimelines(OriginsOf(Chain(2, 2)), /*unused=*/true);
      record_->SetCommitted(At(2, 10), 4);
    });
    versions_.OnTimeline(Step{10});
  }

  void GiveUpInTheJob(uint64_t after, uint64_t through) {
    AbandonRecord& record = job_.abandoned.value;
    record.set_timeline(2);
    record.set_after_step(after);
    record.set_through_step(through);
    record.set_reason("rank 7: skipped");
  }
  std::vector<Version> UnderWay() const {
    std::vector<Version> versions;
    for (const auto& [version, failure] : versions_.failures()) versions.push_back(version);
    return versions;
  }

  std::unique_ptr<NodeRecord> record_ = NewRecord();
  meta::JobState job_;
  RecordingNode node_;
  RecordingProtection protection_;
  OwnVersions versions_{*record_, job_, node_, protection_};
};

TEST_F(OwnVersionsTest, WhatIsClaimedOrSealedIsUnderWay) {
  EXPECT_TRUE(versions_.OnClaimed(At(2, 11), Rank{0}));
  EXPECT_TRUE(versions_.OnSealed(At(2, 12), Rank{0}));
  EXPECT_THAT(UnderWay(), ElementsAre(At(2, 11), At(2, 12)));
  EXPECT_EQ(versions_.newest_step(), Step{12});
}

TEST_F(OwnVersionsTest, OfATimelineThatIsOverOrOfWhatIsCommittedNoneIs) {
  for (const Version version : {At(1, 11), At(2, 10), At(2, 9), At(3, 11)}) {
    EXPECT_FALSE(versions_.OnClaimed(version, Rank{0})) << fmt::format("{}", version);
    EXPECT_FALSE(versions_.OnFailed(version, Rank{0}, "skipped")) << fmt::format("{}", version);
  }
  EXPECT_THAT(UnderWay(), IsEmpty());
  EXPECT_THAT(node_.abandoned, IsEmpty()) << "a claim may be of a slot that is committed";
  EXPECT_EQ(versions_.newest_step(), Step{10}) << "they say nothing of how far the ranks are";
}

// Its slot would be held for ever.
TEST_F(OwnVersionsTest, WhatIsSealedTooLateIsGivenUpHere) {
  EXPECT_FALSE(versions_.OnSealed(At(1, 11), Rank{0}));
  ASSERT_THAT(node_.abandoned, SizeIs(1));
  EXPECT_EQ(node_.abandoned[0].version, At(1, 11));
  EXPECT_THAT(protection_.dropped, ElementsAre(At(1, 11)));
}

TEST_F(OwnVersionsTest, TheFirstReasonOfAFailureCounts) {
  EXPECT_TRUE(versions_.OnFailed(At(2, 11), Rank{3}, "skipped"));
  EXPECT_TRUE(versions_.OnFailed(At(2, 11), Rank{4}, "skipped, too"));
  EXPECT_TRUE(versions_.OnSealed(At(2, 11), Rank{0}));
  EXPECT_THAT(versions_.failures(), ElementsAre(Pair(At(2, 11), "rank 3: skipped")));
}

TEST_F(OwnVersionsTest, WhatTheJobHasGivenUpDoesNotBeginAgain) {
  GiveUpInTheJob(10, 20);
  EXPECT_FALSE(versions_.OnClaimed(At(2, 15), Rank{0}));
  EXPECT_FALSE(versions_.OnSealed(At(2, 16), Rank{0}));
  EXPECT_FALSE(versions_.OnFailed(At(2, 17), Rank{0}, "skipped"));
  EXPECT_TRUE(versions_.OnClaimed(At(2, 21), Rank{0}));
  EXPECT_THAT(UnderWay(), ElementsAre(At(2, 21)));
  ASSERT_THAT(node_.abandoned, SizeIs(2)) << "nothing was claimed of what failed";
  EXPECT_EQ(node_.abandoned[0].reason, "rank 7: skipped");
  EXPECT_TRUE(versions_.MayBeCommitted(At(2, 21)));
  EXPECT_FALSE(versions_.MayBeCommitted(At(2, 20)));
  EXPECT_FALSE(versions_.MayBeCommitted(At(2, 10)));
}

TEST_F(OwnVersionsTest, WhatTheJobGivesUpIsGivenUpHereAlsoIfAnEarlierProcessSealedIt) {
  EXPECT_TRUE(versions_.OnClaimed(At(2, 11), Rank{0}));
  EXPECT_TRUE(versions_.OnClaimed(At(2, 14), Rank{0}));
  node_.held = {{{.version = At(2, 12), .rank = Rank{0}}, nullptr},
                {{.version = At(2, 10), .rank = Rank{0}}, nullptr}};
  GiveUpInTheJob(10, 13);
  versions_.OnAbandoned();
  EXPECT_THAT(protection_.dropped, ElementsAre(At(2, 11), At(2, 12)));
  EXPECT_THAT(UnderWay(), ElementsAre(At(2, 14)));
}

TEST_F(OwnVersionsTest, ACommitOverrulesWhatIsOlderButForWhatIsPinned) {
  for (const uint64_t step : {11, 12, 13, 14}) versions_.OnClaimed(At(2, step), Rank{0});
  SetVersion(At(2, 12), *job_.pins.value.add_pins());
  versions_.OnCommitted(At(2, 13));
  EXPECT_THAT(UnderWay(), ElementsAre(At(2, 14)));
  ASSERT_THAT(node_.abandoned, SizeIs(1));
  EXPECT_EQ(node_.abandoned[0].version, At(2, 11));
  EXPECT_THAT(node_.abandoned[0].reason, HasSubstr("2:13 was committed"));
}

TEST_F(OwnVersionsTest, ATimelineThatIsOpenedEndsThemAndBeginsTheStepsAnew) {
  versions_.OnClaimed(At(2, 19), Rank{0});
  InTurn([this] { record_->AdoptTimelines(OriginsOf(Chain(3, 3)), /*unused=*/true); });
  versions_.OnTimeline(Step{12});
  EXPECT_THAT(UnderWay(), IsEmpty());
  EXPECT_EQ(versions_.newest_step(), Step{12});
}

// While the meta store is away nothing ends them.
TEST_F(OwnVersionsTest, ManyAreBoundedAndThoseThatHaveFailedGiveWayFirst) {
  for (uint64_t step = 11; step <= 26; ++step) versions_.OnClaimed(At(2, step), Rank{0});
  versions_.OnFailed(At(2, 20), Rank{1}, "skipped");
  EXPECT_THAT(node_.abandoned, IsEmpty());
  EXPECT_TRUE(versions_.OnClaimed(At(2, 27), Rank{0}));
  EXPECT_TRUE(versions_.OnClaimed(At(2, 28), Rank{0}));
  ASSERT_THAT(node_.abandoned, SizeIs(2));
  EXPECT_EQ(node_.abandoned[0].version, At(2, 20));
  EXPECT_EQ(node_.abandoned[0].reason, "rank 1: skipped");
  EXPECT_EQ(node_.abandoned[1].version, At(2, 11));
  EXPECT_THAT(versions_.failures(), SizeIs(16));
  EXPECT_TRUE(versions_.OnFailed(At(2, 12), Rank{1}, "skipped")) << "one of them needs no room";
  EXPECT_THAT(node_.abandoned, SizeIs(2));
}

// Other nodes may hold memory for it, which only the job's giving it up frees.
TEST_F(OwnVersionsTest, ThatTheOldestHasFailedIsSaidHoweverManyFailAfterIt) {
  versions_.OnClaimed(At(2, 11), Rank{0});
  versions_.OnFailed(At(2, 11), Rank{0}, "gave up");
  versions_.OnSealed(At(2, 12), Rank{0});
  for (uint64_t step = 13; step <= 40; ++step) versions_.OnFailed(At(2, step), Rank{0}, "skipped");
  const std::vector<Version> under_way = UnderWay();
  ASSERT_THAT(under_way, SizeIs(16));
  EXPECT_EQ(under_way[0], At(2, 11));
  EXPECT_EQ(under_way[1], At(2, 12));
  EXPECT_EQ(under_way.back(), At(2, 40));
  EXPECT_EQ(versions_.failures().at(At(2, 11)), "rank 0: gave up");
}

}  // namespace
}  // namespace unreft::smp
