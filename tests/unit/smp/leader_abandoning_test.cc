// How often the leader gives up, and where ranks that nothing synchronises meet.

#include "tests/unit/smp/leader_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class LeaderAbandoningTest : public LeaderFixture {
 protected:
  LeaderAbandoningTest() {
    options_.version_deadline = std::chrono::hours(24);
    Ask(1);
  }

  // The ranks of a node are at that step, and capture or have sealed what is named.
  void SayAt(NodeSlot slot, uint64_t step) {
    NodeReport& report = nodes_.at(slot).report;
    report.set_newest_timeline(At(1, 0).timeline.value);
    report.set_newest_step(step);
    report.clear_registered();
    RegisteredRank& rank = *report.add_registered();
    rank.set_rank(slot.value);
    rank.set_world(world_);
    rank.set_passed_step(step);
    Report(slot);
  }
  void Fail(NodeSlot slot, uint64_t step) {
    auto& versions = nodes_.at(slot).versions;
    std::erase_if(versions, [&](const auto& entry) { return IsAbandoned(entry.first); });
    VersionHolding& holding = versions[At(1, step)];
    SetVersion(At(1, step), holding);
    holding.set_failure("rank: skipped");
    SayAt(slot, step);
  }
};

// Each skip was a write of the whole list: 65 a second.
TEST_F(LeaderAbandoningTest, OnceASecondAtMostHoweverOftenRanksSkip) {
  uint64_t writes = 0;
  kv_store_.set_on_txn([&](const SimExecutor&, const meta::StoreReply&) { ++writes; });
  for (uint64_t step = 10; step < 1010; ++step) {
    for (const uint64_t slot : {0, 1, 2, 3}) Fail(NodeSlot{slot}, step);
    Settle(milliseconds(10));
  }
  EXPECT_GE(writes, 3U);
  EXPECT_LE(writes, 12U) << "in ten seconds";
  EXPECT_LT(store_->state().abandoned.value.ByteSizeLong(), 300U);
}

TEST_F(LeaderAbandoningTest, EachTimeInVainAllBeginFartherAhead) {
  std::vector<uint64_t> leads;
  uint64_t through = 0;
  for (uint64_t step = 10; step < 1010; ++step) {
    for (const uint64_t slot : {0, 1, 2, 3}) Fail(NodeSlot{slot}, step);
    Settle(milliseconds(10));
    const uint64_t now = store_->state().abandoned.value.through_step();
    if (std::exchange(through, now) != now) leads.push_back(now + 1 - step);
  }
  ASSERT_GE(leads.size(), 5U);
  EXPECT_LE(leads.front(), 2U);
  EXPECT_GE(leads.back(), 100U) << "a second's steps";
}

TEST_F(LeaderAbandoningTest, WhatTheFastestHoldsIsKeptUntilAllHaveComeToIt) {
  for (const uint64_t slot : {1, 2, 3}) SayAt(NodeSlot{slot}, 100);
  Seal(NodeSlot{0}, At(1, 500), Rank{0});
  for (uint64_t step = 501; step < 520; ++step) Fail(NodeSlot{0}, step);
  Settle(seconds(5));
  EXPECT_FALSE(IsAbandoned(At(1, 500)));
  for (const uint64_t slot : {1, 2, 3}) Fail(NodeSlot{slot}, 101);
  Settle(seconds(5));
  EXPECT_EQ(CaptureFrom(), Step{500}) << "there they meet";
  nodes_.at(NodeSlot{0}).versions.clear();
  Protect(At(1, 500));
  ReportAll();
  EXPECT_EQ(VersionOf(commit()), At(1, 500));
}

