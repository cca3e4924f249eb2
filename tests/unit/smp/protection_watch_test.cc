#include "smp/desk/protection_watch.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "smp/node/admin.h"
#include "tests/unit/smp/node_state_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two ranks, connected; as the desks and the node do, the test says what they report.
class ProtectionWatchTest : public NodeStateFixture {
 protected:
  ProtectionWatchTest() {
    InTurn([&] { MakeSlots(); });
  }
  ~ProtectionWatchTest() override {
    InTurn([&] {
      watch_.reset();
      for (auto& [rank, session] : state_.sessions) session->Detach();
      state_.slots.reset();
    });
  }

  void Begin() {
    InTurn([&] {
      for (const uint64_t rank : {0, 1}) {
        Connect(Rank{rank}, 2).Attach(&channels_[rank]);
        Register(Rank{rank});
      }
      state_.ranks_came = true;
      state_.account.Begin(std::nullopt, executor_->Now());
      watch_ = std::make_unique<ProtectionWatch>(state_);
      watch_->Wake();
    });
  }
  void Register(Rank rank) {
    RankSession& session = *state_.SessionOf(rank);
    session.registration = std::make_shared<Registration>();
    session.registration_status = absl::OkStatus();
  }
  void Start(uint64_t step, std::vector<uint64_t> ranks = {0, 1}) {
    InTurn([&] {
      for (const uint64_t rank : ranks) {
        state_.SessionOf(Rank{rank})->newest_step = Step{step};
        state_.account.Started(Step{step}, executor_->Now());
      }
    });
  }
  void Commit(uint64_t step) {
    InTurn([&] {
      state_.account.Committed(Step{step}, executor_->Now());
      watch_->Look();
    });
  }
  // Of the last message to that rank; none if there was none.
  std::optional<std::string> ToldRank(uint64_t rank) {
    const auto told = channels_[rank].Told<Obstacle>(FrameType::kObstacle);
    if (told.empty()) return std::nullopt;
    return told.back().what;
  }
  JobProtection protection() { return ProtectionOf(state_); }

  RecordingChannel channels_[2];
  std::unique_ptr<ProtectionWatch> watch_;
};

TEST_F(ProtectionWatchTest, SaysOnceThatProtectionIsLostAndOnceThatItIsBack) {
  Begin();
  Start(1);
  Commit(1);
  EXPECT_EQ(ProtectionName(protection()), "protected");
  EXPECT_THAT(protection().why_not, IsEmpty());
  for (uint64_t step = 2; step < 60; ++step) {
    Start(step);
    InTurn([&] { state_.account.GaveUp(Step{step}, "rank 1: gave up: its copies were late"); });
    Settle(seconds(1));
  }
  EXPECT_EQ(sink_.Count("not protected"), 0U);
  Start(60);
  Settle(seconds(10));
  EXPECT_EQ(ProtectionName(protection()), "unprotected");
  EXPECT_EQ(sink_.Count("warn: not protected: nothing is committed since"), 1U);
  EXPECT_EQ(
      sink_.Count("58 snapshots were given up, the last (step 59): rank 1: gave up: its copies"
                  " were late"),
      1U);
  Settle(seconds(30));
  EXPECT_EQ(sink_.Count("not protected"), 1U);
  Commit(60);
  EXPECT_EQ(sink_.Count("info: protected again: step 60 is committed"), 1U);
  Settle(minutes(10));
  EXPECT_EQ(sink_.Count("not protected"), 1U) << "a pause is no alarm";
}

TEST_F(ProtectionWatchTest, SaysItAgainAfterTwiceAsLong) {
  Begin();
  Start(1);
  Commit(1);
  Start(2);
  Settle(seconds(60 + 55));
  EXPECT_EQ(sink_.Count("not protected"), 1U);
  Settle(seconds(10));
  EXPECT_EQ(sink_.Count("not protected"), 2U);
  Settle(seconds(110));
  EXPECT_EQ(sink_.Count("not protected"), 2U);
  Settle(seconds(15));
  EXPECT_EQ(sink_.Count("not protected"), 3U);
}

TEST_F(ProtectionWatchTest, NamesTheRankThatNeverRegistersToTheOthersToo) {
  Begin();
  InTurn([&] { state_.SessionOf(Rank{1})->registration = nullptr; });
  Start(1, {0});
  Settle(seconds(20));
  const std::string expected =
      fmt::format("rank 1 of 2: it is connected (pid {}) but has not registered its tensors",
                  state_.SessionOf(Rank{1})->life().pid);
  ASSERT_TRUE(ToldRank(0).has_value());
  EXPECT_THAT(*ToldRank(0), HasSubstr(expected));
  EXPECT_EQ(sink_.Count("not protected"), 0U) << "its memory may still be prepared";
  Settle(seconds(60));
  EXPECT_EQ(sink_.Count("not protected: nothing is committed yet"), 1U);
  EXPECT_EQ(sink_.Count(expected), 1U);
  EXPECT_THAT(protection().why_not, AllOf(HasSubstr(expected), HasSubstr("unreft status")));
  InTurn([&] { Register(Rank{1}); });
  Start(2);
  Commit(2);
  EXPECT_EQ(ToldRank(0), "") << "nothing stands in the way any more";
  EXPECT_EQ(sink_.Count("protected again"), 1U);
}

