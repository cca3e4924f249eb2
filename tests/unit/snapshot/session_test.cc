// The client's session with the daemon: connecting, refusals, deadlines, registration.

#include <gmock/gmock.h>

#include "tests/unit/snapshot/client_fixture.h"

namespace unreft::snapshot {
namespace {

using testing::HasSubstr;
using SessionTest = ClientFixture;

TEST_F(SessionTest, HelloSaysWhoTheRankIs) {
  StartClient();
  ASSERT_TRUE(Connect().ok());
  const Hello hello = daemon_.Got<Hello>().at(0);
  EXPECT_EQ(hello.job, "job");
  EXPECT_EQ(hello.attempt, Attempt{3});
  EXPECT_EQ(hello.life, kTrainer);
  EXPECT_EQ(hello.timeline, Timeline{0});
  EXPECT_TRUE(status().connected);
}

TEST_F(SessionTest, NobodyListensIsUnavailable) {
  daemon_.Die();
  StartClient();
  const absl::Status status = Connect();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("within 10000 ms"));
}

TEST_F(SessionTest, ConnectsOnceTheDaemonIsThere) {
  daemon_.Die();
  StartClient();
  RunFor(std::chrono::seconds(3));
  daemon_.Listen();
  EXPECT_TRUE(Connect().ok());
}

TEST_F(SessionTest, ARefusalIsForGood) {
  daemon_.refused = Refused{absl::PermissionDeniedError("this daemon serves job 'other'"), false};
  StartClient();
  const absl::Status status = Connect();
  EXPECT_EQ(status, absl::PermissionDeniedError("this daemon serves job 'other'"));
  RunFor(std::chrono::seconds(10));
  EXPECT_EQ(daemon_.connections, 1);
  AddTensor("w", 16);
  EXPECT_TRUE(absl::IsPermissionDenied(Register()));
  EXPECT_TRUE(absl::IsPermissionDenied(RestoreBegin().status()));
  EXPECT_TRUE(absl::IsPermissionDenied(RestoreRead(tensors_)));
}

TEST_F(SessionTest, ARefusalForNowIsTriedAgain) {
  daemon_.refused = Refused{absl::AlreadyExistsError("rank 0 still lives"), true};
  StartClient();
  RunFor(std::chrono::seconds(2));
  EXPECT_GT(daemon_.connections, 1);
  EXPECT_FALSE(status().connected);
  daemon_.refused.reset();
  EXPECT_TRUE(Connect().ok());
}

// Who goes on without a daemon, as where none answers, would train beside another attempt.
TEST_F(SessionTest, ARefusalThatGoesOnIsSaidAndIsNoAbsence) {
  daemon_.refused = Refused{absl::AlreadyExistsError("rank 0 still lives"), true};
  StartClient();
  const absl::Status status = Connect();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 still lives; tried for"));
}

TEST_F(SessionTest, ADecisionThatDoesNotComeNamesTheAttempt) {
  daemon_.decision.reset();
  StartClient();
  const absl::Status status = RestoreBegin().status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("attempt 3"));
}

TEST_F(SessionTest, TheRequestIsRepeatedToARestartedDaemon) {
  const Decision fresh = *daemon_.decision;
  daemon_.decision.reset();
  StartClient();
  std::optional<absl::StatusOr<Restored>> restored;
  InTurn([&] { actor_->RestoreBegin([&](auto answer) { restored = std::move(answer); }); });
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<RestoreRequest>() == 1; }));
  daemon_.Die();
  daemon_.decision = fresh;
  daemon_.Listen();
  ASSERT_TRUE(RunUntil([&] { return restored.has_value(); }));
  ASSERT_TRUE(restored->ok());
  EXPECT_TRUE((*restored)->fresh);
  const auto requests = daemon_.Got<RestoreRequest>();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].request, requests[1].request);
}

// --- whether anything was ever committed ---

