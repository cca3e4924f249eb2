// HostCopier: the bytes are in place when it says so.

#include "snapshot/host_copier.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "tests/fakes/sim_executor.h"

namespace unreft::snapshot {
namespace {

std::vector<std::byte> RandomBytes(size_t bytes, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random.Next());
  return made;
}

TEST(HostCopierTest, ABucketIsInPlaceWhenDoneRunsInALaterTurn) {
  SimScheduler scheduler(1);
  auto executor = scheduler.NewExecutor("trainer");
  HostCopier copier(*executor);
  const std::vector<std::byte> source = RandomBytes(100'000, 3);
  std::vector<std::byte> target(source.size());
  bool done = false;
  executor->Post([&] {
    copier.CopyBucket({{source.data(), target.data(), 50'000},
                       {source.data() + 50'000, target.data() + 50'000, 50'000}},
                      [&](const absl::Status& status) {
                        EXPECT_TRUE(status.ok());
                        EXPECT_EQ(target, source);
                        done = true;
                      });
    EXPECT_FALSE(done);
  });
  EXPECT_TRUE(scheduler.RunUntil([&] { return done; }, 100));
}

TEST(HostCopierTest, CopyNowAndRestore) {
  SimScheduler scheduler(1);
  auto executor = scheduler.NewExecutor("trainer");
  HostCopier copier(*executor);
  const std::vector<std::byte> source = RandomBytes(10'000, 3);
  std::vector<std::byte> target(source.size());
  const CopyOp op{source.data(), target.data(), source.size()};
  EXPECT_TRUE(copier.CopyNow({&op, 1}).ok());
  EXPECT_EQ(target, source);
  std::fill(target.begin(), target.end(), std::byte{0});
  EXPECT_TRUE(copier.Restore({&op, 1}).ok());
  EXPECT_EQ(target, source);
}

}  // namespace
}  // namespace unreft::snapshot
