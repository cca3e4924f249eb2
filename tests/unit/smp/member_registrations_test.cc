// What a member tells the leader of its ranks' registrations, and what it makes of the answer.

#include <gmock/gmock.h>

#include "tests/unit/layout_testing.h"
#include "tests/unit/smp/member_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

class MemberRegistrationsTest : public MemberFixture {
 protected:
  // Node 1 leads.
  MemberRegistrationsTest() {
    leader_ = &Join(1, true);
    StartMember();
  }
  // Rank 0 of 2, in attempt 3; returns the digest of its layout.
  uint64_t Register() {
    auto registration = std::make_shared<Registration>();
    registration->table = *layout::TensorTable::Create({Whole("w", {2048}, 0, 2)});
    registration->plan =
        layout::CapturePlan::Make(registration->table, layout::CaptureMode::kSharded);
    const uint64_t digest = registration->plan.digest();
    InTurnOf(*process_, [&] {
      node_.registered = {{Rank{0}, 2, Attempt{3}, std::move(registration)}};
      member_->CheckRegistrations();
    });
    return digest;
  }
  void Answer(RegistrationState state, const std::string& misfit = "") {
    leader_->reply.set_registrations(static_cast<uint32_t>(state));
    leader_->reply.set_misfit(misfit);
  }

};

TEST_F(MemberRegistrationsTest, TellsTheLeaderWhatItsRanksAreRegisteredWith) {
  Answer(RegistrationState::kFit);
  const uint64_t digest = Register();
  Settle(milliseconds(100));
  ASSERT_EQ(leader_->reports.back().registered_size(), 1);
  const RegisteredRank& told = leader_->reports.back().registered(0);
  EXPECT_EQ(told.rank(), 0U);
  EXPECT_EQ(told.world(), 2U);
  EXPECT_EQ(told.attempt(), 3U);
  EXPECT_EQ(told.layout_digest(), digest);
  ASSERT_FALSE(node_.checks.empty());
  EXPECT_TRUE(node_.checks.back().status.ok());
  EXPECT_THAT(node_.checks.back().layouts, ElementsAre(Pair(Rank{0}, digest)));
}

TEST_F(MemberRegistrationsTest, TellsTheNodeWhatTheNextCommitWaitsForAsTheLeaderSays) {
  leader_->reply.set_obstacle("step 11 waits for rank 2");
  Settle(milliseconds(500));
  EXPECT_EQ(node_.obstacle, "step 11 waits for rank 2");
  leader_->reply.clear_obstacle();
  Settle(milliseconds(500));
  EXPECT_EQ(node_.obstacle, "");
}

// An answer of before a registration says nothing about it.
TEST_F(MemberRegistrationsTest, AnAnswerIsAboutWhatItsReportNamed) {
  Settle(milliseconds(300));
  leader_->answers = false;
  InTurnOf(*process_, [&] { member_->CheckRegistrations(); });  // of none
  Settle(milliseconds(50));
  ASSERT_EQ(leader_->unanswered.size(), 1U);
  node_.checks.clear();
  Register();
  Settle(milliseconds(50));
  leader_->answers = true;
  InTurnOf(*leader_->executor, [&] { leader_->unanswered[0](""); });
  Settle(milliseconds(100));
  ASSERT_GE(node_.checks.size(), 2U);
  EXPECT_THAT(node_.checks.front().layouts, IsEmpty());
  EXPECT_EQ(node_.checks.back().layouts.size(), 1U);
}

TEST_F(MemberRegistrationsTest, AsksAgainSoonWhileTheLeaderIsLooking) {
  Answer(RegistrationState::kLooking);
  node_.checks.clear();
  Register();
  Settle(milliseconds(100));
  EXPECT_THAT(node_.checks, IsEmpty());
  Answer(RegistrationState::kMisfit, "ranks 0 and 1 differ");
  Settle(milliseconds(50));
  ASSERT_FALSE(node_.checks.empty());
  EXPECT_EQ(node_.checks.back().status, absl::FailedPreconditionError("ranks 0 and 1 differ"));
  Answer(RegistrationState::kFit);
  Settle(milliseconds(50));
  EXPECT_TRUE(node_.checks.back().status.ok());
}

// Of a release that looked only when a version was to be committed.
TEST_F(MemberRegistrationsTest, ALeaderThatDoesNotLookKeepsNobodyFromCapturing) {
  const uint64_t digest = Register();
  Settle(milliseconds(100));
  ASSERT_FALSE(node_.checks.empty());
  EXPECT_TRUE(node_.checks.back().status.ok());
  EXPECT_THAT(node_.checks.back().layouts, ElementsAre(Pair(Rank{0}, digest)));
}

TEST_F(MemberRegistrationsTest, SaysWhatItsRanksHoldBeforeAnythingIsCaptured) {
  const uint64_t digest = Register();
  ManifestRequest request;
  request.set_registered(true);
  std::optional<absl::StatusOr<ManifestReply>> answer;
  InTurnOf(*leader_->executor, [&] {
    leader_->peers->Ask<ManifestReply>(NodeSlot{0}, "manifests", request, std::chrono::seconds(1),
                                       [&](auto reply) { answer = std::move(reply); });
  });
  Settle(milliseconds(100));
  ASSERT_TRUE(answer && answer->ok());
  ASSERT_EQ((*answer)->manifests_size(), 1);
  const auto manifest = layout::DecodeManifest((*answer)->manifests(0));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->rank, Rank{0});
  EXPECT_EQ(manifest->world, 2U);
  EXPECT_EQ(manifest->layout_digest, digest);
  EXPECT_EQ(manifest->tensors.size(), 1U);
}

}  // namespace
}  // namespace unreft::smp
