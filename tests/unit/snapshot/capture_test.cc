// The capture machine: what lands in the slot, and what the daemon hears of it.

#include <gmock/gmock.h>

#include "base/crc32c.h"
#include "tests/unit/snapshot/capture_fixture.h"

namespace unreft::snapshot {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

class CaptureTest : public CaptureFixture {};

TEST_F(CaptureTest, CopiesEverythingAndSaysSo) {
  Ready();
  const auto result = Snapshot(5, "extras of step 5");
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->outcome, Outcome::kStarted);
  AwaitCaptured();

  const std::vector<std::byte> expected = ExpectedSlab();
  EXPECT_EQ(Slab(0, expected.size()), expected);
  const std::span<std::byte> extras = daemon_.slot(0).view->extras();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(extras.data()), 16), "extras of step 5");

  const Claimed claimed = daemon_.Got<Claimed>().at(0);
  EXPECT_EQ(claimed.slot, SlotId{0});
  EXPECT_EQ(claimed.generation, Generation{1});
  EXPECT_EQ(claimed.version, (Version{Timeline{7}, Step{5}}));
  const Captured captured = daemon_.Got<Captured>().at(0);
  EXPECT_EQ(captured.version, claimed.version);
  EXPECT_EQ(captured.data_bytes, 448 + 4000 + 32 + 12u);
  EXPECT_EQ(captured.extras_bytes, 16u);
  EXPECT_TRUE(captured.replica_digests.empty());
  EXPECT_GE(daemon_.Count<Progress>(), 2u);

  const ProgressWord progress = ProgressWord::Decode(daemon_.control().progress.load());
  EXPECT_EQ(progress.blocks, expected.size() / ScriptedDaemon::kBlockBytes);
  EXPECT_EQ(progress.generation_low, 1u);
  EXPECT_EQ(GrantWord::Decode(daemon_.control().grant.load()).state, GrantState::kClaimed);
  EXPECT_EQ(status().last_captured, Step{5});
  EXPECT_EQ(status().bytes_captured, captured.data_bytes + 16);
}

TEST_F(CaptureTest, NothingGoesWithoutADecision) {
  StartClient();
  ASSERT_TRUE(Register().ok());
  daemon_.Grant(0, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(Snapshot(1).status()));
}

TEST_F(CaptureTest, SkipsWithoutAGrant) {
  Ready();
  EXPECT_TRUE(status().ready);
  ASSERT_TRUE(daemon_.TakeBackGrant(0, 1));
  EXPECT_FALSE(status().ready);
  ExpectSkipped(1, "the memory for the snapshots is still being prepared");
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<Skipped>() == 1; }));
  EXPECT_EQ(daemon_.Got<Skipped>().at(0).version, (Version{Timeline{7}, Step{1}}));
  EXPECT_EQ(status().skipped, 1u);
  EXPECT_EQ(WaitCommitted(1).code(), absl::StatusCode::kAborted);
}

TEST_F(CaptureTest, SkipsUntilAllRanksStartAgain) {
  Ready();
  daemon_.control().capture_from.store(4);
  ExpectSkipped(3, "all ranks start again with step 4");
  ExpectStarted(4);
}

TEST_F(CaptureTest, AStepThatHasNoNextOneIsRefusedAndNotTold) {
  Ready();
  const absl::Status status = Snapshot(UINT64_MAX - 1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("18446744073709551614"));
  ExpectStarted(1);
}

TEST_F(CaptureTest, SkipsAGrantOfMemoryThatIsNotMapped) {
  Ready();
  daemon_.Grant(0, 2);
  daemon_.slot(0).view->set_state(Generation{3}, SlotState::kCapturing);
  ExpectSkipped(1, "still being prepared");
}

// What was captured there was sealed with the bytes of the memory that has its name by now.
TEST_F(CaptureTest, SkipsAGrantWhileTheMemoryThatIsMappedIsNotGranted) {
  Ready();
  daemon_.Grant(0, 2);
  daemon_.slot(0).view->set_state(Generation{2}, SlotState::kEmpty);
  ExpectSkipped(1, "still being prepared");
  daemon_.slot(0).view->set_state(Generation{2}, SlotState::kCapturing);
  ExpectStarted(2);
}

