// What a node does after its slabs of a decided version are whole: its share of the group's
// protection; and what it stages for its ranks.

#include <set>

#include "tests/unit/smp/restore_desk_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using RestoreDeskTest = RestoreDeskFixture;

TEST_F(RestoreDeskTest, AFreshNodeMakesItsShareAnewFromTheGroupsRecord) {
  Decide(Timeline{2});
  Settle(seconds(1));
  EXPECT_EQ(OwnCoding(), GroupCoding());
}

// The answer to the first restore's question was taken for the second's, whose catalog knew of one
// slab of two: a guard of that was made, and the right one was not.
TEST_F(RestoreDeskTest, AnAnswerToASupersededRestoreTellsNothingOfTheNext) {
  RecordDone answer;
  for (auto& [slot, other] : others_) {
    other.on_record = [&](RecordDone done) { answer = std::move(done); };
    other.gives = false;
  }
  Decide(Timeline{2});
  ASSERT_TRUE(scheduler_.RunUntil([&] { return answer != nullptr; }, 100000));
  ReadStaged();
  ASSERT_TRUE(scheduler_.RunUntil([&] { return !others_[NodeSlot{1}].waiting.empty(); }, 100000));
  others_[NodeSlot{2}].describes = false;
  Decide(Timeline{3}, true);
  Settle(milliseconds(10));
  answer(absl::NotFoundError("it has no guard"));
  for (auto& [slot, other] : others_) {
    other.on_record = [this](RecordDone done) { done(GuardRecord(record_of_group_)); };
    other.gives = true;
  }
  Settle(milliseconds(500));
  EXPECT_EQ(OwnCoding(), std::nullopt);
  others_[NodeSlot{2}].describes = true;
  Settle(seconds(2));
  EXPECT_EQ(OwnCoding(), GroupCoding());
}

// It was given the first one's timeline again, in which the rank had captured: two trainings had
// versions of one name.
TEST_F(RestoreDeskTest, ATrainersSecondRestoreIsDecidedAnewAndTheFirstAskedAgainIsNot) {
  RecordingChannel channel;
  RecordingCoordinator* coordinator = nullptr;
  Hello hello;
  hello.world = 1;
  hello.attempt = Attempt{1};
  hello.life = table_.Start();
  const auto ask = [&](uint64_t request) {
    InTurn([&] { desk_->OnRestoreRequest(*state_->sessions.at(Rank{0}), {.request = request}); });
  };
  InTurn([&] {
    auto recording = std::make_unique<RecordingCoordinator>();
    coordinator = recording.get();
    state_->coordinator = std::move(recording);
    state_->sessions[Rank{0}] = std::make_unique<RankSession>(hello, segments_);
    state_->sessions[Rank{0}]->Attach(&channel);
  });
  ask(7);
  ASSERT_EQ(coordinator->asked, 1);
  JobDecision decision;
  decision.kind = DecisionKind::kFresh;
  decision.attempt = Attempt{1};
  decision.timeline = Timeline{2};
  decision.asked[Rank{0}] = {Rank{0}, hello.life, 7};
  InTurn([&] { desk_->OnDecision(decision); });
  ask(7);
  EXPECT_EQ(coordinator->asked, 1);
  EXPECT_EQ(channel.Told<Decision>(FrameType::kDecision).size(), 2U);
  InTurn([&] { state_->record->SetCaptureBegan(); });
  ask(8);
  EXPECT_EQ(coordinator->asked, 2);
  EXPECT_EQ(channel.Told<Decision>(FrameType::kDecision).size(), 2U);
}

// It was asked for anew when another rank of the node ended, and again with the next one that
// asked; once told, it never took that back, and stood in the way of attempts of another world.
TEST_F(RestoreDeskTest, WhoWaitsToBeToldWhatWasDecidedAsksForNoOtherDecision) {
  RecordingCoordinator* coordinator = nullptr;
  InTurn([&] {
    auto recording = std::make_unique<RecordingCoordinator>();
    coordinator = recording.get();
    state_->coordinator = std::move(recording);
  });
  others_[NodeSlot{1}].describes = false;
  Ask(Rank{4}, 3, true);
  Ask(Rank{5}, 3, true);
  Decide(Timeline{3});
  Settle();
  ASSERT_TRUE(channels_[Rank{4}].Told<Decision>(FrameType::kDecision).empty());
  InTurn([&] { desk_->OnSessionEnded(*state_->sessions.at(Rank{5})); });
  EXPECT_TRUE(coordinator->askers.empty());
  InTurn([&] { desk_->OnRestoreRequest(Connect(Rank{6}, 3), {.request = 1}); });
  ASSERT_EQ(coordinator->askers.size(), 1U);
  EXPECT_EQ(coordinator->askers[0].rank, Rank{6});
  others_[NodeSlot{1}].describes = true;
  Settle(seconds(3));
  EXPECT_EQ(AnswerTo(Rank{4}).timeline, Timeline{3});
}

