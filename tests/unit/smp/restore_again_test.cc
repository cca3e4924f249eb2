// A question that is asked again, as its answer may have been lost.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "smp/restore/restore_desk.h"
#include "tests/unit/smp/node_state_fixture.h"

namespace unreft::smp {
namespace {

constexpr Rank kRank{0};

class RestoreAgainTest : public NodeStateFixture {
 protected:
  // The rank has asked with request 7, and attempt 1 was told to begin anew on timeline 1; the
  // answer was lost with the connection.
  RestoreAgainTest() {
    InTurn([&] {
      MakeSlots();
      desk_ = std::make_unique<RestoreDesk>(state_);
      session_ = &Connect(kRank, 1);
    });
    Ask(7);
    Decide(Attempt{1});
    session_->Attach(&channel_);
  }
  ~RestoreAgainTest() override {
    InTurn([&] { desk_.reset(); });
  }

  std::vector<Decision> Told() const { return channel_.Told<Decision>(FrameType::kDecision); }
  void Ask(uint64_t request) {
    InTurn([&] { desk_->OnRestoreRequest(*session_, {.request = request}); });
  }
  // For the session's process, or for another one of that rank.
  void Decide(Attempt attempt, std::optional<ProcessLife> other = std::nullopt) {
    InTurn([&] {
      JobDecision decision;
      decision.kind = DecisionKind::kFresh;
      decision.attempt = attempt;
      decision.asked[kRank] = {kRank, other.value_or(session_->life()), 7};
      decision.timeline = OpenTimeline(*state_.record, Version{});
      desk_->OnDecision(decision);
    });
  }

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
  ASSERT_EQ(Told().size(), 1U);
  EXPECT_EQ(Told()[0].request, 7U);
  EXPECT_EQ(Told()[0].timeline, Timeline{1});
}

TEST_F(RestoreAgainTest, AnotherQuestionIsAskedAnew) {
  Ask(8);
  EXPECT_EQ(coordinator_->asked, 2);
  EXPECT_TRUE(Told().empty());
}

// A rank of the earlier attempt that hangs would keep the node's group from guarding anything.
// Otherwise a decision is made for it when others train by a later one, whose timeline that ends.
TEST_F(RestoreAgainTest, WhoIsGoneAsksForNothing) {
  Ask(8);
  ASSERT_EQ(coordinator_->askers.size(), 1U);
  InTurn([&] { desk_->OnSessionEnded(*session_); });
  EXPECT_EQ(coordinator_->asked, 3);
  EXPECT_TRUE(coordinator_->askers.empty());
  InTurn([&] { desk_->OnSessionEnded(*session_); });
  EXPECT_EQ(coordinator_->asked, 3);
}

TEST_F(RestoreAgainTest, ADecisionForOthersEndsThePartOfWhoTrained) {
  EXPECT_EQ(session_->timeline, Timeline{1});
  EXPECT_FALSE(session_->superseded);
  Decide(Attempt{1}, table_.Start());
  EXPECT_EQ(session_->timeline, Timeline{});
  EXPECT_TRUE(session_->superseded);
}

// Pids and times of start are each host's own.
TEST_F(RestoreAgainTest, WhatWasDecidedForALikeProcessOfAnotherNodeIsForOthers) {
  const auto decide = [&](NodeSlot home) {
    InTurn([&] {
      JobDecision decision;
      decision.kind = DecisionKind::kFresh;
      decision.attempt = Attempt{1};
      decision.asked[kRank] = {kRank, session_->life(), 8, home};
      decision.timeline = OpenTimeline(*state_.record, Version{});
      desk_->OnDecision(decision);
    });
  };
  Ask(8);
  const size_t told = Told().size();
  decide(NodeSlot{state_.options.node.value + 1});
  EXPECT_EQ(Told().size(), told);
  EXPECT_TRUE(session_->superseded);
  decide(state_.options.node);
  EXPECT_EQ(Told().size(), told + 1);
  EXPECT_FALSE(session_->superseded);
}

// Its daemon has come back in another slot, and reads of the decision after the rank has come.
TEST_F(RestoreAgainTest, WhoFollowsADecisionAlreadyIsNotLeftBehindByIt) {
  InTurn([&] {
    JobDecision decision;
    decision.kind = DecisionKind::kFresh;
    decision.attempt = Attempt{1};
    const NodeSlot other{state_.options.node.value + 1};
    decision.asked[kRank] = {kRank, session_->life(), 7, other};
    decision.timeline = session_->timeline;
    desk_->OnDecision(decision);
  });
  EXPECT_EQ(session_->timeline, Timeline{1});
  EXPECT_FALSE(session_->superseded);
}

// It was decided late, for an attempt that is over by now.
TEST_F(RestoreAgainTest, ADecisionForOthersLeavesWhoWaitsForOne) {
  InTurn([&] { session_->timeline = Timeline{}; });
  Decide(Attempt{2}, table_.Start());
  EXPECT_FALSE(session_->superseded);
}

TEST_F(RestoreAgainTest, ASupersededAnswerIsNotGivenAgain) {
  Decide(Attempt{2}, table_.Start());
  Ask(7);
  EXPECT_EQ(coordinator_->asked, 2);
  EXPECT_TRUE(Told().empty());
}

}  // namespace
}  // namespace unreft::smp
