// How a store that is empty, or has forgotten, gets the job's records.
#include "smp/job/seed_rule.h"

#include "tests/unit/smp/rules_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::HasSubstr;

// The store's id is another, and nothing names it yet.
class SeedRuleTest : public RulesFixture {
 protected:
  SeedRuleTest() {
    records_.seed = {};
    records_.timeline.bytes = "timeline";
  }
  Move Next() { return Ask(&SeedRule); }

  // That node has kept what the store has now, as of that stamp; `step` is the newest commit.
  void Keep(uint64_t slot, meta::Stamp stamp, uint64_t step) {
    meta::RecordCopy& copy = copies_[slot];
    copy.stamp = stamp;
    copy.records = records_;
    copy.records.view.value.set_number(stamp.sequence);
    SetVersion(At(1, step), copy.records.commit.value);
    copy.records.commit.value.set_world(kNodes);
    copy.records.commit.modified = meta::Revision{stamp.sequence};
    copy.records.commit.bytes = fmt::format("commit {}", step);
    Report(slot).set_kept_epoch(stamp.epoch);
    Report(slot).set_kept_sequence(stamp.sequence);
    TellBoard(board_, NodeSlot{slot}, Report(slot));
  }
  void Give(uint64_t slot) { kept_ = copies_.at(slot); }
  // That node's memory is lost with what it has told; its daemon has the disk's copy, and waits.
  void LoseMemory(uint64_t slot) {
    WaitingRecord& waiting = records_.waiting[slot].value;
    waiting.mutable_presence()->set_slot(slot);
    waiting.mutable_presence()->set_incarnation(fmt::format("new memory {}", slot));
    waiting.mutable_presence()->set_address(fmt::format("waiting {}", slot));
    waiting.set_kept_epoch(Report(slot).kept_epoch());
    waiting.set_kept_sequence(Report(slot).kept_sequence());
    records_.present.erase(NodeSlot{slot});
  }
  static std::optional<NodeSlot> AskedIn(const Move& move) {
    return move.ask_kept ? std::optional(move.ask_kept->slot) : std::nullopt;
  }
  void LoseRecords() {
    records_.view = {};
    records_.timeline = {};
    records_.commit = {};
  }

  std::map<uint64_t, meta::RecordCopy> copies_;
};

TEST_F(SeedRuleTest, AStoreThatIsSeededStaysAsItIs) {
  records_.seed.modified = meta::Revision{1};
  records_.seed.value.set_store_id(records_.store_id);
  Keep(1, {7, 70}, 5);
  EXPECT_TRUE(IsNone(Next()));
}

TEST_F(SeedRuleTest, AnEmptyStoreThatNobodyKnowsBetterBegins) {
  LoseRecords();
  records_.present.erase(NodeSlot{1});
  EXPECT_TRUE(Next().waits);
  Enter(1);
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->view && move.write->seed);
  EXPECT_EQ(move.write->seed->epoch(), 1U);
  EXPECT_EQ(move.write->seed->store_id(), records_.store_id);
  EXPECT_FALSE(move.write->timeline || move.write->commit);
}

// As a release left it that knew of no seeds.
TEST_F(SeedRuleTest, RecordsThatNobodyKnowsBetterStay) {
  Keep(1, {0, 2}, 5);
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->seed);
  EXPECT_EQ(move.write->view->number(), 2U);
  EXPECT_FALSE(move.write->timeline || move.write->commit);
}

TEST_F(SeedRuleTest, TheNewestCopyIsAskedForAndWritten) {
  Keep(0, {1, 60}, 5);
  Keep(1, {2, 40}, 6);
  LoseRecords();
  Move move = Next();
  EXPECT_EQ(AskedIn(move), NodeSlot{1}) << "the later epoch";
  EXPECT_TRUE(move.waits && !move.write);
  Give(1);
  move = Next();
  ASSERT_TRUE(move.write && move.write->view && move.write->timeline && move.write->commit);
  EXPECT_EQ(move.write->view->number(), 41U);
  EXPECT_EQ(move.write->view->members_size(), 2);
  EXPECT_EQ(VersionOf(*move.write->commit), At(1, 6));
  EXPECT_EQ(move.write->seed->epoch(), 3U);
  EXPECT_THAT(TextsOf(move).back(), HasSubstr("the commit of version 1:6 are written again"));
}