// It waited until its restore_timeout: no node counted it among those that ask any more.
TEST_F(RestoreDeskTest, WhoWaitsToBeToldWhatAnotherDecisionReplacedIsTold) {
  others_[NodeSlot{1}].describes = false;
  Ask(Rank{4}, 3, true);
  Decide(Timeline{3});
  Settle();
  ASSERT_TRUE(channels_[Rank{4}].Told<Decision>(FrameType::kDecision).empty());
  asked_.clear();
  Ask(Rank{5}, 3, true);
  Decide(Timeline{4});
  const Decision replaced = AnswerTo(Rank{4});
  EXPECT_EQ(replaced.kind, DecisionKind::kFailed);
  EXPECT_EQ(replaced.status.ToStatus().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(replaced.status.ToStatus().message()),
              HasSubstr("rank 4: timeline 3, which was decided for it, ended before it was told: "
                        "timeline 4"));
  EXPECT_TRUE(channels_[Rank{5}].Told<Decision>(FrameType::kDecision).empty());
  others_[NodeSlot{1}].describes = true;
  Settle(seconds(3));
  EXPECT_EQ(AnswerTo(Rank{5}).timeline, Timeline{4});
  EXPECT_EQ(channels_[Rank{4}].Told<Decision>(FrameType::kDecision).size(), 1U);
}

// --- the bytes of other nodes ---

TEST_F(RestoreDeskTest, RanksShareOneSegmentOfABlockForEach) {
  state_->options.restore_staging_bytes = 0;
  Decide(Timeline{2});
  Settle();
  InTurn([&] {
    Connect(Rank{5});
    Connect(Rank{6});
  });
  ReadStaged(Rank{5});
  ReadStaged(Rank{6});
  std::map<Rank, uint64_t> copied;
  for (int turn = 0; turn < 20; ++turn) {
    Settle();
    EXPECT_LE(state_->memory->use(SegmentKind::kStaging).bytes, 2 * kBlockBytes);
    for (const Rank rank : {Rank{5}, Rank{6}}) {
      if (turn == 0) {
        ASSERT_EQ(PlansOf(rank).size(), 1U);
        EXPECT_EQ(PlansOf(rank)[0].staging_bytes, 2 * kBlockBytes);
        EXPECT_EQ(PlansOf(rank)[0].staging_segment, "/unreft.job.0.staging");
      }
      copied[rank] += CopyStaged(rank);
    }
  }
  EXPECT_EQ(copied[Rank{5}], kBlocks);
  EXPECT_EQ(copied[Rank{6}], kBlocks);
}

TEST_F(RestoreDeskTest, WhatSeveralRanksWantIsReadOnceFromTheOtherNode) {
  Decide(Timeline{2});
  Settle();
  InTurn([&] {
    Connect(Rank{5});
    Connect(Rank{6});
    others_[NodeSlot{1}].given = 0;  // for this node's guard
  });
  ReadStaged(Rank{5});
  ReadStaged(Rank{6});
  std::map<Rank, uint64_t> copied;
  for (int turn = 0; turn < 20; ++turn) {
    Settle();
    for (const Rank rank : {Rank{5}, Rank{6}}) copied[rank] += CopyStaged(rank);
  }
  EXPECT_EQ(copied[Rank{5}], kBlocks);
  EXPECT_EQ(copied[Rank{6}], kBlocks);
  EXPECT_EQ(others_[NodeSlot{1}].given, kBlocks);
}

// Whatever a trainer asks for, the node's thread computes no plan; and a rank has one at a time.
TEST_F(RestoreDeskTest, APlanIsComputedOnThePoolAndTheLastOneAskedForIsTold) {
  Decide(Timeline{2});
  Settle();
  InTurn([&] {
    RankSession& session = Connect(Rank{5});
    const TensorSpec tensor = TensorOf(NodeSlot{1});
    const size_t before = pool_.pending();
    for (const uint64_t request : {1, 2, 3}) {
      desk_->OnPlanRequest(session, {request, ToWire({&tensor, 1})});
    }
    EXPECT_EQ(pool_.pending(), before + 1);
    EXPECT_TRUE(PlansOf(Rank{5}).empty());
  });
  Settle(seconds(1));
  ASSERT_EQ(PlansOf(Rank{5}).size(), 1U);
  EXPECT_EQ(PlansOf(Rank{5})[0].request, 3U);
  EXPECT_TRUE(PlansOf(Rank{5})[0].status.ToStatus().ok());
}