TEST_F(CaptureTest, StepsGoForward) {
  Ready();
  ExpectStarted(5);
  Fence();
  daemon_.Grant(1, 2);
  EXPECT_TRUE(absl::IsFailedPrecondition(Snapshot(5).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(Snapshot(4).status()));
  ExpectStarted(6);
}

TEST_F(CaptureTest, ASnapshotUnderWayMakesTheNextOneSkip) {
  Ready();
  copier_.Hold();
  ExpectStarted(1);
  daemon_.Grant(1, 2);
  ExpectSkipped(2, "step 1 is still being copied");
  copier_.Release();
  AwaitCaptured();
  ExpectStarted(3);
}

TEST_F(CaptureTest, VolatileStateAndExtrasAreTakenAtOnce) {
  tensors_[1].spec.is_volatile = true;
  Ready();
  const std::vector<std::byte> before = ExpectedSlab();
  copier_.Hold();
  std::string extras = "before";
  ASSERT_TRUE(Snapshot(1, extras).ok());
  std::fill_n(tensors_[1].data, 4000, std::byte{9});
  extras = "after!";
  copier_.Release();
  AwaitCaptured();
  EXPECT_EQ(Slab(0, before.size()), before);
  EXPECT_EQ(static_cast<char>(daemon_.slot(0).view->extras()[0]), 'b');
}

TEST_F(CaptureTest, ExtrasThatDoNotFitGiveBothNumbersAndAskForMore) {
  Ready();
  const auto result = Snapshot(1, std::string(5000, 'x'));
  EXPECT_TRUE(absl::IsResourceExhausted(result.status()));
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("need 5000 bytes"));
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("has 4096"));
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<GaveUp>() == 1; }));
  EXPECT_EQ(daemon_.Got<GaveUp>().at(0).extras_bytes_needed, 5000u);
  EXPECT_EQ(daemon_.Count<Claimed>(), 1u);

  // The daemon makes larger slots and says so unasked.
  daemon_.extras_capacity = 16 * 1024;
  daemon_.MakeSlots(2, 16 * 1024);
  daemon_.SendRegistered();
  RunFor(milliseconds(10));
  daemon_.Grant(1, 1);
  EXPECT_TRUE(Snapshot(2, std::string(5000, 'x')).ok());
  AwaitCaptured();
}

TEST_F(CaptureTest, AFenceWaitsForTheCopies) {
  Ready();
  copier_.Hold();
  ExpectStarted(1);
  bool fenced = false;
  InTurn([&] { actor_->FenceThen([&] { fenced = true; }); });
  RunFor(milliseconds(100));
  EXPECT_FALSE(fenced);
  copier_.Release();
  ASSERT_TRUE(RunUntil([&] { return fenced; }));
  EXPECT_GE(status().last_fence_wait, milliseconds(100));
  EXPECT_EQ(status().last_captured, Step{1});
}

TEST_F(CaptureTest, AFenceThatTakesTooLongGivesTheVersionUpButWaitsForTheCopy) {
  options_.capture.fence_timeout = seconds(2);
  Ready();
  copier_.Hold();
  ExpectStarted(1);
  ASSERT_TRUE(RunUntil([&] { return copier_.waiting() == 1; }));
  bool fenced = false;
  InTurn([&] { actor_->FenceThen([&] { fenced = true; }); });
  RunFor(seconds(10));
  EXPECT_FALSE(fenced) << "a copy still reads the tensors";
  copier_.Let(1);
  ASSERT_TRUE(RunUntil([&] { return fenced; }));
  EXPECT_EQ(copier_.waiting(), 0u) << "no further bucket is taken";
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<GaveUp>() == 1; }));
  EXPECT_THAT(daemon_.Got<GaveUp>().at(0).reason, HasSubstr("2000 ms"));
  EXPECT_EQ(daemon_.Count<Captured>(), 0u);
  EXPECT_EQ(status().given_up, 1u);
  EXPECT_THAT(status().last_problem, HasSubstr("step 1 given up"));
  copier_.Release();
  daemon_.Grant(1, 2);
  ExpectStarted(2);
}

TEST_F(CaptureTest, ACopyThatFailsGivesTheVersionUp) {
  Ready();
  copier_.failure = absl::InternalError("the device is gone");
  ExpectStarted(1);
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<GaveUp>() == 1; }));
  EXPECT_THAT(daemon_.Got<GaveUp>().at(0).reason, HasSubstr("the device is gone"));
  Fence();
}

TEST_F(CaptureTest, AVolatileCopyThatFailsIsAnError) {
  tensors_[0].spec.is_volatile = true;
  Ready();
  copier_.failure = absl::InternalError("the device is gone");
  EXPECT_TRUE(absl::IsInternal(Snapshot(1).status()));
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<GaveUp>() == 1; }));
  Fence();
}

