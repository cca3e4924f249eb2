// What the leader commits, gives up and decides, by what nodes report.

#include "tests/unit/smp/leader_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;

class LeaderTest : public LeaderFixture {
 protected:
  // The first attempt, of a job of which nothing is stored.
  LeaderTest() {
    Ask(1);
    UNREFT_CHECK(decision().kind() == static_cast<uint32_t>(DecisionKind::kFresh));
  }
};

TEST_F(LeaderTest, CommitsWhatEveryNodeHasSealedAndGuarded) {
  Protect(At(1, 5));
  ReportAll();
  EXPECT_EQ(VersionOf(commit()), At(1, 5));
  EXPECT_EQ(commit().world(), kNodes);
  EXPECT_EQ(commit().holders_size(), 4);
  ASSERT_EQ(commit().groups_size(), 1);
  EXPECT_EQ(commit().groups(0).slots_size(), 4);
}

TEST_F(LeaderTest, WaitsForEveryGuardAndGivesUpAtTheDeadline) {
  Protect(At(1, 5));
  nodes_.at(NodeSlot{2}).versions.at(At(1, 5)).set_guarded(false);
  ReportAll();
  EXPECT_EQ(commit().world(), 0U);
  Settle(seconds(25));
  EXPECT_TRUE(IsAbandoned(At(1, 5)));
  EXPECT_EQ(CaptureFrom(), Step{6});
}

TEST_F(LeaderTest, ASlabThatWasSealedButNotEncodedIsNotCommitted) {
  world_ = 5;
  homes_[NodeSlot{1}].push_back(Rank{4});
  Protect(At(1, 5));
  for (const uint64_t slot : {2, 3}) {
    for (auto& description :
         *nodes_.at(NodeSlot{slot}).versions.at(At(1, 5)).mutable_descriptions()) {
      if (description.slot() == 1) description.mutable_ranks()->RemoveLast();
    }
  }
  ReportAll();
  EXPECT_EQ(commit().world(), 0U);
}

// One rank's nonsense kept the ranks of all nodes from capturing for the rest of the attempt.
TEST_F(LeaderTest, AStepFarBeyondTheOthersDoesNotKeepThemFromCapturing) {
  Protect(At(1, 5));
  const Version far = At(1, uint64_t{1} << 61);
  VersionHolding& failed = nodes_.at(NodeSlot{1}).versions[far];
  SetVersion(far, failed);
  failed.set_failure("rank 1: skipped");
  nodes_.at(NodeSlot{1}).report.set_newest_step(uint64_t{1} << 61);
  nodes_.at(NodeSlot{0}).versions.at(At(1, 5)).set_failure("rank 0: skipped");
  ReportAll();
  Settle();
  EXPECT_TRUE(IsAbandoned(At(1, 5)));
  EXPECT_FALSE(IsAbandoned(far)) << "nor anything up to it";
  EXPECT_EQ(CaptureFrom(), Step{6});
}

// Such a number became part of a record that every node reads.
TEST_F(LeaderTest, AReportWithNumbersThatNoJobHasIsNotTaken) {
  const auto refusal = [this](auto change) {
    NodeReport& newest = nodes_.at(NodeSlot{1}).report;
    newest.set_number(newest.number() + 1);
    NodeReport report = newest;
    change(report);
    absl::Status status;
    InTurn([&] { status = leader_->OnReport(NodeSlot{1}, report.SerializeAsString()).status(); });
    return std::string(status.message());
  };
  EXPECT_EQ(refusal([](NodeReport&) {}), "");
  EXPECT_EQ(refusal([](NodeReport& r) { r.set_newest_step(UINT64_MAX - 1); }),
            "newest step 18446744073709551614, the largest is 4611686018427387903");
  EXPECT_EQ(refusal([](NodeReport& r) { r.set_world(uint64_t{1} << 33); }),
            "world of ranks 8589934592, the largest is 1048576");
  EXPECT_EQ(refusal([](NodeReport& r) { r.add_versions()->add_sealed()->set_rank(1 << 20); }),
            "rank 1048576, the largest is 1048575");
  EXPECT_EQ(refusal([](NodeReport& r) { r.set_kept_epoch(UINT64_MAX); }),
            "epoch of the kept records 18446744073709551615, the largest is 4611686018427387903");
}

