#include "smp/job/follower.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>

#include "tests/unit/smp/job_records_testing.h"
#include "tests/unit/smp/recording_node.h"
#include "tests/unit/smp/recording_protection.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

class FollowerTest : public SmpFixture {
 protected:
  // As a record is read that was written anew.
  template <typename Message>
  void Read(meta::Shared<Message> meta::JobRecords::* record, Message value) {
    (job_.*record).bytes = value.SerializeAsString();
    (job_.*record).value = std::move(value);
    (job_.*record).modified = meta::Revision{++revision_};
  }
  void ReadTimeline(TimelineRecord record) { Read(&meta::JobRecords::timeline, std::move(record)); }
  static TimelineRecord Closing(uint64_t newest, uint64_t round) {
    TimelineRecord record = Chain(newest, round);
    record.set_closing(true);
    return record;
  }
  void Follow() {
    InTurn([this] { follower_.Follow(job_); });
  }

  std::unique_ptr<NodeRecord> record_ = NewRecord();
  meta::JobState job_;
  uint64_t revision_ = 0;
  RecordingNode node_;
  RecordingProtection protection_;
  std::unique_ptr<KeptRecords> kept_ = OpenKept();
  OwnVersions versions_{*record_, kept_->records(), node_, protection_};
  int closed_ = 0;  // as it has said
  Follower follower_{*kept_, *record_, versions_, node_, protection_, [this] { ++closed_; }};
};

// Whoever was away reads all of it at once. What is pinned may be what the commit would retire.
TEST_F(FollowerTest, AllThatWasMissedIsCaughtUpWithInOrder) {
  ReadTimeline(Decided(1, 1, Version{}));
  Follow();
  node_.told.clear();
  PinRecord pins;
  SetVersion(At(1, 5), *pins.add_pins());
  Read(&meta::JobRecords::pins, pins);
  ReadTimeline(Decided(2, 2, At(1, 10)));
  Read(&meta::JobRecords::commit, Committed(At(2, 11)));
  Follow();
  EXPECT_THAT(node_.told, ElementsAre("pins", "reopen", "commit"))
      << "the decision is over: something was committed since";
  EXPECT_EQ(record_->committed(), At(2, 11));
  EXPECT_THAT(protection_.committed, ElementsAre(At(2, 11)));
  EXPECT_EQ(follower_.round_applied(), 2U);
}

// Both were written while it was away.
TEST_F(FollowerTest, ADecisionThatFailedDoesNotHideTheOneBefore) {
  TimelineRecord record = Decided(1, 1, Version{});
  *record.mutable_in_force() = record.decision();
  record.set_round(2);
  record.mutable_decision()->Clear();
  record.mutable_decision()->set_round(2);
  record.mutable_decision()->set_kind(static_cast<uint32_t>(DecisionKind::kFailed));
  ReadTimeline(record);
  Follow();
  ASSERT_THAT(node_.decisions, SizeIs(2));
  EXPECT_EQ(node_.decisions[0].kind, DecisionKind::kFresh);
  EXPECT_EQ(node_.decisions[1].kind, DecisionKind::kFailed);
  EXPECT_EQ(record_->chain().newest(), Timeline{1});
  EXPECT_EQ(follower_.round_applied(), 2U);
}

// It went back from 1:10 to 1:5 in its own timeline.
TEST_F(FollowerTest, WhoHasMissedADecisionFollowsNoCommitOfIt) {
  ReadTimeline(Decided(1, 1, Version{}));
  Read(&meta::JobRecords::commit, Committed(At(1, 10)));
  Follow();
  node_.told.clear();
  TimelineRecord closing = Decided(2, 2, At(1, 5));
  closing.set_closing(true);
  closing.set_round(3);
  ReadTimeline(closing);
  Read(&meta::JobRecords::commit, Committed(At(1, 5)));
  Follow();
  EXPECT_EQ(record_->committed(), At(1, 10));
  EXPECT_EQ(record_->chain().newest(), Timeline{1});
  ReadTimeline(Decided(3, 3, At(1, 5)));
  Follow();
  EXPECT_EQ(record_->committed(), At(1, 5));
  EXPECT_EQ(record_->chain().newest(), Timeline{3});
}

TEST_F(FollowerTest, WhatWasDoneIsNotDoneAgain) {
  ReadTimeline(Decided(1, 1, Version{}));
  Read(&meta::JobRecords::commit, Committed(At(1, 5)));
  Follow();
  node_.told.clear();
  Follow();
  EXPECT_THAT(node_.told, IsEmpty());
}

// --- rounds ---

TEST_F(FollowerTest, WhatIsClosedLateIsNotClosedForTheDecisionThatWasNotAwaited) {
  ReadTimeline(Closing(1, 1));
  Follow();
  ReadTimeline(Decided(1, 1, Version{}));
  Follow();
  ASSERT_THAT(node_.closing, SizeIs(1));
  InTurn([this] { node_.closing[0](); });
  EXPECT_EQ(follower_.round_closed(), 0U);
  EXPECT_EQ(closed_, 0);
}

TEST_F(FollowerTest, OfTwoRoundsOnlyTheLastClosingCounts) {
  ReadTimeline(Closing(1, 1));
  Follow();
  ReadTimeline(Closing(1, 2));
  Follow();
  ASSERT_THAT(node_.closing, SizeIs(2));
  InTurn([this] { node_.closing[0](); });
  EXPECT_EQ(follower_.round_closed(), 0U);
  InTurn([this] { node_.closing[1](); });
  EXPECT_EQ(follower_.round_closed(), 2U);
  EXPECT_EQ(closed_, 1);
}