TEST_F(ProtectionWatchTest, NamesTheRankThatTakesNoSnapshotsOrIsNotThere) {
  Begin();
  Start(1);
  Commit(1);
  Start(2, {0});
  Settle(seconds(20));
  EXPECT_THAT(*ToldRank(0), HasSubstr("has called for no snapshot since step 1"));
  InTurn([&] { state_.SessionOf(Rank{1})->Detach(); });
  Settle(seconds(10));
  EXPECT_THAT(*ToldRank(0), HasSubstr("is not connected"));
  InTurn([&] { state_.sessions.erase(Rank{1}); });
  Settle(seconds(10));
  EXPECT_THAT(*ToldRank(0), HasSubstr("rank 1 of 2: its process has ended or never came"));
  state_.options.nodes = 2;
  Settle(seconds(10));
  EXPECT_EQ(ToldRank(0), "") << "it may be on another node";
}

// The ranks of other nodes are known to the leader alone.
TEST_F(ProtectionWatchTest, WhatTheLeaderSaysOfTheWholeJobComesFirst) {
  Begin();
  Start(1);
  Settle(seconds(30));
  InTurn([&] { state_.job_obstacle = "node 3 is lost"; });
  EXPECT_EQ(FindObstacle(state_), "node 3 is lost");
  Settle(seconds(40));
  EXPECT_THAT(ProtectionOf(state_).why_not, HasSubstr("node 3 is lost"));
}

// An empty memory that waits for its slot, say, while its trainers live: no leader knows them.
TEST_F(ProtectionWatchTest, RanksOfANodeThatDoesNotCountAreTold) {
  Begin();
  Start(1);
  InTurn(
      [&] { state_.standing = {.problem = "its slot has another memory", .is_starting = true}; });
  Settle(seconds(8));
  EXPECT_EQ(FindObstacle(state_), "") << "it may have begun a moment ago";
  Settle(seconds(12));
  ASSERT_TRUE(ToldRank(0).has_value());
  EXPECT_EQ(*ToldRank(0), "node 0: its slot has another memory");
}

TEST_F(ProtectionWatchTest, WhoComesLaterIsToldWhatStandsInTheWay) {
  Begin();
  InTurn([&] { state_.SessionOf(Rank{1})->registration = nullptr; });
  Start(1, {0});
  Settle(seconds(20));
  channels_[1].sent.clear();
  InTurn([&] { watch_->Greet(*state_.SessionOf(Rank{1})); });
  EXPECT_THAT(*ToldRank(1), HasSubstr("rank 1 of 2"));
}

TEST_F(ProtectionWatchTest, AJobThatDoesNotRunIsNeither) {
  EXPECT_EQ(ProtectionName(protection()), "not begun");
  Begin();
  Start(1);
  EXPECT_EQ(ProtectionName(protection()), "unprotected");
  InTurn([&] {
    for (auto& [rank, session] : state_.sessions) session->Detach();
  });
  EXPECT_EQ(ProtectionName(protection()), "ended");
  EXPECT_THAT(protection().why_not, HasSubstr("no rank is connected"));
  Settle(minutes(10));
  EXPECT_EQ(sink_.Count("not protected"), 0U);
}

TEST_F(ProtectionWatchTest, StatusSaysWhatEachRankCaptures) {
  Begin();
  InTurn([&] {
    RankSession& session = *state_.SessionOf(Rank{0});
    auto registration = std::make_shared<Registration>();
    std::vector<TensorSpec> specs(2);
    specs[0] = {.name = "a", .global_shape = {4096}, .offset = {0}, .extent = {4096}};
    specs[1] = {.name = "b",
                .global_shape = {8192},
                .offset = {0},
                .extent = {8192},
                .replica_index = 1,
                .replica_count = 2};
    registration->table = *layout::TensorTable::Create(specs);
    registration->plan =
        layout::CapturePlan::Make(registration->table, layout::CaptureMode::kSharded);
    session.registration = std::move(registration);
    session.last_captured = Step{7};
    session.captured_extras_bytes = 99;
    session.last_given_up = "its copies were late";
    RankSession& other = *state_.SessionOf(Rank{1});
    other.registration = nullptr;
    other.registration_status = absl::UnavailableError("not registered yet");
  });
  nlohmann::json status;
  InTurn([&] {
    SlotVerifier verifier(*executor_, pool_, *state_.slots);
    NoProtection protection(*executor_);
    AnswerAdmin({state_, verifier, nullptr, protection}, AdminRequest{"status", "{}"},
                [&](AdminReply reply) { status = nlohmann::json::parse(reply.result); });
  });
  const nlohmann::json& rank = status["ranks"][0];
  EXPECT_EQ(rank["tensors"], 2);
  EXPECT_EQ(rank["bytes"], 4 * (4096 + 8192));
  EXPECT_EQ(rank["captured_bytes"], 4 * (4096 + 4096));
  EXPECT_EQ(rank["replicated_tensors"], 1);
  EXPECT_EQ(rank["replicated_bytes"], 4 * 8192);
  EXPECT_EQ(rank["replica_parts"], 2);
  EXPECT_EQ(rank["last_captured_step"], 7);
  EXPECT_EQ(rank["extras_bytes"], 99);
  EXPECT_EQ(rank["last_given_up"], "its copies were late");
  EXPECT_FALSE(status["ranks"][1]["registered"].get<bool>());
  EXPECT_EQ(status["ranks"][1]["problem"], "not registered yet");
  EXPECT_EQ(status["protection"]["state"], "unprotected");
  EXPECT_TRUE(status["protection"]["seconds_since_commit"].is_null());
}

}  // namespace
}  // namespace unreft::smp
