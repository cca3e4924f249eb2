// What a client's status says of protection.

#include <gmock/gmock.h>

#include "tests/unit/snapshot/client_fixture.h"

namespace unreft::snapshot {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

class ProtectionStatusTest : public ClientFixture {
 protected:
  ProtectionStatusTest() { AddTensor("w", 100); }
  // Of a snapshot that was started, as the daemon says it of all ranks'.
  void Tell(uint64_t step, VersionPhase phase, const std::string& reason = "") {
    InTurn([&] { daemon_.Send(VersionState{{Timeline{7}, Step{step}}, phase, reason}); });
    RunFor(std::chrono::milliseconds(10));
  }
  absl::Status Skip(uint64_t step, const std::string& why) {
    absl::Status status;
    InTurn([&] { status = actor_->SkipSnapshot(Step{step}, why); });
    return status;
  }
  // Claims what is granted next.
  void Take(uint64_t step) {
    daemon_.Grant(step % 2, step);
    const auto result = Snapshot(step);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->outcome, Outcome::kStarted) << result->reason;
    Fence();
  }
};

TEST_F(ProtectionStatusTest, FromNothingToACommitToItsLoss) {
  daemon_.decision->timeline = Timeline{7};
  Ready();
  EXPECT_FALSE(status().protecting);
  EXPECT_FALSE(status().since_commit.has_value());
  EXPECT_THAT(status().why_unprotected, StartsWith("nothing is committed yet"));
  Take(1);
  EXPECT_FALSE(status().protecting);
  Tell(1, VersionPhase::kCommitted);
  EXPECT_TRUE(status().protecting);
  EXPECT_THAT(status().why_unprotected, IsEmpty());
  RunFor(seconds(3600));
  EXPECT_TRUE(status().protecting) << "a pause is no alarm";
  EXPECT_GE(status().since_commit, seconds(3600));
  Take(2);
  Tell(2, VersionPhase::kAbandoned, "rank 1: gave up: a fence waited 60000 ms for its copies");
  RunFor(seconds(61));
  Take(3);
  EXPECT_FALSE(status().protecting);
  EXPECT_THAT(
      status().why_unprotected,
      AllOf(HasSubstr("step 1 is the newest that is, step 2 waits for 61 s"),
            HasSubstr("1 snapshot was given up, the last (step 2): rank 1: gave up: a fence"),
            HasSubstr("unreft status")));
  Tell(3, VersionPhase::kCommitted);
  EXPECT_TRUE(status().protecting);
}

TEST_F(ProtectionStatusTest, WhatWasRestoredIsCommitted) {
  daemon_.decision->kind = DecisionKind::kRestored;
  daemon_.decision->version = {Timeline{6}, Step{40}};
  StartClient();
  ASSERT_TRUE(RestoreBegin().ok());
  EXPECT_TRUE(status().protecting);
  EXPECT_TRUE(status().since_commit.has_value());
}

TEST_F(ProtectionStatusTest, NamesWhatTheDaemonSaysStandsInTheWay) {
  Ready();
  InTurn([&] { daemon_.Send(Obstacle{"rank 2 of 4 has not registered"}); });
  RunFor(seconds(1));
  EXPECT_THAT(status().why_unprotected, HasSubstr(": rank 2 of 4 has not registered. "));
  InTurn([&] { daemon_.Send(Obstacle{""}); });
  RunFor(seconds(1));
  EXPECT_THAT(status().why_unprotected, Not(HasSubstr("rank 2")));
}

TEST_F(ProtectionStatusTest, ADaemonThatIsAwayIsSaidAndWhatToDo) {
  Ready();
  Take(1);
  Tell(1, VersionPhase::kCommitted);
  InTurn([&] { daemon_.Die(); });
  for (uint64_t step = 2; step < 72; ++step) {
    (void)Snapshot(step);
    Fence();
    RunFor(seconds(1));
  }
  EXPECT_FALSE(status().protecting);
  EXPECT_THAT(status().why_unprotected, AllOf(HasSubstr("the daemon of this node is away"),
                                              HasSubstr("skipped"), HasSubstr("unreft up")));
  daemon_.Listen();
  RunFor(seconds(5));
  EXPECT_THAT(status().why_unprotected, Not(HasSubstr("of this node is away")));
}

TEST_F(ProtectionStatusTest, WhatTheProgramSkipsItselfIsWorkAtRisk) {
  Ready();
  Take(1);
  Tell(1, VersionPhase::kCommitted);
  for (uint64_t step = 2; step < 72; ++step) {
    EXPECT_TRUE(Skip(step, "extras: 'table' has 40 MiB").ok());
    RunFor(seconds(1));
  }
  EXPECT_EQ(status().skipped, 70U);
  EXPECT_FALSE(status().protecting);
  EXPECT_THAT(status().why_unprotected, HasSubstr("extras: 'table' has 40 MiB"));
  EXPECT_EQ(daemon_.Count<Skipped>(), 70U) << "the daemon and the other ranks hear of it";
  EXPECT_TRUE(absl::IsFailedPrecondition(Skip(1, "it was captured")));
}

// Nothing is skipped then, each call fails.
TEST_F(ProtectionStatusTest, CallsThatFailAreWorkAtRisk) {
  Ready();
  Take(1);
  Tell(1, VersionPhase::kCommitted);
  daemon_.timeline = Timeline{8};
  InTurn([&] { daemon_.Die(); });
  daemon_.Listen();
  RunFor(seconds(5));
  for (uint64_t step = 2; step < 72; ++step) {
    EXPECT_FALSE(Snapshot(step).ok());
    RunFor(seconds(1));
  }
  EXPECT_FALSE(status().protecting);
  EXPECT_THAT(status().why_unprotected, HasSubstr("another attempt of the job has begun"));
}

}  // namespace
}  // namespace unreft::snapshot