TEST_F(SeedRuleTest, WhoHasKeptAnotherJobsRecordsIsNotAskedAgain) {
  Keep(0, {1, 60}, 5);
  Keep(1, {2, 40}, 6);
  LoseRecords();
  seed_notes_.strange.insert(records_.PresenceOf(NodeSlot{1})->address());
  EXPECT_EQ(AskedIn(Next()), NodeSlot{0});
  LoseMemory(1);
  seed_notes_.strange.insert("waiting 1");
  EXPECT_EQ(AskedIn(Next()), NodeSlot{0});
}

TEST_F(SeedRuleTest, WhoTellsLaterMayHaveKeptNewerOnes) {
  Keep(0, {1, 60}, 5);
  Give(0);
  records_.present[NodeSlot{1}].set_session(2);  // and has told nothing
  EXPECT_TRUE(Next().waits);
  records_.present[NodeSlot{1}].set_session(1);
  Keep(1, {1, 61}, 6);
  EXPECT_EQ(AskedIn(Next()), NodeSlot{1});
  Give(1);
  EXPECT_EQ(VersionOf(*Next().write->commit), At(1, 6));
}

// Its memory is gone, and with it the copy.
TEST_F(SeedRuleTest, WhatAnEarlierMemoryHasToldOfIsNotAskedFor) {
  Keep(0, {1, 60}, 5);
  Keep(1, {1, 61}, 6);
  records_.present[NodeSlot{1}].set_incarnation("another memory");
  EXPECT_EQ(AskedIn(Next()), NodeSlot{0});
}

TEST_F(SeedRuleTest, WhatTheStoreHasAlreadyIsNotWrittenAgain) {
  records_.commit.bytes = "commit 5";
  Keep(0, {1, 60}, 5);
  Give(0);
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->view);
  EXPECT_FALSE(move.write->commit || move.write->timeline);
}

TEST_F(SeedRuleTest, WhoDoesNotComeBackIsLostAfterItsGrace) {
  Keep(0, {1, 60}, 5);
  Give(0);
  records_.present.erase(NodeSlot{1});
  FollowAbsences();
  Move move = Next();
  EXPECT_TRUE(move.waits && !move.write);
  EXPECT_EQ(move.wake, now_ + options_.lost_grace);
  now_ += options_.lost_grace;
  move = Next();
  ASSERT_TRUE(move.write && move.write->view);
  EXPECT_TRUE(move.write->view->members(1).lost());
  EXPECT_THAT(TextsOf(move)[0], HasSubstr("node 1 is lost"));
}

// Nobody is left who could tell: what the store has is all there is.
TEST_F(SeedRuleTest, TheStoreAloneIsBelievedOnceAllMemoriesAreLost) {
  records_.seed.value.set_epoch(4);
  records_.present.clear();
  FollowAbsences();
  Move move = Next();
  EXPECT_TRUE(move.waits && !move.write && !move.ask_kept);
  EXPECT_EQ(move.wake, now_ + options_.lost_grace);
  now_ += options_.lost_grace;
  move = Next();
  ASSERT_TRUE(move.write && move.write->view && move.write->seed);
  EXPECT_TRUE(move.write->view->members(0).lost() && move.write->view->members(1).lost());
  EXPECT_EQ(move.write->seed->epoch(), 5U);
  EXPECT_FALSE(move.write->timeline || move.write->commit);
}

// The store was rolled back, and whoever has kept what came after has lost its memory too.
TEST_F(SeedRuleTest, WhoWaitsForItsSlotIsAskedForItsCopy) {
  Keep(0, {1, 60}, 5);
  Keep(1, {1, 61}, 6);
  LoseMemory(1);
  Move move = Next();
  ASSERT_EQ(AskedIn(move), NodeSlot{1});
  EXPECT_EQ(move.ask_kept->address, "waiting 1");
  Give(1);
  LoseMemory(0);
  FollowAbsences();
  now_ += options_.lost_grace;
  move = Next();
  ASSERT_TRUE(move.write && move.write->view && move.write->commit && move.write->seed);
  EXPECT_EQ(VersionOf(*move.write->commit), At(1, 6));
  EXPECT_EQ(move.write->view->number(), 62U);
  EXPECT_TRUE(move.write->view->members(0).lost() && move.write->view->members(1).lost());
  EXPECT_EQ(move.write->seed->epoch(), 2U);
}