TEST_F(SessionTest, TheDaemonSaysWhetherAnythingWasEverCommitted) {
  daemon_.ever_committed = unreft::EverCommitted{.ever = true};
  StartClient();
  EXPECT_EQ(EverCommitted(), absl::StatusOr<bool>(true)) << "also before there is a connection";
  daemon_.ever_committed->ever = false;
  EXPECT_EQ(EverCommitted(), absl::StatusOr<bool>(false));
  daemon_.ever_committed->status = absl::UnavailableError("the meta store was not read");
  EXPECT_EQ(EverCommitted().status(), absl::UnavailableError("the meta store was not read"));
  EXPECT_EQ(daemon_.Count<RestoreRequest>(), 0u) << "it decides nothing";
}

TEST_F(SessionTest, WithoutAnAnswerItIsUnavailable) {
  StartClient();
  const absl::Status silent = EverCommitted().status();
  EXPECT_TRUE(absl::IsUnavailable(silent)) << silent;
  EXPECT_THAT(std::string(silent.message()), HasSubstr("within 10000 ms"));
  daemon_.Die();
  EXPECT_TRUE(absl::IsUnavailable(EverCommitted().status()));
}

// It would end the session of who asks.
TEST_F(SessionTest, AnOlderDaemonIsNotAsked) {
  daemon_.knows = FrameType::kHello;
  StartClient();
  const absl::Status status = EverCommitted().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("older release"));
  EXPECT_EQ(daemon_.Count<EverCommittedRequest>(), 0u);
  EXPECT_TRUE(this->status().connected);
}

TEST_F(SessionTest, TheQuestionIsRepeatedToARestartedDaemon) {
  StartClient();
  ASSERT_TRUE(Connect().ok());
  std::optional<absl::StatusOr<bool>> ever;
  InTurn([&] { actor_->EverCommitted([&](auto answer) { ever = std::move(answer); }); });
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<EverCommittedRequest>() == 1; }));
  daemon_.Die();
  daemon_.ever_committed = unreft::EverCommitted{.ever = true};
  daemon_.Listen();
  ASSERT_TRUE(RunUntil([&] { return ever.has_value(); }));
  EXPECT_EQ(*ever, absl::StatusOr<bool>(true));
}

TEST_F(SessionTest, AFailedDecisionIsAnErrorAndNeverFresh) {
  daemon_.decision->kind = DecisionKind::kFailed;
  daemon_.decision->status = absl::DataLossError("version 1:5: rank 2 has no whole copy");
  StartClient();
  EXPECT_EQ(RestoreBegin().status(), absl::DataLossError("version 1:5: rank 2 has no whole copy"));
  daemon_.decision->status = absl::OkStatus();
  EXPECT_TRUE(absl::IsInternal(RestoreBegin().status()));
}

TEST_F(SessionTest, ARefusedRegistrationSaysWhy) {
  AddTensor("w", 100);
  daemon_.register_status = absl::ResourceExhaustedError("/dev/shm: needed 9, found 3 bytes");
  StartClient();
  ASSERT_TRUE(RestoreBegin().ok());
  EXPECT_EQ(Register(), absl::ResourceExhaustedError("/dev/shm: needed 9, found 3 bytes"));
  const auto result = Snapshot(1);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->outcome, Outcome::kSkipped);
  EXPECT_THAT(result->reason, HasSubstr("needed 9, found 3"));
}

TEST_F(SessionTest, BadTensorsAreRefusedBeforeTheDaemonHearsOfThem) {
  AddTensor("w", 100);
  AddTensor("w", 100);
  StartClient();
  ASSERT_TRUE(Connect().ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Register()));
  tensors_.pop_back();
  tensors_[0].data = nullptr;
  EXPECT_TRUE(absl::IsInvalidArgument(Register()));
  EXPECT_EQ(daemon_.Count<unreft::Register>(), 0u);
}

TEST_F(SessionTest, AnotherCapturePlanIsRefused) {
  AddTensor("w", 100);
  daemon_.layout_digest = 12345;
  StartClient();
  const absl::Status status = Register();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("digest"));
}