TEST_F(RestoreDeskTest, AllPiecesAreNamedBeforeThePlanAndBlocksByTheirNumbers) {
  Decide(Timeline{2});
  Settle();
  ReadStaged();
  Settle();
  const auto& sent = channels_[Rank{5}].sent;
  ASSERT_GE(sent.size(), 3U);
  EXPECT_EQ(sent[0].type, static_cast<uint16_t>(FrameType::kPlanPage));
  EXPECT_EQ(sent[1].type, static_cast<uint16_t>(FrameType::kPlan));
  const PlanPage page = channels_[Rank{5}].Told<PlanPage>(FrameType::kPlanPage).at(0);
  EXPECT_THAT(page.pieces, ElementsAre(PlanPiece{.bytes = kBlocks * kBlockBytes}));
  const Plan plan = PlansOf(Rank{5}).at(0);
  EXPECT_EQ(plan.paged_pieces, 1U);
  ASSERT_EQ(plan.sources.size(), 1U);
  EXPECT_EQ(plan.sources[0].rank, Rank{0});
  EXPECT_TRUE(plan.sources[0].is_staged());
  EXPECT_EQ(plan.block_bytes, kBlockBytes);
  std::set<uint64_t> blocks;
  for (int turn = 0; turn < 20; ++turn) {
    for (const Staged& staged : channels_[Rank{5}].Told<Staged>(FrameType::kStaged)) {
      EXPECT_TRUE(staged.pieces.empty());
      if (staged.bytes > 0) {
        EXPECT_TRUE(blocks.insert(staged.block).second);
      }
    }
    CopyStaged(Rank{5});
    Settle();
  }
  EXPECT_THAT(blocks, ElementsAre(0, 1, 2, 3));
}

// Its trainers restore while the daemons are upgraded one after the other.
TEST_F(RestoreDeskTest, ALibraryOfAnEarlierReleaseIsToldEachRowWithItsBlock) {
  Decide(Timeline{2});
  Settle();
  reads_pages_ = false;
  ReadStaged();
  Settle();
  EXPECT_TRUE(channels_[Rank{5}].Told<PlanPage>(FrameType::kPlanPage).empty());
  const Plan plan = PlansOf(Rank{5}).at(0);
  EXPECT_TRUE(plan.sources.empty());
  EXPECT_EQ(plan.staged_bytes, kBlocks * kBlockBytes);
  std::set<uint64_t> written;
  for (int turn = 0; turn < 20; ++turn) {
    for (const Staged& staged : channels_[Rank{5}].Told<Staged>(FrameType::kStaged)) {
      if (staged.bytes == 0) continue;
      ASSERT_EQ(staged.pieces.size(), 1U);
      EXPECT_EQ(staged.pieces[0].source_offset, 0U);
      EXPECT_EQ(staged.pieces[0].bytes, kBlockBytes);
      EXPECT_TRUE(written.insert(staged.pieces[0].target_offset).second);
    }
    CopyStaged(Rank{5});
    Settle();
  }
  EXPECT_EQ(written.size(), kBlocks);
}

TEST_F(RestoreDeskTest, APlanThatIsTooLargeIsRefusedAtOnceWithTheNumber) {
  Decide(Timeline{2});
  Settle();
  InTurn([&] {
    RankSession& session = Connect(Rank{5});
    std::vector<TensorSpec> tensors;
    for (uint64_t i = 0; i <= layout::kShardsMax; ++i) {
      tensors.push_back(Spec("w", {1 << 20}, {i}, {1}));
    }
    desk_->OnPlanRequest(session, {1, ToWire(tensors)});
  });
  Settle(milliseconds(200));  // no memory is waited for
  ASSERT_EQ(PlansOf(Rank{5}).size(), 1U);
  const absl::Status status = PlansOf(Rank{5})[0].status.ToStatus();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("262145 shards, at most 262144"));
}

TEST_F(RestoreDeskTest, APlanWaitsForTheMemoryOfItsStaging) {
  const uint64_t bytes_max = host_.bytes_max();
  Decide(Timeline{2});
  Settle();
  host_.set_bytes_max(host_.bytes_used());
  ReadStaged();
  Settle(seconds(1));
  EXPECT_TRUE(PlansOf(Rank{5}).empty());
  host_.set_bytes_max(bytes_max);
  Settle(seconds(2));
  ASSERT_EQ(PlansOf(Rank{5}).size(), 1U);
  EXPECT_TRUE(PlansOf(Rank{5})[0].status.ToStatus().ok());
  EXPECT_EQ(PlansOf(Rank{5})[0].staged_bytes, kBlocks * kBlockBytes);
}

TEST_F(RestoreDeskTest, APlanWithoutMemoryForItsStagingEndsWithTheNumbers) {
  Decide(Timeline{2});
  Settle();
  host_.set_bytes_max(host_.bytes_used());
  ReadStaged();
  Settle(2 * options_.read_timeout);
  ASSERT_EQ(PlansOf(Rank{5}).size(), 1U);
  const absl::Status status = PlansOf(Rank{5})[0].status.ToStatus();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the staging of 256 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("bytes of shared memory needed"));
}

// It was told to the log, and nothing was tried again.
TEST_F(RestoreDeskTest, ARecordThatNobodyTellsInTimeIsAskedForAgain) {
  for (auto& [slot, other] : others_) {
    other.on_record = [](RecordDone done) { done(absl::UnavailableError("it starts")); };
  }
  Decide(Timeline{2});
  Settle(2 * options_.read_timeout);
  EXPECT_EQ(OwnCoding(), std::nullopt);
  EXPECT_GE(log_lines_.Count("its protection is not made anew"), 1U);
  for (auto& [slot, other] : others_) {
    other.on_record = [this](RecordDone done) { done(GuardRecord(record_of_group_)); };
  }
  Settle(2 * options_.read_timeout);
  EXPECT_EQ(OwnCoding(), GroupCoding());
}

}  // namespace
}  // namespace unreft::smp