TEST_F(SeedRuleTest, WhoWaitsAndHasKeptNothingNewerIsNotAsked) {
  Keep(0, {1, 60}, 5);
  Keep(1, {1, 59}, 4);
  LoseMemory(1);
  EXPECT_EQ(AskedIn(Next()), NodeSlot{0});
}

// They have to see first that the store is another one.
TEST_F(SeedRuleTest, UnlessAllHaveToldThoseWhoWaitAreGivenTimeToSayWhatTheyHaveKept) {
  Keep(0, {1, 60}, 5);
  Keep(1, {1, 61}, 6);
  for (ViewRecord* view : {&records_.view.value, &copies_.at(0).records.view.value,
                           &copies_.at(1).records.view.value}) {
    view->mutable_members(1)->set_lost(true);
  }
  Give(0);
  records_.present.erase(NodeSlot{1});
  seed_notes_.since = now_;
  Move move = Next();
  EXPECT_TRUE(move.waits && !move.write);
  EXPECT_EQ(move.wake, now_ + options_.lost_grace);
  LoseMemory(1);
  EXPECT_EQ(AskedIn(Next()), NodeSlot{1});
  Give(1);
  now_ += options_.lost_grace;
  move = Next();
  ASSERT_TRUE(move.write && move.write->commit);
  EXPECT_EQ(VersionOf(*move.write->commit), At(1, 6));
}

TEST_F(SeedRuleTest, WhoDoesNotGiveWhatItSaysIsPassedOverInTheEnd) {
  Keep(0, {1, 60}, 5);
  Keep(1, {1, 61}, 6);
  Give(0);
  LoseMemory(1);
  FollowAbsences();
  seed_notes_ = {.since = now_, .deaf = {"waiting 1"}};
  EXPECT_EQ(AskedIn(Next()), NodeSlot{1});
  now_ += options_.lost_grace;
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->commit);
  EXPECT_EQ(VersionOf(*move.write->commit), At(1, 5));
}

TEST_F(SeedRuleTest, ACopyThatIsInHandCountsThoughWhoGaveItIsGone) {
  Keep(0, {1, 60}, 5);
  Keep(1, {1, 61}, 6);
  Give(1);
  records_.present.erase(NodeSlot{1});
  FollowAbsences();
  now_ += options_.lost_grace;
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->commit);
  EXPECT_EQ(VersionOf(*move.write->commit), At(1, 6));
}

// It got another id since some watcher had seen a later revision, which no record has.
TEST_F(SeedRuleTest, RecordsThatAreNewerThanAllCopiesStay) {
  Keep(0, {2, 60}, 5);
  records_.seed.value.set_store_id("the id before");
  records_.seed.value.set_epoch(2);
  records_.commit.modified = meta::Revision{61};
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->seed);
  EXPECT_FALSE(move.write->commit || move.write->timeline);
  EXPECT_EQ(move.write->seed->epoch(), 3U);
  records_.commit.modified = meta::Revision{59};
  EXPECT_EQ(AskedIn(Next()), NodeSlot{0});
}

TEST_F(SeedRuleTest, AnEmptyStoreWaitsForSomebodyWhoTells) {
  LoseRecords();
  records_.present.clear();
  FollowAbsences();
  now_ += options_.lost_grace;
  const Move move = Next();
  EXPECT_TRUE(move.waits && !move.write);
}

// All of memory is gone, and the job was started anew with others.
TEST_F(SeedRuleTest, AViewOfOtherOptionsIsMadeAnew) {
  Keep(0, {1, 60}, 5);
  Give(0);
  options_.data_chunks = 2;
  options_.parity_chunks = 0;
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->view);
  EXPECT_EQ(move.write->view->groups(0).k(), 2U);
  EXPECT_EQ(VersionOf(*move.write->commit), At(1, 5));
}

}  // namespace
}  // namespace unreft::smp
