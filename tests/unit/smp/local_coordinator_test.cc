#include "smp/job/local_coordinator.h"

#include <gmock/gmock.h>

#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The node's side, as a list of what was asked and slabs that the test sets.
class FakeNode final : public Coordinator::Node {
 public:
  explicit FakeNode(Executor& executor) : executor_(executor) {}

  void CloseTimeline(absl::AnyInvocable<void()> done) override {
    executor_.Post([done = std::move(done)]() mutable { done(); });
  }
  void ReopenTimeline() override {}  // a coordinator of its own hears of each decision at once
  void Verify(Version version, absl::AnyInvocable<void(absl::Status)> done) override {
    absl::Status status;
    if (rotten == version) {
      status = absl::DataLossError("rotten");
      std::erase_if(slabs, [&](const auto& slab) { return slab.version == version; });
    }
    // Found by somebody else, and not read any more.
    if (found_rotten == version) {
      std::erase_if(slabs, [&](const auto& slab) { return slab.version == version; });
    }
    executor_.Post([done = std::move(done), status]() mutable { done(status); });
  }
  std::vector<HeldSlab> Inventory() override {
    std::vector<HeldSlab> held;
    for (const recovery::SealedSlab& slab : slabs) {
      held.push_back({slab, std::make_shared<const layout::SlotManifest>()});
    }
    return held;
  }
  std::vector<RegisteredTrainer> Registrations() override { return registered; }
  void OnRegistrationsChecked(const RegistrationCheck& check) override { checks.push_back(check); }
  std::vector<RottenSlab> RottenSlabs() override { return {}; }  // of use to a job of several
  void OnDecision(const JobDecision& decision) override { decisions.push_back(decision); }
  void OnCommitted(Version version) override { committed.push_back(version); }
  void OnAbandoned(Version version, const std::string& why) override {
    abandoned.push_back(version);
    reason = why;
  }
  void OnCaptureFrom(Version first) override { from = first.step; }
  void OnReplicasDisagree(const std::string& what) override { disagreement = what; }
  void OnPins(const PinRecord& record) override { pins = record; }
  uint64_t RanksServed() override { return ranks; }
  uint64_t ranks = 0;
  void OnObstacle(const std::string&) override {}
  void OnStanding(const Standing&) override {}
  void OnRefused(const absl::Status&) override {}

  std::vector<recovery::SealedSlab> slabs;
  std::vector<RegisteredTrainer> registered;
  std::vector<RegistrationCheck> checks;
  std::optional<Version> rotten;
  std::optional<Version> found_rotten;
  std::vector<JobDecision> decisions;
  std::vector<Version> committed;
  std::vector<Version> abandoned;
  std::string reason;  // of the last
  Step from;
  std::string disagreement;
  PinRecord pins;

 private:
  Executor& executor_;
};

class LocalCoordinatorTest : public SmpFixture {
 protected:
  LocalCoordinatorTest() {
    options_.restore_wait = std::chrono::seconds(5);
    options_.version_deadline = std::chrono::seconds(2);
  }
  ~LocalCoordinatorTest() override {
    InTurn([&] { coordinator_.reset(); });
  }

  void Ask(uint64_t attempt, uint64_t world, std::vector<Rank> ranks) {
    std::vector<Asker> askers;
    for (const Rank rank : ranks) {
      askers.push_back({rank, ProcessLife{static_cast<int64_t>(100 * attempt + rank.value), 1}});
    }
    InTurn([&] { coordinator_->AskDecision(Attempt{attempt}, world, std::move(askers)); });
    Settle();
  }
  JobDecision Decide(uint64_t attempt = 1, uint64_t world = 2) {
    std::vector<Rank> ranks;
    for (uint64_t rank = 0; rank < world; ++rank) ranks.push_back(Rank{rank});
    Ask(attempt, world, ranks);
    return node_.decisions.back();
  }
  void Seal(Version version, Rank rank, ReplicaDigests digests = {}) {
    InTurn([&] { coordinator_->ReportSealed(version, rank, 2, digests); });
    node_.slabs.push_back({version, rank, 2});
  }
  void Commit(Version version) {
    Seal(version, Rank{0});
    Seal(version, Rank{1});
  }
  absl::Status AskPin(const std::string& owner, uint64_t for_ms) {
    PinRequest request;
    request.set_owner(owner);
    request.set_for_ms(for_ms);
    absl::Status status = absl::UnknownError("no answer");
    InTurn([&] { coordinator_->AskPins(request, [&](auto reply) { status = reply.status(); }); });
    Settle();
    return status;
  }
  // Another process of the daemon, on the same memory and records.
  void Restart() {
    InTurn([&] { coordinator_.reset(); });
    record_.reset();
    record_ = NewRecord();
    InTurn([&] {
      coordinator_ =
          std::make_unique<LocalCoordinator>(*executor_, *record_, node_, log_, options_, nullptr);
      node_.pins.Clear();
      coordinator_->Start();
    });
  }