TEST_F(CaptureTest, AnAbandonedVersionIsCopiedNoFurther) {
  Ready();
  copier_.Hold();
  ExpectStarted(1);
  ASSERT_TRUE(RunUntil([&] { return copier_.waiting() == 1; }));
  daemon_.Send(VersionState{{Timeline{7}, Step{1}}, VersionPhase::kAbandoned, "rank 3 skipped"});
  RunFor(milliseconds(10));
  EXPECT_EQ(daemon_.Count<GaveUp>(), 0u);
  copier_.Release();
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<GaveUp>() == 1; }));
  EXPECT_THAT(std::string(WaitCommitted(1).message()), HasSubstr("rank 3 skipped"));
}

TEST_F(CaptureTest, TheFateOfAVersionIsTold) {
  Ready();
  ExpectStarted(1);
  AwaitCaptured();
  daemon_.Send(VersionState{{Timeline{7}, Step{1}}, VersionPhase::kSealed});
  daemon_.Send(VersionState{{Timeline{7}, Step{1}}, VersionPhase::kCommitted});
  EXPECT_TRUE(WaitCommitted(1).ok());
  EXPECT_EQ(status().last_sealed, Step{1});
  EXPECT_EQ(status().last_committed, Step{1});
  EXPECT_TRUE(absl::IsNotFound(WaitCommitted(2)));

  daemon_.Grant(1, 2);
  ExpectStarted(3);
  EXPECT_TRUE(absl::IsDeadlineExceeded(WaitCommitted(3, seconds(1))));
  daemon_.Send(VersionState{{Timeline{7}, Step{4}}, VersionPhase::kCommitted});
  EXPECT_TRUE(absl::IsAborted(WaitCommitted(3)));
}

// Its report is a task of another thread, and may run after what the trainer asks next.
TEST_F(CaptureTest, TheFateOfASnapshotCanBeAskedForAtOnce) {
  Ready();
  std::optional<absl::Status> fate;
  InTurn([&] {
    EXPECT_TRUE(actor_->Snapshot(Step{1}, {}, nullptr).ok());
    actor_->WaitCommitted(Step{1}, seconds(5), [&](absl::Status status) { fate = status; });
  });
  AwaitCaptured();
  daemon_.Send(VersionState{{Timeline{7}, Step{1}}, VersionPhase::kCommitted});
  ASSERT_TRUE(RunUntil([&] { return fate.has_value(); }));
  EXPECT_TRUE(fate->ok()) << *fate;
}

// The other ranks know the step as skipped: it cannot be committed any more.
TEST_F(CaptureTest, ASkippedStepThatIsTakenAgainIsToldAsSkipped) {
  Ready();
  ExpectStarted(1);
  AwaitCaptured();
  Fence();
  const auto skipped = Snapshot(2);
  ASSERT_TRUE(skipped.ok());
  EXPECT_EQ(skipped->outcome, Outcome::kSkipped);
  daemon_.Grant(1, 2);
  ExpectStarted(2);
  AwaitCaptured(2);
  const absl::Status status = WaitCommitted(2, seconds(1));
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(skipped->reason));
}

TEST_F(CaptureTest, ANewRegistrationWaitsForTheSnapshotUnderWay) {
  Ready();
  copier_.Hold();
  ExpectStarted(1);
  ASSERT_TRUE(RunUntil([&] { return copier_.waiting() == 1; }));
  std::optional<absl::Status> registered;
  AddTensor("d", 8);
  InTurn([&] {
    actor_->Register(tensors_, 0, [&](absl::Status status) { registered = std::move(status); });
  });
  RunFor(milliseconds(100));
  EXPECT_EQ(daemon_.Count<unreft::Register>(), 1u);
  copier_.Release();
  ASSERT_TRUE(RunUntil([&] { return registered.has_value(); }));
  EXPECT_TRUE(registered->ok());
  EXPECT_EQ(daemon_.Count<Captured>(), 1u);
  daemon_.Grant(1, 2);
  ExpectStarted(2);
  AwaitCaptured(2);
  const std::vector<std::byte> expected = ExpectedSlab();
  EXPECT_EQ(Slab(1, expected.size()), expected);
}

