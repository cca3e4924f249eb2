// A question that is asked again in a job of one node, as its answer may have been lost.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "smp/restore_desk.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {
namespace {

constexpr Rank kRank{0};

struct RecordingChannel final : Channel {
  void Start(OnFrame, OnClose) override {}
  void Send(Frame frame) override {
    if (static_cast<FrameType>(frame.type) != FrameType::kDecision) return;
    told.push_back(*FromFrame<Decision>(frame));
  }
  void Close() override {}
  std::vector<Decision> told;
};

struct CountingCoordinator final : Coordinator {
  void AskDecision(Attempt, uint64_t, std::vector<Asker>) override { ++asked; }
  void ReportClaimed(Version, Rank) override {}
  void ReportSealed(Version, Rank, uint64_t, ReplicaDigests) override {}
  void ReportFailed(Version, Rank, const std::string&) override {}
  void DeclareFreshStart(absl::AnyInvocable<void(absl::Status)>) override {}
  void AskPins(PinRequest, PinDone) override {}
  int asked = 0;
};

class RestoreAgainTest : public SmpFixture {
 protected:
  // The rank has asked with request 7, and attempt 1 was told to begin anew on timeline 1; the
  // answer was lost with the connection.
  RestoreAgainTest()
      : state_{NodeSeams{*executor_, pool_, random_, segments_, *records_, processes_, log_}} {
    state_.options = options_;
    state_.prefix = MemoryPrefix(options_);
    state_.record = NewRecord();
    auto coordinator = std::make_unique<CountingCoordinator>();
    coordinator_ = coordinator.get();
    state_.coordinator = std::move(coordinator);
    InTurn([&] {
      state_.slots = std::make_unique<SlotStore>(
          SlotStore::Seams{*executor_, pool_, segments_, processes_, log_}, state_.options,
          boot_id_, state_.record->incarnation(), [] {});
      desk_ = std::make_unique<RestoreDesk>(state_);
      Hello hello;
      hello.job = "job";
      hello.rank = kRank;
      hello.world = 1;
      hello.attempt = Attempt{1};
      hello.life = table_.Start();
      auto session = std::make_unique<RankSession>(hello, segments_);
      session_ = session.get();
      state_.sessions[kRank] = std::move(session);
    });
    Ask(7);
    Decide(Attempt{1});
    session_->Attach(&channel_);
  }
  ~RestoreAgainTest() override {
    InTurn([&] { desk_.reset(); });
  }

  void Ask(uint64_t request) {
    InTurn([&] { desk_->OnRestoreRequest(*session_, {.request = request}); });
  }
  void Decide(Attempt attempt) {
    InTurn([&] {
      JobDecision decision;
      decision.kind = DecisionKind::kFresh;
      decision.attempt = attempt;
      decision.timeline = state_.record->OpenTimeline(Version{});
      desk_->OnDecision(decision);
    });
  }

  NodeState state_;
  CountingCoordinator* coordinator_ = nullptr;
  std::unique_ptr<RestoreDesk> desk_;
  RecordingChannel channel_;
  RankSession* session_ = nullptr;
};

// Else the ranks of one attempt trained on two timelines, as those that had their answer captured.
TEST_F(RestoreAgainTest, TheSameQuestionHasTheSameAnswer) {
  ASSERT_EQ(coordinator_->asked, 1);
  InTurn([&] { state_.record->SetCaptureBegan(); });
  Ask(7);
  EXPECT_EQ(coordinator_->asked, 1);
  ASSERT_EQ(channel_.told.size(), 1U);
  EXPECT_EQ(channel_.told[0].request, 7U);
  EXPECT_EQ(channel_.told[0].timeline, Timeline{1});
}

TEST_F(RestoreAgainTest, AnotherQuestionIsAskedAnew) {
  Ask(8);
  EXPECT_EQ(coordinator_->asked, 2);
  EXPECT_TRUE(channel_.told.empty());
}

TEST_F(RestoreAgainTest, ASupersededAnswerIsNotGivenAgain) {
  Decide(Attempt{2});
  Ask(7);
  EXPECT_EQ(coordinator_->asked, 2);
  EXPECT_TRUE(channel_.told.empty());
}

}  // namespace
}  // namespace unreft::smp