TEST_F(LeaderTest, AFailedRankGivesTheVersionUpForAll) {
  Protect(At(1, 5));
  nodes_.at(NodeSlot{1}).versions.at(At(1, 5)).set_failure("rank 1: skipped");
  ReportAll();
  EXPECT_TRUE(IsAbandoned(At(1, 5)));
  EXPECT_EQ(commit().world(), 0U);
}

TEST_F(LeaderTest, ARankThatNeverCompletesAVersionIsNamed) {
  Protect(At(1, 5));
  for (auto& [slot, node] : nodes_) node.versions.at(At(1, 5)).set_guarded(false);
  nodes_.at(NodeSlot{2}).versions.at(At(1, 5)).mutable_sealed()->Clear();
  ReportAll();
  Settle(seconds(25));
  ASSERT_TRUE(IsAbandoned(At(1, 5)));
  EXPECT_EQ(WhyGivenUp(), "step 5: rank 2 of 4 did not complete it within 20 s");
}

// Else every version is given up from then on.
TEST_F(LeaderTest, AllCaptureAllTheyHoldOnceOneDoes) {
  capture_all_ = {Rank{2}};
  Protect(At(1, 5));
  ReportAll();
  EXPECT_TRUE(IsAbandoned(At(1, 5)));
  EXPECT_EQ(store_->state().abandoned.value.full_capture_from_timeline(), At(1, 0).timeline.value);
  EXPECT_EQ(store_->state().abandoned.value.disagreement(),
            "rank 2 captured all it holds, rank 0 a part of it");
}

TEST_F(LeaderTest, AllThatHaveFailedAreGivenUpAtOnce) {
  for (const uint64_t step : {5, 6, 7}) {
    Protect(At(1, step));
    nodes_.at(NodeSlot{0}).versions.at(At(1, step)).set_failure("rank 0: skipped");
  }
  for (const uint64_t slot : {1, 2, 3}) Report(NodeSlot{slot});
  const meta::Revision before = store_->state().abandoned.modified;
  uint64_t writes = 0;
  kv_store_.set_on_txn([&](const SimExecutor&, const meta::StoreReply&) { ++writes; });
  Report(NodeSlot{0});
  Settle();
  EXPECT_NE(store_->state().abandoned.modified, before);
  for (const uint64_t step : {5, 6, 7}) EXPECT_TRUE(IsAbandoned(At(1, step))) << step;
  EXPECT_EQ(CaptureFrom(), Step{8});
  EXPECT_LE(writes, 2U);
}

TEST_F(LeaderTest, ALongReasonIsCutBetweenCharacters) {
  Protect(At(1, 5));
  std::string reason = "rank 1: ";
  while (reason.size() < 400) reason += "\u00e9";
  nodes_.at(NodeSlot{1}).versions.at(At(1, 5)).set_failure(reason);
  ReportAll();
  ASSERT_TRUE(IsAbandoned(At(1, 5)));
  const std::string& written = WhyGivenUp();
  EXPECT_LE(written.size(), 192U);
  EXPECT_TRUE(written.starts_with("step 5: node 1: rank 1: \u00e9")) << written;
  EXPECT_TRUE(written.ends_with("\u00e9...")) << written;
}

