// Who is let in beside the attempt that trains, and who is not (docs/protocol.md, rule 29).
#include "smp/desk/admission.h"

#include <gmock/gmock.h>

#include "smp/desk/attempt_in_force.h"
#include "tests/unit/smp/job_records_testing.h"
#include "tests/unit/smp/node_state_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kRound = 3;
constexpr Attempt kInForce{7};

// Ranks 0 and 1 train on this node, rank 2 on another, by a decision that opened timeline 2.
class AdmissionTest : public NodeStateFixture {
 protected:
  AdmissionTest() {
    state_.options = options_;
    decided_ = Decided(2, kRound, At(1, 10));
    decided_.mutable_decision()->set_attempt(kInForce.value);
    for (uint64_t rank = 0; rank < 3; ++rank) {
      lives_.push_back(table_.Start());
      AskingRank& asked = *decided_.mutable_decision()->add_asked();
      asked.set_rank(rank);
      asked.set_pid(lives_[rank].pid);
      asked.set_start_time(lives_[rank].start_time);
      asked.set_slot(options_.node.value + (rank == 2 ? 1 : 0));
    }
    Keep();
  }
  void Keep() {
    meta::JobState job;
    job.timeline.bytes = decided_.SerializeAsString();
    job.timeline.value = decided_;
    job.timeline.modified = meta::Revision{++revision_};
    InTurn([&] {
      UNREFT_CHECK(state_.kept->Keep(job));
      state_.record->AdoptTimelines(OriginsOf(decided_), /*unused=*/true);
    });
  }
  Hello NewHello(Rank rank, Attempt attempt, uint64_t world = 3) {
    Hello hello;
    hello.job = options_.job;
    hello.rank = rank;
    hello.world = world;
    hello.attempt = attempt;
    hello.life = table_.Start();
    return hello;
  }
  Hello HelloOf(uint64_t rank) {
    Hello hello = NewHello(Rank{rank}, kInForce);
    hello.life = lives_[rank];
    hello.timeline = Timeline{2};
    return hello;
  }
  absl::Status Ask(const Hello& hello) {
    absl::Status status;
    InTurn([&] {
      Hello said = hello;
      status = Admit(state_, said, {.pid = hello.life.pid});
    });
    return status;
  }
  void End(uint64_t rank) {
    InTurn([&] { table_.End(lives_[rank]); });
  }
  // As a trainer of that attempt that waits for a decision.
  void Wait(Rank rank, Attempt attempt) {
    InTurn([&] {
      state_.sessions[rank] = std::make_unique<RankSession>(NewHello(rank, attempt), segments_);
    });
  }

  TimelineRecord decided_;
  std::vector<ProcessLife> lives_;
  uint64_t revision_ = 0;
};

// Its sessions would end those of the ranks that train.
TEST_F(AdmissionTest, WhileAllOfTheAttemptInForceLiveNoOtherBegins) {
  for (const uint64_t number : {0, 6, 8}) {
    const absl::Status status = Ask(NewHello(Rank{2}, Attempt{number}));
    EXPECT_TRUE(absl::IsAlreadyExists(status)) << "so that the client tries again";
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("all ranks of attempt 7 live"), HasSubstr("as rank 0 (pid")));
  }
  EXPECT_EQ(Ask(HelloOf(1)), absl::OkStatus());
  End(1);
  EXPECT_EQ(Ask(NewHello(Rank{2}, Attempt{0})), absl::OkStatus());
}

// Nobody knows yet who it is, and what it is told is logged, and remembered as said.
TEST_F(AdmissionTest, OfAnotherJobsNameNoMoreIsQuotedThanAJobsNameMayHave) {
  Hello hello = HelloOf(0);
  hello.job = "other";
  EXPECT_THAT(std::string(Ask(hello).message()), HasSubstr("not 'other'"));
  hello.job = std::string(size_t{1} << 20, 'x');
  const absl::Status status = Ask(hello);
  EXPECT_TRUE(absl::IsPermissionDenied(status));
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("not 'xxxx"), HasSubstr("xxx...'")));
  EXPECT_LT(status.message().size(), 300U);
}

// Numbers may come again: with each srun, with each loop of a shell.
TEST_F(AdmissionTest, TheSameNumberIsAnotherAttemptIfItsProcessesAreOthers) {
  EXPECT_TRUE(absl::IsAlreadyExists(Ask(NewHello(Rank{0}, kInForce))));
  EXPECT_TRUE(absl::IsAlreadyExists(Ask(NewHello(Rank{2}, kInForce, 4)))) << "of another world";
  End(1);
  EXPECT_EQ(Ask(NewHello(Rank{0}, kInForce)), absl::OkStatus());
}

