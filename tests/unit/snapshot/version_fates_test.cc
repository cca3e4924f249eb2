#include "snapshot/version_fates.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "tests/fakes/sim_executor.h"

namespace unreft::snapshot {
namespace {

class VersionFatesTest : public testing::Test {
 protected:
  static constexpr size_t kRemembered = 4;

  static Version At(uint64_t step) { return {Timeline{1}, Step{step}}; }
  void InTurn(std::function<void()> body) {
    executor_->Post(std::move(body));
    scheduler_.RunFor(std::chrono::seconds(1));
  }
  void Start(uint64_t step) {
    InTurn([this, step] { fates_.Started(At(step)); });
  }
  void Commit(uint64_t step) {
    InTurn([this, step] { fates_.Committed(At(step)); });
  }
  void Fail(uint64_t step) {
    InTurn([this, step] { fates_.Failed(At(step), "skipped"); });
  }
  // What who waits for it is told; none while it is not known.
  std::optional<absl::Status> Wait(uint64_t step) {
    auto told = std::make_shared<std::optional<absl::Status>>();
    InTurn([this, step, told] {
      fates_.Wait(At(step), std::chrono::seconds(60),
                  [told](absl::Status status) { *told = std::move(status); });
    });
    return *told;
  }

  SimScheduler scheduler_{1};
  std::unique_ptr<SimExecutor> executor_ = scheduler_.NewExecutor("trainer");
  VersionFates fates_{*executor_, kRemembered};
};

TEST_F(VersionFatesTest, ACommitEndsWhatIsOlder) {
  Start(1);
  Start(2);
  EXPECT_FALSE(Wait(1));
  Commit(2);
  EXPECT_TRUE(absl::IsAborted(*Wait(1)));
  EXPECT_TRUE(Wait(2)->ok());
}

TEST_F(VersionFatesTest, WhatWasCommittedStaysSo) {
  Commit(1);
  Fail(1);
  EXPECT_TRUE(Wait(1)->ok());
}

TEST_F(VersionFatesTest, TheNewestAreRemembered) {
  for (uint64_t step = 1; step <= kRemembered + 1; ++step) Fail(step);
  EXPECT_TRUE(absl::IsNotFound(*Wait(1)));
  EXPECT_TRUE(absl::IsAborted(*Wait(2)));
}

// A trainer that skipped hundreds of steps, and was answered of all of them, waited for the one
// that it had just begun, which "there was no snapshot of".
TEST_F(VersionFatesTest, WhatIsHeardOfLateTakesNoPlace) {
  Start(100);
  for (uint64_t step = 1; step <= 2 * kRemembered; ++step) Fail(step);
  EXPECT_FALSE(Wait(100));
  Commit(100);
  EXPECT_TRUE(Wait(100)->ok());
}

}  // namespace
}  // namespace unreft::snapshot