// As far as nobody else believes, the fastest is not waited for; but what it holds is met, too.
TEST_F(LeaderAbandoningTest, AlsoOfRanksThatAreVeryFarApart) {
  Seal(NodeSlot{0}, At(1, 9000), Rank{0});
  SayAt(NodeSlot{0}, 9100);
  for (uint64_t step = 100; step < 9000; step += 890) {
    for (const uint64_t slot : {1, 2, 3}) Fail(NodeSlot{slot}, step);
    Settle(seconds(3));
    ASSERT_LE(CaptureFrom(), Step{9000});
    ASSERT_FALSE(IsAbandoned(At(1, 9000)));
  }
  Protect(At(1, 9000));
  ReportAll();
  EXPECT_EQ(VersionOf(commit()), At(1, 9000));
}

TEST_F(LeaderAbandoningTest, ADeadlineIsSaidWithWhatWasWaitedFor) {
  StartLeader();
  options_.version_deadline = seconds(20);
  Protect(At(1, 5));
  nodes_.at(NodeSlot{2}).versions.at(At(1, 5)).clear_sealed();
  ReportAll();
  Settle(seconds(25));
  EXPECT_EQ(
      1U,
      sink_.Count(
          "version 1:5 is given up by its deadline: rank 2 of 4 did not complete it within 20 s"));
}

// By which they would miss the step at which the others begin, and have to begin once more.
TEST_F(LeaderAbandoningTest, WhileRanksAreOnTheirWayBackNothingIsGivenUp) {
  const auto let_others_fail = [this](uint64_t from) {
    for (uint64_t step = from; step < from + 20; ++step) {
      for (const uint64_t slot : {0, 1, 2}) Fail(NodeSlot{slot}, step);
      Settle(milliseconds(10));
    }
  };
  for (const uint64_t slot : {0, 1, 2, 3}) SayAt(NodeSlot{slot}, 9);
  SayGoodBye(NodeSlot{3});
  let_others_fail(10);
  EXPECT_EQ(CaptureFrom(), Step{}) << "its daemon is away";
  StartAgain(NodeSlot{3});
  nodes_.at(NodeSlot{3}).report.clear_registered();
  nodes_.at(NodeSlot{3}).report.set_ranks(1);
  Report(NodeSlot{3});
  let_others_fail(100);
  EXPECT_EQ(CaptureFrom(), Step{}) << "its trainer has yet to connect";
  nodes_.at(NodeSlot{3}).report.add_registered()->set_rank(3);
  Report(NodeSlot{3});
  let_others_fail(150);
  EXPECT_EQ(CaptureFrom(), Step{}) << "it has yet to say at which step it is";
  SayAt(NodeSlot{3}, 200);
  Settle(milliseconds(100));
  EXPECT_GT(CaptureFrom(), Step{200});
}

// A trainer that the daemon served before it started anew, and that hangs in its exit.
TEST_F(LeaderAbandoningTest, ButNotForLongerThanANodeMayBeAway) {
  for (const uint64_t slot : {0, 1, 2, 3}) SayAt(NodeSlot{slot}, 9);
  nodes_.at(NodeSlot{3}).report.set_ranks(2);
  Report(NodeSlot{3});
  for (uint64_t step = 10; step < 310; ++step) {
    for (const uint64_t slot : {0, 1, 2, 3}) Fail(NodeSlot{slot}, step);
    Settle(milliseconds(10));
    if (step < 200) {
      ASSERT_EQ(CaptureFrom(), Step{});
    }
  }
  EXPECT_GT(CaptureFrom(), Step{200});
}

// Ranks that are apart were taken for one that had run from the slowest to the fastest: all began
// a second too far ahead.
TEST_F(LeaderAbandoningTest, WhoTellsLastDoesNotSetThePace) {
  StartLeader();
  SayAt(NodeSlot{0}, 100);
  Settle(milliseconds(60));
  for (const uint64_t slot : {1, 2, 3}) SayAt(NodeSlot{slot}, 600);
  for (const uint64_t slot : {0, 1, 2, 3}) Fail(NodeSlot{slot}, 601);
  Settle(milliseconds(100));
  EXPECT_GT(CaptureFrom(), Step{601});
  EXPECT_LT(CaptureFrom(), Step{610});
}

}  // namespace
}  // namespace unreft::smp