  FakeNode node_{*executor_};
  std::unique_ptr<NodeRecord> record_ = NewRecord();
  std::unique_ptr<LocalCoordinator> coordinator_ =
      std::make_unique<LocalCoordinator>(*executor_, *record_, node_, log_, options_, nullptr);
};

Version In(Timeline timeline, uint64_t step) { return {timeline, Step{step}}; }

TEST_F(LocalCoordinatorTest, NothingStoredOpensATimelineAndSaysTheSameAgain) {
  const JobDecision first = Decide();
  EXPECT_EQ(first.kind, DecisionKind::kFresh);
  EXPECT_EQ(first.timeline, Timeline{1});
  // Of the record, a fresh one: no capture began.
  EXPECT_EQ(Decide().timeline, Timeline{1});
  InTurn([&] { record_->SetCaptureBegan(); });
  EXPECT_EQ(Decide().timeline, Timeline{2});
}

// A process of the earlier attempt that lives on would name its versions as they do.
TEST_F(LocalCoordinatorTest, OtherProcessesHaveATimelineOfTheirOwn) {
  EXPECT_EQ(Decide(1).timeline, Timeline{1});
  EXPECT_EQ(Decide(2).timeline, Timeline{2});
  Restart();  // who was told of it is not known any more
  EXPECT_EQ(Decide(2).timeline, Timeline{3});
}

TEST_F(LocalCoordinatorTest, WaitsForAllRanksAndNamesTheMissing) {
  Ask(1, 4, {Rank{1}, Rank{2}});
  EXPECT_THAT(node_.decisions, IsEmpty());
  Settle(std::chrono::seconds(6));
  ASSERT_EQ(node_.decisions.size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(node_.decisions[0].status));
  EXPECT_THAT(std::string(node_.decisions[0].status.message()), HasSubstr("missing: rank 0, 3"));
}

TEST_F(LocalCoordinatorTest, CommitsWhatAllRanksSealedAndRestoresIt) {
  const Timeline timeline = Decide().timeline;
  Commit(In(timeline, 1));
  Seal(In(timeline, 2), Rank{0});
  EXPECT_THAT(node_.committed, ElementsAre(In(timeline, 1)));
  EXPECT_EQ(record_->committed(), In(timeline, 1));
  const JobDecision decision = Decide(2);
  EXPECT_EQ(decision.kind, DecisionKind::kRestored);
  EXPECT_EQ(decision.version, In(timeline, 1));
  EXPECT_GT(decision.timeline, timeline);
}

TEST_F(LocalCoordinatorTest, StepsBackWhenTheNewestDoesNotVerify) {
  const Timeline timeline = Decide().timeline;
  Commit(In(timeline, 1));
  Commit(In(timeline, 2));
  node_.rotten = In(timeline, 2);
  EXPECT_EQ(Decide(2).version, In(timeline, 1));
}

// The scrubber found it bad between the choice and the reading: decided all the same, a rank was
// told that it had saved no extras.
TEST_F(LocalCoordinatorTest, StepsBackWhenTheNewestIsNotThereAnyMore) {
  const Timeline timeline = Decide().timeline;
  Commit(In(timeline, 1));
  Commit(In(timeline, 2));
  node_.found_rotten = In(timeline, 2);
  EXPECT_EQ(Decide(2).version, In(timeline, 1));
}

TEST_F(LocalCoordinatorTest, SaysUnrecoverableAndNeverFreshAfterACommit) {
  const Timeline timeline = Decide().timeline;
  Commit(In(timeline, 1));
  node_.slabs.pop_back();
  const JobDecision decision = Decide(2);
  EXPECT_EQ(decision.kind, DecisionKind::kFailed);
  EXPECT_TRUE(absl::IsDataLoss(decision.status));
  EXPECT_THAT(std::string(decision.status.message()), HasSubstr("lacks rank 1"));
}

