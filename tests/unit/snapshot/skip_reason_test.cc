// Why a snapshot finds no memory, as the user reads it.

#include <gmock/gmock.h>

#include "tests/unit/snapshot/client_fixture.h"

namespace unreft::snapshot {
namespace {

using testing::HasSubstr;

class SkipReasonTest : public ClientFixture {
 protected:
  SkipReasonTest() { AddTensor("a", 100); }
  void ExpectSkipped(uint64_t step, const std::string& why) {
    const auto result = Snapshot(step);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->outcome, Outcome::kSkipped);
    EXPECT_THAT(result->reason, HasSubstr(why));
  }
  void ExpectStarted(uint64_t step) {
    const auto result = Snapshot(step);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->outcome, Outcome::kStarted) << result->reason;
  }
};

TEST_F(SkipReasonTest, ASkipSaysWhatTheMemoryIsNeededFor) {
  Ready();
  ExpectStarted(1);
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<Captured>() == 1; }));
  ExpectSkipped(2, "the snapshot of step 1 is not committed yet by all ranks");
  daemon_.Grant(1, 2);
  ExpectStarted(3);
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<Captured>() == 2; }));
  ExpectSkipped(4, "the last 2 snapshots, of steps 1 to 3, are not committed yet by all ranks");
  daemon_.Send(VersionState{{Timeline{7}, Step{1}}, VersionPhase::kCommitted});
  ASSERT_TRUE(RunUntil([&] { return status().last_committed == Step{1}; }));
  ExpectSkipped(5, "the snapshot of step 3 is not committed yet by all ranks");
  daemon_.Send(VersionState{{Timeline{7}, Step{3}}, VersionPhase::kAbandoned, "for a test"});
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<Skipped>() == 3; }));
  RunFor(std::chrono::milliseconds(10));
  ExpectSkipped(6, "the daemon has not freed the memory for the next snapshot yet");
  daemon_.Die();
  ASSERT_TRUE(RunUntil([&] { return !status().connected; }));
  ExpectSkipped(7, "the daemon is away");
}

TEST_F(SkipReasonTest, AWaitForMemoryEndsWithItOrSaysWhatIsMissing) {
  const auto wait = [&](Duration timeout) {
    return Call<absl::Status>(
        [&](auto answer) { actor_->WaitReady(timeout, std::move(answer)); });
  };
  StartClient();
  ASSERT_TRUE(Connect().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(wait(std::chrono::seconds(1))));
  ASSERT_TRUE(RestoreBegin().ok());
  EXPECT_THAT(std::string(wait(std::chrono::seconds(1)).message()),
              HasSubstr("no tensors are registered"));
  ASSERT_EQ(Register(), absl::OkStatus());
  const absl::Status late = wait(std::chrono::seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late));
  EXPECT_THAT(std::string(late.message()),
              HasSubstr("no memory for a snapshot within 1000 ms: the memory for the snapshots is "
                        "still being prepared (connected to the daemon)"));
  node_->Post(
      [&] { node_->After(std::chrono::milliseconds(50), [&] { daemon_.Grant(0, 1); }); });
  EXPECT_EQ(wait(std::chrono::seconds(1)), absl::OkStatus());
}

}  // namespace
}  // namespace unreft::snapshot