TEST_F(SessionTest, SlotsThatAreTooSmallAreRefused) {
  AddTensor("w", 10'000);
  StartClient();
  const absl::Status status = Register();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST_F(SessionTest, ACorruptSlotHeaderIsRefused) {
  AddTensor("w", 100);
  daemon_.slot(1).view->header().geometry.data_offset += 4096;
  StartClient();
  EXPECT_TRUE(absl::IsDataLoss(Register()));
}

TEST_F(SessionTest, RegistersAgainWithARestartedDaemon) {
  AddTensor("w", 100);
  Ready();
  daemon_.Die();
  ASSERT_TRUE(RunUntil([&] { return !status().connected; }));
  daemon_.Listen();
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<unreft::Register>() == 2; }));
  EXPECT_EQ(daemon_.Got<Hello>().at(1).timeline, Timeline{7});
  RunFor(std::chrono::milliseconds(10));
  const auto result = Snapshot(1);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->outcome, Outcome::kStarted);
}

TEST_F(SessionTest, AnAnswerToAnEarlierRegistrationIsIgnored) {
  AddTensor("w", 100);
  Ready();
  daemon_.Send(Registered{.request = 0, .status = absl::InternalError("stale")});
  RunFor(std::chrono::milliseconds(10));
  EXPECT_EQ(Snapshot(1)->outcome, Outcome::kStarted);
}

// What it would install are tensors that may be gone.
TEST_F(SessionTest, AnAnswerThatWaitsForTheFenceIsOverWithANewRegistration) {
  copier_.has_device = true;
  AddTensor("w", 100).cuda_device = 0;
  AddTensor("v", 1000).cuda_device = 0;
  tensors_[1].spec.is_volatile = true;
  tensors_[1].spec.replica_index = 1;  // the other replica captures it
  tensors_[1].spec.replica_count = 2;
  Ready();
  copier_.Hold();
  ASSERT_EQ(Snapshot(1)->outcome, Outcome::kStarted);
  ASSERT_TRUE(RunUntil([&] { return copier_.waiting() > 0; }));
  std::optional<absl::Status> registered;
  daemon_.answers_register = false;
  InTurn([&] {
    actor_->Register(tensors_, 0, [&](absl::Status status) { registered = std::move(status); });
  });
  daemon_.mode = layout::CaptureMode::kFull;  // needs more room on the device
  daemon_.SendRegistered();
  RunFor(std::chrono::milliseconds(10));
  copier_.Release();
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<unreft::Register>() == 2; }));
  RunFor(std::chrono::milliseconds(100));
  EXPECT_FALSE(registered.has_value());
  daemon_.Grant(1, 2);
  EXPECT_THAT(Snapshot(2)->reason, HasSubstr("has not taken over the tensors yet"));
  daemon_.SendRegistered();
  ASSERT_TRUE(RunUntil([&] { return registered.has_value(); }));
  EXPECT_EQ(*registered, absl::OkStatus());
  EXPECT_EQ(Snapshot(3)->outcome, Outcome::kStarted);
}

TEST_F(SessionTest, TensorsThatCannotBeCopiedEndWhatWasRegistered) {
  AddTensor("w", 100);
  Ready();
  tensors_[0].cuda_device = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(Register()));
  daemon_.SendRegistered();
  RunFor(std::chrono::milliseconds(10));
  EXPECT_THAT(Snapshot(1)->reason, HasSubstr("not registered"));
}

TEST_F(SessionTest, ALateTimelineClosesCapture) {
  AddTensor("w", 100);
  Ready();
  daemon_.timeline = Timeline{8};  // decided for a newer attempt meanwhile
  daemon_.Die();
  ASSERT_TRUE(RunUntil([&] { return !status().connected; }));
  daemon_.Listen();
  ASSERT_TRUE(RunUntil([&] { return status().connected; }));
  const auto result = Snapshot(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(result.status()));
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("timeline 8 after 7"));
}

TEST_F(SessionTest, AMalformedFrameEndsTheConnectionOnly) {
  StartClient();
  ASSERT_TRUE(Connect().ok());
  daemon_.SendFrame({static_cast<uint16_t>(FrameType::kWelcome), "?"});
  ASSERT_TRUE(RunUntil([&] { return daemon_.connections == 2; }));
  EXPECT_TRUE(Connect().ok());
}

}  // namespace
}  // namespace unreft::snapshot