TEST_F(CaptureTest, AnotherModeHoldsForTheNextSnapshot) {
  for (BoundTensor& tensor : tensors_) {
    tensor.spec.replica_index = 1;
    tensor.spec.replica_count = 2;
  }
  Ready();
  copier_.Hold();
  ExpectStarted(1);
  daemon_.mode = layout::CaptureMode::kFull;
  daemon_.SendRegistered();
  RunFor(milliseconds(10));
  copier_.Release();
  AwaitCaptured();
  daemon_.Grant(1, 2);
  ExpectStarted(2);
  AwaitCaptured(2);
  const auto captured = daemon_.Got<Captured>();
  EXPECT_LT(captured[0].data_bytes, captured[1].data_bytes);
  EXPECT_NE(captured[0].layout_digest, captured[1].layout_digest);
}

// What the snapshot has staged lies in the room that there is.
TEST_F(CaptureTest, RoomToStageIsMadeWhenNoSnapshotIsUnderWay) {
  copier_.has_device = true;
  for (BoundTensor& tensor : tensors_) tensor.cuda_device = 0;
  tensors_[1].spec.replica_index = 1;  // the other replica captures it
  tensors_[1].spec.replica_count = 2;
  tensors_[1].spec.is_volatile = true;
  Ready();
  const uint64_t before = copier_.reserved_bytes;
  copier_.Hold();
  ExpectStarted(1);
  ASSERT_TRUE(RunUntil([&] { return copier_.waiting() > 0; }));
  daemon_.mode = layout::CaptureMode::kFull;
  daemon_.SendRegistered();
  RunFor(milliseconds(10));
  EXPECT_EQ(copier_.reserved_bytes, before);
  copier_.Release();
  AwaitCaptured();
  ASSERT_TRUE(RunUntil([&] { return copier_.reserved_bytes > before; }));
  daemon_.Grant(1, 2);
  ExpectStarted(2);
  AwaitCaptured(2);
}

TEST_F(CaptureTest, ReplicaDigestsAreTakenUntilACommitThenWhenAsked) {
  tensors_[0].spec.replica_count = 2;
  tensors_[1].spec.replica_count = 2;
  daemon_.replica_check_every = 10;
  Ready();
  ExpectStarted(3);
  AwaitCaptured(1);
  daemon_.Grant(1, 2);
  ExpectStarted(4);  // nobody says that all ranks sampled step 3
  AwaitCaptured(2);
  daemon_.Send(VersionState{{Timeline{7}, Step{4}}, VersionPhase::kCommitted});
  EXPECT_TRUE(WaitCommitted(4).ok());
  daemon_.Grant(0, 3);
  ExpectStarted(5);
  AwaitCaptured(3);
  tensors_[1].data[0] ^= std::byte{1};  // replicas drift apart
  daemon_.Grant(1, 4);
  ExpectStarted(10);
  AwaitCaptured(4);
  const auto captured = daemon_.Got<Captured>();
  ASSERT_EQ(captured[0].replica_digests.size(), 2u);
  EXPECT_EQ(captured[0].replica_digests[0], Crc32c(std::span(memory_[0])));
  EXPECT_EQ(captured[1].replica_digests, captured[0].replica_digests);
  EXPECT_TRUE(captured[2].replica_digests.empty());
  ASSERT_EQ(captured[3].replica_digests.size(), 2u);
  EXPECT_EQ(captured[3].replica_digests[0], captured[0].replica_digests[0]);
  EXPECT_NE(captured[3].replica_digests[1], captured[0].replica_digests[1]);
}

TEST_F(CaptureTest, ARankWithoutBytesOfItsOwnCapturesAnEmptySlab) {
  tensors_.resize(1);
  tensors_[0].spec.replica_count = 2;
  tensors_[0].spec.replica_index = 1;  // 400 bytes: replica 0 captures all
  Ready();
  ASSERT_TRUE(Snapshot(1, "x").ok());
  AwaitCaptured();
  EXPECT_EQ(daemon_.Got<Captured>().at(0).data_bytes, 0u);
  EXPECT_EQ(daemon_.Got<Captured>().at(0).extras_bytes, 1u);
}

TEST_F(CaptureTest, DestructionInMidCaptureIsSafe) {
  Ready();
  copier_.Hold();
  ExpectStarted(1);
  ASSERT_TRUE(RunUntil([&] { return copier_.waiting() == 1; }));
  InTurn([&] { actor_.reset(); });
  copier_.Release();
  RunFor(seconds(1));
  EXPECT_EQ(daemon_.Count<Captured>(), 0u);
}

}  // namespace
}  // namespace unreft::snapshot