TEST_F(AdmissionTest, WhoHangsIsInNobodysWayOnceAnotherHasEndedElsewhere) {
  InTurn([&] { EXPECT_EQ(AttemptInForce(state_).LivesRound(), kRound); });
  EXPECT_TRUE(absl::IsAlreadyExists(Ask(NewHello(Rank{0}, Attempt{8}))));
  InTurn([&] { state_.over_round = kRound; });
  EXPECT_EQ(Ask(NewHello(Rank{0}, Attempt{8})), absl::OkStatus());
  InTurn([&] { state_.over_round = kRound - 1; });
  EXPECT_TRUE(absl::IsAlreadyExists(Ask(NewHello(Rank{0}, Attempt{8}))));
}

TEST_F(AdmissionTest, WhatEndsElsewhereIsSaidByItsOwnNode) {
  End(2);
  InTurn([&] { EXPECT_EQ(AttemptInForce(state_).LivesRound(), kRound); });
  End(0);
  InTurn([&] { EXPECT_EQ(AttemptInForce(state_).LivesRound(), 0U); });
}

// A process of an attempt that is over is refused when it comes again, and may live on for long.
TEST_F(AdmissionTest, OfThoseServedBeforeThoseTrainThatTheDecisionWasMadeFor) {
  InTurn([&] {
    state_.lives_before = {lives_[0], lives_[1], table_.Start()};
    EXPECT_EQ(RanksTraining(state_), 2U);
  });
  Wait(Rank{5}, Attempt{8});
  InTurn([&] {
    RankSession& session = *state_.SessionOf(Rank{5});
    EXPECT_EQ(RanksTraining(state_), 2U) << "it is not decided for";
    session.timeline = Timeline{2};
    EXPECT_EQ(RanksTraining(state_), 3U);
    session.superseded = true;
    EXPECT_EQ(RanksTraining(state_), 2U);
  });
}

// The daemon hears of its end. Its session may go on for what it has still to say.
TEST_F(AdmissionTest, WhoIsServedLivesForReportsUntilItsEndIsSeen) {
  InTurn([&] { state_.sessions[Rank{0}] = std::make_unique<RankSession>(HelloOf(0), segments_); });
  End(0);
  InTurn([&] { EXPECT_EQ(AttemptInForce(state_).LivesRound(), kRound); });
  EXPECT_EQ(Ask(NewHello(Rank{0}, Attempt{8})), absl::OkStatus()) << "nobody is in the way of it";
  InTurn([&] { state_.sessions.at(Rank{0})->life_ended = true; });
  InTurn([&] { EXPECT_EQ(AttemptInForce(state_).LivesRound(), 0U); });
  InTurn([&] { state_.sessions.erase(Rank{0}); });
  InTurn([&] { EXPECT_EQ(AttemptInForce(state_).LivesRound(), 0U); });
  // Another process of that rank says nothing of the one that was asked for.
  Wait(Rank{0}, Attempt{8});
  InTurn([&] { EXPECT_EQ(AttemptInForce(state_).LivesRound(), 0U); });
}

TEST_F(AdmissionTest, WhereNobodyTrainsWhoeverComesIsLetIn) {
  decided_ = Chain(3, kRound);  // a fresh start was declared
  Keep();
  EXPECT_EQ(Ask(NewHello(Rank{0}, Attempt{8})), absl::OkStatus());
  InTurn([&] { EXPECT_EQ(AttemptInForce(state_).LivesRound(), 0U); });
}

// After a restart of the daemon whoever lived comes again, in whatever order.
TEST_F(AdmissionTest, WhoWasLeftBehindDoesNotComeBackBeforeThoseThatFollow) {
  Wait(Rank{0}, Attempt{8});
  EXPECT_EQ(Ask(HelloOf(0)), absl::OkStatus()) << "nobody has left it behind";
  End(1);
  EXPECT_TRUE(absl::IsAborted(Ask(HelloOf(0))));
  InTurn([&] { state_.sessions.clear(); });
  EXPECT_EQ(Ask(HelloOf(0)), absl::OkStatus()) << "nobody follows yet";
  Hello past = NewHello(Rank{0}, Attempt{5});
  past.timeline = Timeline{1};
  EXPECT_TRUE(absl::IsAborted(Ask(past)));
}

TEST_F(AdmissionTest, ADecisionThatFailedLeavesTheOneBeforeInForce) {
  DecisionRecord& failed = *decided_.mutable_decision();
  *decided_.mutable_in_force() = failed;
  failed.Clear();
  failed.set_round(kRound + 1);
  failed.set_attempt(8);
  failed.set_kind(static_cast<uint32_t>(DecisionKind::kFailed));
  decided_.set_round(kRound + 1);
  Keep();
  EXPECT_TRUE(absl::IsAlreadyExists(Ask(NewHello(Rank{0}, Attempt{8}))));
  InTurn([&] { EXPECT_EQ(AttemptInForce(state_).LivesRound(), kRound); });
}

}  // namespace
}  // namespace unreft::smp
