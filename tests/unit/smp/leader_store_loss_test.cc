// A meta store that was lost or rolled back knows less than the nodes remember (docs/protocol.md,
// rule 3).

#include "tests/unit/smp/leader_fixture.h"

namespace unreft::smp {
namespace {

class LeaderStoreLossTest : public LeaderFixture {
 protected:
  // Version 1:5 is committed, and every node has heard of it.
  LeaderStoreLossTest() {
    Ask(1);
    Protect(At(1, 4));
    ReportAll();
    ReportAll();
    older_ = kv_store_.TakeCopy();
    older_kept_ = nodes_.at(NodeSlot{0}).kept;
    Protect(At(1, 5));
    ReportAll();
    ReportAll();
    UNREFT_CHECK(VersionOf(commit()) == At(1, 5));
  }

  // A node that had not heard of it, and of whose memory nothing of it is left.
  void HearNothing(NodeSlot slot) {
    ReportingNode& node = nodes_.at(slot);
    node.kept = older_kept_;
    node.report.set_kept_sequence(node.report.kept_sequence() - 1);
    node.versions.erase(At(1, 5));
  }

  FakeKvStore::Copy older_;
  std::string older_kept_;
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
  EXPECT_EQ(store_->state().timeline.value.chain(0).timeline(), At(1, 0).timeline.value);
}

TEST_F(LeaderStoreLossTest, AnOlderCopyThanWasSaidIsAskedForAgain) {
  for (const uint64_t slot : {0, 1, 3}) HearNothing(NodeSlot{slot});
  std::string& kept = nodes_.at(NodeSlot{2}).kept;
  const std::string newest = std::exchange(kept, older_kept_);
  LoseStore();
  ReportAll();
  Settle();
  EXPECT_EQ(commit().world(), 0U);
  kept = newest;
  Settle(std::chrono::seconds(1));
  EXPECT_EQ(VersionOf(commit()), At(1, 5));
}

// A release that does not look at whose records it has kept says of them how new they are.
TEST_F(LeaderStoreLossTest, ACopyOfAnotherJobThanTheRecordsAreOfIsLeftOut) {
  ReportingNode& node = nodes_.at(NodeSlot{2});
  absl::StatusOr<meta::RecordCopy> copy =
      meta::DecodeCopy(std::as_bytes(std::span(std::as_const(node.kept))));
  ASSERT_TRUE(copy.ok());
  meta::JobState other;
  static_cast<meta::JobRecords&>(other) = copy->records;
  other.store_id = copy->store_id;
  other.timeline.value.set_first_timeline(77);
  other.timeline.bytes = other.timeline.value.SerializeAsString();
  other.commit.value.set_step(99);
  other.commit.bytes = other.commit.value.SerializeAsString();
  other.commit.modified = meta::Revision{100000};
  other.seed.value.set_store_id(other.store_id);
  other.seed.value.set_epoch(9);
  other.seed.modified = meta::Revision{1};
  node.kept = meta::EncodeCopy(other);
  node.report.set_kept_epoch(9);
  node.report.set_kept_sequence(100000);
  LoseStore(&older_);
  ReportAll();
  Settle(std::chrono::seconds(1));
  EXPECT_EQ(VersionOf(commit()), At(1, 5));
  EXPECT_EQ(sink_.Count("has kept records of another job of this name"), 1U);
}

// What a node that returns has of the one is nothing of the other.
TEST_F(LeaderStoreLossTest, ATimelineOfTheSameNumberIsAnother) {
  const Timeline before = At(1, 0).timeline;
  for (auto& [slot, node] : nodes_) {
    node.kept.clear();
    node.report.clear_kept_epoch();
    node.report.clear_kept_sequence();
    node.report.clear_newest_timeline();
    node.versions.clear();
  }
  LoseStore();
  ReportAll();
  Ask(1);
  const Timeline now{decision().timeline()};
  EXPECT_EQ(NumberOf(now), 1U);
  EXPECT_NE(now, before);
}

TEST_F(LeaderStoreLossTest, AStoreThatWentBackToAnEarlierCommitIsToldOfTheLater) {
  LoseStore(&older_);
  EXPECT_EQ(VersionOf(commit()), At(1, 4));
  ReportAll();
  EXPECT_EQ(VersionOf(commit()), At(1, 5));
}

// Else it would be older than what the nodes remember, and undone by that.
TEST_F(LeaderStoreLossTest, AFreshStartWaitsForWhatTheNodesRemember) {
  const auto declare = [this] {
    absl::Status status = absl::UnknownError("not answered");
    InTurn([&] {
      leader_->DeclareFreshStart(NodeSlot{1}, false, [&](auto opens) { status = opens.status(); });
    });
    Settle();
    return status;
  };
  LoseStore();
  EXPECT_EQ(declare().code(), absl::StatusCode::kUnavailable) << "there is no view";
  for (const uint64_t slot : {0, 1, 2}) Report(NodeSlot{slot});
  Settle();
  EXPECT_EQ(declare().code(), absl::StatusCode::kUnavailable) << "node 3 may know more";
  ReportAll();
  ASSERT_EQ(VersionOf(commit()), At(1, 5));
  EXPECT_TRUE(declare().ok());
  EXPECT_EQ(commit().world(), 0U);
  EXPECT_EQ(VersionOf(commit()), At(2, 0));
  ReportAll();
  EXPECT_EQ(VersionOf(commit()), At(2, 0));
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

TEST_F(LeaderStoreLossTest, WhoDoesNotComeBackIsLostAndASpareHasItsSlot) {
  InTurn([&] { nodes_.erase(NodeSlot{3}); });
  LoseStore();
  ReportAll();
  Settle(std::chrono::seconds(10));
  ASSERT_EQ(view().members_size(), 4);
  EXPECT_TRUE(view().members(3).lost());
  AddSpare(4);
  Settle(std::chrono::seconds(1));
  ASSERT_EQ(view().members_size(), 4);
  EXPECT_EQ(view().members(3).slot(), 3U);
  EXPECT_EQ(view().members(3).incarnation(), "spare4");
  EXPECT_FALSE(view().members(3).lost());
  EXPECT_EQ(view().groups(0).slots_size(), 4);
}

TEST_F(LeaderStoreLossTest, WhoIsOnlyLateIsNotReplaced) {
  options_.lost_grace = std::chrono::seconds(4);
  InTurn([&] { nodes_.erase(NodeSlot{3}); });
  LoseStore();
  ReportAll();
  AddSpare(4);
  Join(NodeSlot{3}, "b");
  Settle(std::chrono::seconds(1));
  Report(NodeSlot{3});
  Settle(std::chrono::seconds(4));
  ASSERT_EQ(view().members_size(), 4);
  EXPECT_EQ(view().members(3).incarnation(), Memory(NodeSlot{3}, "b"));
}

class LeaderNewJobTest : public LeaderFixture {};

TEST_F(LeaderNewJobTest, ANodeThatIsLateIsWaitedFor) {
  InTurn([&] { nodes_.erase(NodeSlot{3}); });
  LoseStore();
  ReportAll();
  AddSpare(4);
  Settle(std::chrono::seconds(10));
  EXPECT_EQ(view().number(), 0U);
}

// Nothing was ever captured; still its trainers run where the spare is, or was to be.
TEST_F(LeaderNewJobTest, AJobThatHadAViewIsNoNewOne) {
  ReportAll();
  InTurn([&] { nodes_.erase(NodeSlot{3}); });
  LoseStore();
  ReportAll();
  AddSpare(4);
  Settle(std::chrono::seconds(1));
  ASSERT_EQ(view().members_size(), 4);
  EXPECT_EQ(view().members(3).incarnation(), "spare4");
}

// The decision, what was given up and what is pinned, too, and how ranks capture.
TEST_F(LeaderStoreLossTest, AllRecordsAreAsTheyWere) {
  options_.pins = 1;
  absl::StatusOr<PinReply> pinned = absl::UnknownError("not answered");
  PinRequest request;
  request.set_owner("evaluation");
  request.set_for_ms(60'000);
  InTurn([&] { leader_->AskPins(request, [&](auto reply) { pinned = std::move(reply); }); });
  nodes_.at(NodeSlot{1}).versions[At(1, 6)].set_failure("rank 1: skipped");
  SetVersion(At(1, 6), nodes_.at(NodeSlot{1}).versions[At(1, 6)]);
  Settle();
  ReportAll();
  ReportAll();
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  const meta::JobState before = store_->state();
  ASSERT_TRUE(before.abandoned.exists() && before.pins.exists());
  LoseStore();
  ReportAll();
  const meta::JobState& now = store_->state();
  EXPECT_EQ(now.timeline.bytes, before.timeline.bytes);
  EXPECT_EQ(now.commit.bytes, before.commit.bytes);
  EXPECT_EQ(now.abandoned.bytes, before.abandoned.bytes);
  EXPECT_EQ(now.pins.bytes, before.pins.bytes);
  EXPECT_EQ(now.seed.value.epoch(), before.seed.value.epoch() + 1);
  EXPECT_EQ(now.seed.value.store_id(), now.store_id);
  EXPECT_NE(now.store_id, before.store_id);
}

// So that a number names one view, whatever the store has forgotten (docs/protocol.md, rule 3).
TEST_F(LeaderStoreLossTest, TheNumberOfTheViewGoesOnWhereTheNodesLeftIt) {
  ASSERT_EQ(view().number(), 1U);
  LoseStore();
  ReportAll();
  EXPECT_EQ(view().number(), 2U);
}

}  // namespace
}  // namespace unreft::smp
