// HostCopier and StreamCopy: like memcpy for every size and alignment, and nothing beyond.

#include "snapshot/host_copier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/random.h"
#include "snapshot/stream_copy.h"
#include "tests/fakes/sim_executor.h"

namespace unreft::snapshot {
namespace {

std::vector<std::byte> RandomBytes(size_t bytes, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random.Next());
  return made;
}

void ExpectCopies(size_t bytes, size_t source_offset, size_t target_offset) {
  constexpr size_t kMargin = 128;
  const std::vector<std::byte> source = RandomBytes(bytes + source_offset, bytes);
  std::vector<std::byte> target(bytes + target_offset + kMargin, std::byte{0x5a});
  StreamCopy(target.data() + target_offset, source.data() + source_offset, bytes);
  StreamFence();
  ASSERT_EQ(std::memcmp(target.data() + target_offset, source.data() + source_offset, bytes), 0);
  const auto untouched = [](std::byte byte) { return byte == std::byte{0x5a}; };
  EXPECT_TRUE(std::all_of(target.begin(), target.begin() + static_cast<ptrdiff_t>(target_offset),
                          untouched));
  EXPECT_TRUE(std::all_of(target.end() - kMargin, target.end(), untouched));
}

TEST(StreamCopyTest, EverySmallSize) {
  for (size_t bytes = 1; bytes < 600; ++bytes) ExpectCopies(bytes, bytes % 7, bytes % 13);
}

TEST(StreamCopyTest, SizesAroundTheThresholdAtEveryAlignment) {
  for (size_t bytes : {kStreamBytesMin - 1, kStreamBytesMin, kStreamBytesMin + 1,
                       kStreamBytesMin + 255, 2 * kStreamBytesMin + 77}) {
    for (size_t offset = 0; offset < 64; ++offset) {
      ExpectCopies(bytes, offset, 0);
      ExpectCopies(bytes, 0, offset);
      ExpectCopies(bytes, 63 - offset, offset);
    }
  }
}

TEST(StreamCopyTest, LargeOnes) {
  ExpectCopies((1 << 20) + 3, 1, 5);
  ExpectCopies(4 << 20, 0, 0);
}

TEST(StreamCopyTest, NothingAtAll) { StreamCopy(nullptr, nullptr, 0); }

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