TEST_F(FollowerTest, AStoreThatWentBackClosesNothing) {
  ReadTimeline(Closing(1, 7));
  const meta::JobState before = job_;
  ReadTimeline(Decided(2, 2, At(1, 10)));
  Follow();
  job_ = before;
  Follow();
  EXPECT_THAT(node_.closing, IsEmpty());
  ReadTimeline(Closing(2, 7));
  Follow();
  EXPECT_THAT(node_.closing, SizeIs(1));
}

// Whose timeline was closed for it has captured nothing since.
TEST_F(FollowerTest, OnlyWhoTookPartInARoundKnowsThatNothingWasCapturedSince) {
  ReadTimeline(Closing(1, 1));
  Follow();
  InTurn([this] { node_.closing[0](); });
  ReadTimeline(Decided(1, 1, Version{}));
  Follow();
  EXPECT_FALSE(record_->capture_began());
  ReadTimeline(Decided(2, 2, At(1, 10)));
  Follow();
  EXPECT_TRUE(record_->capture_began());
}

TEST_F(FollowerTest, WhoAsksWaitsUntilADecisionIsForAllOfThem) {
  const auto decided_for = [](uint64_t round, std::initializer_list<int> pids) {
    TimelineRecord record = Decided(round, round, Version{});
    for (const int pid : pids) {
      AskingRank& asked = *record.mutable_decision()->add_asked();
      asked.set_rank(static_cast<uint64_t>(pid) % 2);
      asked.set_pid(pid);
    }
    return record;
  };
  follower_.Ask({Attempt{3}, 2, {{Rank{0}, {100, 0}}, {Rank{1}, {101, 0}}}});
  ReadTimeline(decided_for(1, {100, 99}));
  Follow();
  ASSERT_TRUE(follower_.asking()) << "rank 1 is another life now";
  EXPECT_EQ(follower_.asking()->attempt, Attempt{3});
  ReadTimeline(decided_for(2, {100, 101}));
  Follow();
  EXPECT_FALSE(follower_.asking());
}

TEST_F(FollowerTest, FromWhereRanksAskedIsToldWhereItIsKnownOfAll) {
  TimelineRecord record = Decided(1, 1, Version{});
  for (const uint64_t rank : {0, 1}) {
    AskingRank& asked = *record.mutable_decision()->add_asked();
    asked.set_rank(rank);
    asked.set_slot(3 - rank);
  }
  ReadTimeline(record);
  Follow();
  record = Decided(2, 2, Version{});
  record.mutable_decision()->add_asked()->set_slot(3);
  record.mutable_decision()->add_asked()->set_rank(1);
  ReadTimeline(record);
  Follow();
  ASSERT_THAT(node_.decisions, SizeIs(2));
  EXPECT_THAT(node_.decisions[0].homes,
              ElementsAre(Pair(Rank{0}, NodeSlot{3}), Pair(Rank{1}, NodeSlot{2})));
  EXPECT_THAT(node_.decisions[1].homes, IsEmpty());
}

// --- pins ---

TEST_F(FollowerTest, PinsAreToldOnceOfEachStore) {
  Follow();
  Follow();
  EXPECT_THAT(node_.pins, SizeIs(1)) << "also that there are none";
  job_.store_id = "another";
  Follow();
  EXPECT_THAT(node_.pins, SizeIs(2)) << "though the revision is the same";
}

// --- what is kept ---

// So that a store which is lost then can be written again with all that anybody acted by.
TEST_F(FollowerTest, WhatIsActedByWasKeptBefore) {
  ReadTimeline(Decided(1, 1, Version{}));
  Follow();
  meta::Stamp kept;
  node_.on_committed = [&] { kept = kept_->stamp(); };
  Read(&meta::JobRecords::commit, Committed(At(1, 5)));
  Follow();
  EXPECT_EQ(kept, job_.stamp());
}

// Its records are of before what this node has done.
TEST_F(FollowerTest, AStoreThatIsNotSeededYetIsNotFollowed) {
  ReadTimeline(Decided(1, 1, Version{}));
  Read(&meta::JobRecords::commit, Committed(At(1, 5)));
  PinRecord pins;
  SetVersion(At(1, 5), *pins.add_pins());
  Read(&meta::JobRecords::pins, pins);
  Follow();
  node_.told.clear();
  const meta::JobState before = job_;
  job_ = {};
  job_.store_id = "another";
  Follow();
  EXPECT_THAT(node_.told, IsEmpty()) << "also not that nothing is pinned";
  EXPECT_EQ(kept_->records().commit.bytes, before.commit.bytes);
}

// --- versions given up ---

TEST_F(FollowerTest, WhereToCaptureFromIsSaidOfTheNewestTimelineAlone) {
  ReadTimeline(Decided(1, 1, Version{}));
  AbandonRecord abandoned;
  abandoned.set_timeline(1);
  abandoned.set_through_step(8);
  Read(&meta::JobRecords::abandoned, abandoned);
  Follow();
  EXPECT_EQ(node_.capture_from, At(1, 9));
  ReadTimeline(Decided(2, 2, At(1, 10)));
  Follow();
  EXPECT_EQ(node_.capture_from, At(2, 0));
}

}  // namespace
}  // namespace unreft::smp