TEST_F(LocalCoordinatorTest, RefusesAnotherWorldAndNamesBoth) {
  const Timeline timeline = Decide().timeline;
  Commit(In(timeline, 1));
  const JobDecision decision = Decide(2, 3);
  EXPECT_TRUE(absl::IsFailedPrecondition(decision.status));
  EXPECT_THAT(std::string(decision.status.message()),
              HasSubstr("saved by 2 ranks, attempt 2 has 3"));
}

TEST_F(LocalCoordinatorTest, AFailedRankAbandonsTheVersionForAll) {
  const Timeline timeline = Decide().timeline;
  Seal(In(timeline, 5), Rank{0});
  InTurn([&] { coordinator_->ReportFailed(In(timeline, 5), Rank{1}, "skipped"); });
  EXPECT_THAT(node_.abandoned, ElementsAre(In(timeline, 5)));
  EXPECT_EQ(node_.from, Step{6});
  Seal(In(timeline, 5), Rank{1});
  EXPECT_THAT(node_.committed, IsEmpty()) << "what is given up stays so";
}

// A trainer with a step of nonsense kept all others from capturing for the rest of the attempt.
TEST_F(LocalCoordinatorTest, AStepFarBeyondTheOthersDoesNotKeepThemFromCapturing) {
  const Timeline timeline = Decide().timeline;
  Seal(In(timeline, 5), Rank{0});
  const Version far = In(timeline, uint64_t{1} << 61);
  InTurn([&] { coordinator_->ReportFailed(far, Rank{1}, "skipped"); });
  EXPECT_THAT(node_.abandoned, ElementsAre(far));
  EXPECT_EQ(node_.from, Step{}) << "they may still complete step 5";
}

// The fastest skipped what came after its two snapshots, and each skip moved the step at which all
// begin again beyond them: nothing was ever committed.
TEST_F(LocalCoordinatorTest, WhatTheFastestRankHoldsIsKeptUntilTheOthersHaveComeToIt) {
  const Timeline timeline = Decide().timeline;
  Seal(In(timeline, 500), Rank{0});
  for (uint64_t step = 501; step < 700; ++step) {
    InTurn([&] { coordinator_->ReportFailed(In(timeline, step), Rank{0}, "skipped"); });
  }
  InTurn([&] { coordinator_->ReportFailed(In(timeline, 499), Rank{1}, "skipped"); });
  EXPECT_EQ(node_.from, Step{500});
  Seal(In(timeline, 500), Rank{1});
  EXPECT_THAT(node_.committed, ElementsAre(In(timeline, 500)));
  InTurn([&] { coordinator_->ReportFailed(In(timeline, 501), Rank{1}, "skipped"); });
  EXPECT_EQ(node_.from, Step{700});
}

TEST_F(LocalCoordinatorTest, AVersionThatARankNeverSealsIsAbandonedAtItsDeadlineAndNamesIt) {
  const Timeline timeline = Decide().timeline;
  Seal(In(timeline, 5), Rank{0});
  Settle(std::chrono::seconds(3));
  EXPECT_THAT(node_.abandoned, ElementsAre(In(timeline, 5)));
  EXPECT_EQ(node_.reason, "rank 1 of 2 did not complete it within 2 s");
  EXPECT_EQ(coordinator_->deadlines_used(), 1u);
}

TEST_F(LocalCoordinatorTest, ANewerCommitAbandonsTheOlderIncompleteOnes) {
  const Timeline timeline = Decide().timeline;
  Seal(In(timeline, 5), Rank{0});
  Commit(In(timeline, 6));
  EXPECT_THAT(node_.committed, ElementsAre(In(timeline, 6)));
  EXPECT_THAT(node_.abandoned, ElementsAre(In(timeline, 5)));
}

TEST_F(LocalCoordinatorTest, ReplicasThatDifferAreNotCommitted) {
  const Timeline timeline = Decide().timeline;
  Seal(In(timeline, 1), Rank{0}, {{"w", 7}});
  Seal(In(timeline, 1), Rank{1}, {{"w", 8}});
  EXPECT_THAT(node_.committed, IsEmpty());
  EXPECT_THAT(node_.abandoned, ElementsAre(In(timeline, 1)));
  EXPECT_THAT(node_.disagreement, HasSubstr("w"));
}