TEST_F(LeaderTest, AReportOfAnotherLifeIsRefused) {
  NodeReport report = nodes_.at(NodeSlot{1}).report;
  report.set_session(2);
  absl::Status status;
  InTurn([&] { status = leader_->OnReport(NodeSlot{1}, report.SerializeAsString()).status(); });
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

TEST_F(LeaderTest, ANewLeaderCommitsOnceItHasHeardOfAll) {
  Protect(At(1, 5));
  StartLeader();
  for (const uint64_t slot : {0, 1, 2}) Report(NodeSlot{slot});
  Settle();
  EXPECT_EQ(commit().world(), 0U);
  Report(NodeSlot{3});
  Settle();
  EXPECT_EQ(VersionOf(commit()), At(1, 5));
}

// --- nodes are lost while a version is being encoded (docs/protocol.md, rule 18) ---

TEST_F(LeaderTest, AVersionThatALostNodeWithoutRanksHadNoSlabOfIsCommitted) {
  world_ = 3;
  homes_.erase(NodeSlot{3});
  Protect(At(1, 5));
  nodes_.at(NodeSlot{0}).versions.at(At(1, 5)).set_guarded(false);  // it waits for node 3
  ReportAll();
  Leave(NodeSlot{3});
  ReportAll();
  EXPECT_TRUE(view().members(3).lost());
  EXPECT_EQ(commit().world(), 0U);
  nodes_.at(NodeSlot{0}).versions.at(At(1, 5)).set_guarded(true);
  ReportAll();
  EXPECT_EQ(VersionOf(commit()), At(1, 5));
}

TEST_F(LeaderTest, AVersionWhoseLostSlabsCanBeDecodedWaitsForTheDecision) {
  Protect(At(1, 4));
  ReportAll();
  ASSERT_EQ(VersionOf(commit()), At(1, 4));
  Protect(At(1, 5));
  nodes_.at(NodeSlot{0}).versions.at(At(1, 5)).set_guarded(false);
  ReportAll();
  Leave(NodeSlot{3});
  nodes_.at(NodeSlot{0}).versions.at(At(1, 5)).set_guarded(true);  // redone without node 3
  ReportAll();
  Settle(seconds(60));
  ReportAll();
  EXPECT_EQ(VersionOf(commit()), At(1, 4)) << "its rank is to be decoded";
  EXPECT_FALSE(IsAbandoned(At(1, 5))) << "but can be";
  // Another node in its slot; then all ranks ask.
  Join(NodeSlot{3}, "b");
  Settle(seconds(2));
  Ask(2);
  EXPECT_EQ(decision().kind(), static_cast<uint32_t>(DecisionKind::kRestored));
  EXPECT_EQ(decision().version_step(), 5U);
  ASSERT_EQ(decision().holders_size(), 4);
  EXPECT_TRUE(decision().holders(3).lost());
  EXPECT_EQ(VersionOf(commit()), At(1, 5));
}

TEST_F(LeaderTest, AVersionWhoseLostSlabsCannotBeDecodedIsGivenUp) {
  Protect(At(1, 5));
  for (auto& [slot, node] : nodes_) node.versions.at(At(1, 5)).set_guarded(false);
  ReportAll();
  Leave(NodeSlot{3});
  ReportAll();
  Settle(seconds(25));
  EXPECT_TRUE(IsAbandoned(At(1, 5)));
}

TEST_F(LeaderTest, AGuardThatAnEmptyNodeFilledIsNotCounted) {
  Protect(At(1, 4));
  ReportAll();
  Protect(At(1, 5));
  Leave(NodeSlot{3});
  Join(NodeSlot{3}, "b");
  Settle(seconds(2));
  // It encodes the others' slabs with an empty one of its own.
  auto homes = homes_;
  homes.erase(NodeSlot{3});
  Guard(NodeSlot{3}, At(1, 5), homes, "b");
  nodes_.at(NodeSlot{3}).versions.at(At(1, 5)).set_coding(12);
  ReportAll();
  EXPECT_EQ(VersionOf(commit()), At(1, 4));
  Ask(2);
  EXPECT_EQ(decision().version_step(), 5U);
  EXPECT_TRUE(decision().holders(3).lost());
}

// --- deciding ---

TEST_F(LeaderTest, DecidesTheNewestThatCanBeRestoredAndReadsItAgain) {
  Protect(At(1, 4));
  ReportAll();
  Protect(At(1, 5));
  // Two nodes have their slabs no more, and one of the others not its parities.
  for (const uint64_t slot : {0, 1}) nodes_.at(NodeSlot{slot}).versions.at(At(1, 5)).clear_sealed();
  nodes_.at(NodeSlot{2}).versions.at(At(1, 5)).set_guarded(false);
  Ask(2);
  EXPECT_EQ(decision().version_step(), 4U);
  EXPECT_EQ(NumberOf(Timeline{decision().timeline()}), 2U);
  for (const auto& [slot, node] : nodes_) EXPECT_TRUE(node.verified.contains(At(1, 4)));
}

// What a node had found bad was named as its slab once more.
TEST_F(LeaderTest, AReportFromBeforeAVerificationDoesNotUndoIt) {
  Protect(At(1, 4));
  ReportAll();
  ReportingNode& node = nodes_.at(NodeSlot{2});
  for (const uint64_t slot : {2, 3}) nodes_.at(NodeSlot{slot}).holds_answers = true;
  Ask(2);
  NodeReport late = node.report;
  late.set_number(late.number() + 1);
  node.report.set_number(late.number());
  node.versions.at(At(1, 4)).clear_sealed();  // it does not verify
  ReleaseAnswers(NodeSlot{2});
  InTurn([&] { ASSERT_TRUE(leader_->OnReport(NodeSlot{2}, late.SerializeAsString()).ok()); });
  ReleaseAnswers(NodeSlot{3});
  ASSERT_EQ(decision().version_step(), 4U);
  ASSERT_EQ(decision().holders_size(), 4);
  EXPECT_EQ(decision().holders(2).slot(), 2U);
  EXPECT_TRUE(decision().holders(2).lost());
}

// What is found bad is only known to the process that has found it.
TEST_F(LeaderTest, ADaemonThatStartsAgainInARoundVerifiesAgain) {
  Protect(At(1, 4));
  ReportAll();
  ReportingNode& node = nodes_.at(NodeSlot{2});
  for (const uint64_t slot : {2, 3}) nodes_.at(NodeSlot{slot}).holds_answers = true;
  Ask(2);
  const VersionHolding sealed = node.versions.at(At(1, 4));
  node.versions.at(At(1, 4)).clear_sealed();  // it does not verify
  ReleaseAnswers(NodeSlot{2});
  // The next process takes the slot for what its header says.
  node.versions.at(At(1, 4)) = sealed;
  node.verified.clear();
  StartAgain(NodeSlot{2});
  Report(NodeSlot{2});
  Settle();
  EXPECT_TRUE(node.verified.contains(At(1, 4)));
  node.versions.at(At(1, 4)).clear_sealed();
  ReleaseAnswers(NodeSlot{3});
  EXPECT_EQ(decision().holders_size(), 0) << "decided on what nobody has read";
  ReleaseAnswers(NodeSlot{2});
  ASSERT_EQ(decision().holders_size(), 4);
  EXPECT_TRUE(decision().holders(2).lost());
}

// Its answer was taken for one of the process before it, whose reports count higher.
TEST_F(LeaderTest, ADaemonThatTheStoreDoesNotTellOfYetVerifiesNothing) {
  Protect(At(1, 4));
  ReportAll();
  ReportingNode& node = nodes_.at(NodeSlot{2});
  node.record.set_session(2);
  Ask(2);
  EXPECT_EQ(decision().holders_size(), 0);
  node.versions.at(At(1, 4)).clear_sealed();
  StartAgain(NodeSlot{2});
  Report(NodeSlot{2});
  Settle();
  ASSERT_EQ(decision().holders_size(), 4);
  EXPECT_TRUE(decision().holders(2).lost());
}

TEST_F(LeaderTest, UntilACaptureBeginsTheSameDecisionOpensNoOtherTimeline) {
  Protect(At(1, 4));
  ReportAll();
  Ask(2);
  ASSERT_EQ(NumberOf(Timeline{decision().timeline()}), 2U);
  Ask(2);
  EXPECT_EQ(NumberOf(Timeline{decision().timeline()}), 2U);
  nodes_.at(NodeSlot{1}).report.set_capture_began(true);
  Ask(2);
  EXPECT_EQ(NumberOf(Timeline{decision().timeline()}), 3U);
  EXPECT_EQ(decision().version_step(), 4U);
}

// A rank of the earlier attempt that lives on elsewhere would name its versions as they do.
TEST_F(LeaderTest, OtherProcessesHaveATimelineOfTheirOwn) {
  Protect(At(1, 4));
  ReportAll();
  Ask(2);
  ASSERT_EQ(NumberOf(Timeline{decision().timeline()}), 2U);
  Ask(3);
  EXPECT_EQ(NumberOf(Timeline{decision().timeline()}), 3U);
  EXPECT_EQ(decision().version_step(), 4U);
}

TEST_F(LeaderTest, NamesTheRanksThatDoNotAsk) {
  options_.restore_wait = seconds(3);
  homes_[NodeSlot{2}] = {};
  for (auto& [slot, node] : nodes_) {
    node.report.set_attempt(7);
    node.report.set_world(world_);
    for (const Rank rank : homes_[slot]) node.report.add_asking()->set_rank(rank.value);
  }
  ReportAll();
  Settle(seconds(4));
  EXPECT_EQ(decision().kind(), static_cast<uint32_t>(DecisionKind::kFailed));
  EXPECT_NE(decision().status_message().find("missing: rank 2"), std::string::npos)
      << decision().status_message();
}

TEST_F(LeaderTest, WhatWasCommittedAndIsNowhereIsUnrecoverable) {
  Protect(At(1, 4));
  ReportAll();
  for (const uint64_t slot : {1, 2, 3}) nodes_.at(NodeSlot{slot}).versions.clear();
  Ask(2);
  EXPECT_EQ(decision().kind(), static_cast<uint32_t>(DecisionKind::kFailed));
  EXPECT_NE(decision().status_message().find("unrecoverable"), std::string::npos);
  EXPECT_EQ(decision().status_message().find("lost"), std::string::npos)
      << decision().status_message();
}

TEST_F(LeaderTest, WhatIsUnrecoverableWhileALossIsMadeGoodIsToBeTriedAgain) {
  Protect(At(1, 4));
  ReportAll();
  Ask(2);
  ASSERT_EQ(decision().kind(), static_cast<uint32_t>(DecisionKind::kRestored));
  for (const uint64_t slot : {1, 3}) nodes_.at(NodeSlot{slot}).versions.clear();
  nodes_.at(NodeSlot{2}).versions.at(At(1, 4)).clear_sealed();
  Ask(3);
  EXPECT_EQ(decision().kind(), static_cast<uint32_t>(DecisionKind::kFailed));
  EXPECT_NE(decision().status_message().find("node 1, 3 may still be making its share of version "
                                             "1:4 anew: start again"),
            std::string::npos)
      << decision().status_message();
}

TEST_F(LeaderTest, WhatIsUnrecoverableWithoutLostNodesIsRestoredWhenOneComesBack) {
  Protect(At(1, 4));
  ReportAll();
  const auto kept = nodes_.at(NodeSlot{2}).versions;
  const uint64_t number = nodes_.at(NodeSlot{2}).report.number();
  for (const uint64_t slot : {1, 2, 3}) Leave(NodeSlot{slot});
  for (const uint64_t slot : {1, 3}) Join(NodeSlot{slot}, "b");  // destroyed and replaced
  Settle(seconds(2));
  // Its rank asks on another node.
  homes_[NodeSlot{0}].push_back(Rank{2});
  homes_.erase(NodeSlot{2});
  Ask(2);
  EXPECT_EQ(decision().kind(), static_cast<uint32_t>(DecisionKind::kFailed));
  EXPECT_NE(decision().status_message().find("without node 2, lost"), std::string::npos)
      << decision().status_message();
  // Node 2 was only away.
  ReportingNode& back = Join(NodeSlot{2});
  back.versions = kept;
  back.report.set_number(number);
  Settle(seconds(2));
  Ask(3);
  EXPECT_EQ(decision().kind(), static_cast<uint32_t>(DecisionKind::kRestored))
      << decision().status_message();
  EXPECT_EQ(decision().version_step(), 4U);
}

}  // namespace
}  // namespace unreft::smp