TEST_F(LocalCoordinatorTest, TheFirstVersionOfATimelineNeedsAllDigests) {
  const Timeline timeline = Decide().timeline;
  Seal(In(timeline, 1), Rank{0}, {{"w", std::nullopt}});
  Seal(In(timeline, 1), Rank{1}, {{"w", 7}});
  EXPECT_THAT(node_.committed, IsEmpty());
  for (uint64_t rank : {0, 1}) Seal(In(timeline, 2), Rank{rank}, {{"w", 7}});
  for (uint64_t rank : {0, 1}) Seal(In(timeline, 3), Rank{rank}, {{"w", std::nullopt}});
  EXPECT_THAT(node_.committed, ElementsAre(In(timeline, 2), In(timeline, 3)));
}

TEST_F(LocalCoordinatorTest, VersionsOfAnEarlierTimelineAreOfNoUse) {
  const Timeline old = Decide().timeline;
  InTurn([&] { record_->SetCaptureBegan(); });
  Decide(2);
  Commit(In(old, 9));
  EXPECT_THAT(node_.committed, IsEmpty());
}

// --- pins ---

TEST_F(LocalCoordinatorTest, SaysWhetherAnythingWasEverCommittedAndDecidesNothing) {
  const auto ever = [this] {
    std::optional<bool> answer;
    InTurn([&] { coordinator_->AskEverCommitted([&](auto ever) { answer = *ever; }); });
    Settle();
    return answer;
  };
  EXPECT_EQ(ever(), false);
  EXPECT_THAT(node_.decisions, IsEmpty());
  EXPECT_EQ(record_->chain().newest(), Timeline{0});
  const Timeline timeline = Decide().timeline;
  Seal(In(timeline, 5), Rank{0});
  EXPECT_EQ(ever(), false);
  Seal(In(timeline, 5), Rank{1});
  EXPECT_EQ(ever(), true);
  Restart();
  EXPECT_EQ(ever(), true);
  InTurn([&] { coordinator_->DeclareFreshStart(false, [](auto) {}); });
  Settle();
  EXPECT_EQ(ever(), false) << "what was given up does not count";
}

TEST_F(LocalCoordinatorTest, APinHoldsUntilItsTimeIsUpAlsoOverARestart) {
  options_.pins = 1;
  const Version pinned = In(Decide().timeline, 1);
  Commit(pinned);
  ASSERT_TRUE(AskPin("export", 5000).ok());
  EXPECT_TRUE(IsPinned(node_.pins, pinned));
  Settle(std::chrono::seconds(3));
  Restart();
  EXPECT_TRUE(IsPinned(node_.pins, pinned)) << "the next process counts anew";
  Settle(std::chrono::seconds(3));
  EXPECT_TRUE(IsPinned(node_.pins, pinned));
  Settle(std::chrono::seconds(3));
  EXPECT_FALSE(IsPinned(node_.pins, pinned));
  Restart();
  EXPECT_FALSE(IsPinned(node_.pins, pinned));
}

TEST_F(LocalCoordinatorTest, APinThatIsNotWrittenIsNoPromise) {
  options_.pins = 1;
  Commit(In(Decide().timeline, 1));
  disk_.set_bytes_max(1);
  EXPECT_FALSE(AskPin("export", 5000).ok());
}

TEST_F(LocalCoordinatorTest, AFreshStartIsRefusedWhileRanksAreConnected) {
  const Timeline timeline = Decide().timeline;
  Commit(In(timeline, 1));
  node_.ranks = 2;
  absl::StatusOr<Timeline> opens = absl::UnknownError("no answer");
  const auto declare = [&](bool force) {
    InTurn([&] {
      coordinator_->DeclareFreshStart(force, [&](auto answer) { opens = std::move(answer); });
    });
    Settle();
  };
  declare(false);
  EXPECT_EQ(opens.status().code(), absl::StatusCode::kFailedPrecondition) << opens.status();
  EXPECT_EQ(record_->committed(), In(timeline, 1));
  declare(true);
  ASSERT_TRUE(opens.ok()) << opens.status();
  // Also for the same processes.
  const JobDecision decision = Decide();
  EXPECT_EQ(decision.kind, DecisionKind::kFresh);
  EXPECT_EQ(decision.timeline, *opens);
}

TEST_F(LocalCoordinatorTest, AFreshStartEndsPins) {
  options_.pins = 1;
  Commit(In(Decide().timeline, 1));
  ASSERT_TRUE(AskPin("export", 60'000).ok());
  InTurn([&] { coordinator_->DeclareFreshStart(false, [](auto) {}); });
  EXPECT_THAT(node_.pins.pins(), IsEmpty());
}

}  // namespace
}  // namespace unreft::smp
