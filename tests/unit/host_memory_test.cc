// What a process may still take, read from files of every kind of host.

#include "base/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace unreft {
namespace {

class HostMemoryTest : public testing::Test {
 protected:
  HostMemoryTest() {
    Write("/proc/meminfo", "MemTotal:  2000 kB\nMemFree: 1 kB\nMemAvailable:    1000 kB\n");
  }
  ~HostMemoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  uint64_t Available() { return RamAvailableBytes(root_); }

  const std::string root_ = testing::TempDir() + "unreft_host_memory_" + std::to_string(getpid());
};

TEST_F(HostMemoryTest, WithoutCgroupsTheHostDecides) { EXPECT_EQ(Available(), 1000u * 1024); }

TEST_F(HostMemoryTest, AnUnknownHostHasNoLimit) {
  std::filesystem::remove(root_ + "/proc/meminfo");
  EXPECT_EQ(Available(), UINT64_MAX);
}

TEST_F(HostMemoryTest, Version2CountsDroppableCacheAsFree) {
  Write("/proc/self/cgroup", "0::/job/trainer\n");
  Write("/sys/fs/cgroup/job/trainer/memory.max", "500000\n");
  Write("/sys/fs/cgroup/job/trainer/memory.current", "300000\n");
  Write("/sys/fs/cgroup/job/trainer/memory.stat", "anon 1\ninactive_file 100000\n");
  EXPECT_EQ(Available(), 300000u);
}

TEST_F(HostMemoryTest, Version2TakesTheTightestLevel) {
  Write("/proc/self/cgroup", "0::/job/trainer\n");
  Write("/sys/fs/cgroup/job/memory.max", "400000\n");
  Write("/sys/fs/cgroup/job/memory.current", "390000\n");
  Write("/sys/fs/cgroup/job/trainer/memory.max", "max\n");
  Write("/sys/fs/cgroup/job/trainer/memory.current", "5\n");
  EXPECT_EQ(Available(), 10000u);
}

TEST_F(HostMemoryTest, Version1InAContainerSeesOnlyItsRoot) {
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/abc\n0::/\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "700000\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "650000\n");
  Write("/sys/fs/cgroup/memory/memory.stat", "inactive_file 9\ntotal_inactive_file 50000\n");
  EXPECT_EQ(Available(), 100000u);
}

TEST_F(HostMemoryTest, Version1WithoutLimitLeavesTheHost) {
  Write("/proc/self/cgroup", "4:memory:/\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "650000\n");
  EXPECT_EQ(Available(), 1000u * 1024);
}

TEST_F(HostMemoryTest, OverTheLimitNothingIsLeft) {
  Write("/proc/self/cgroup", "0::/job\n");
  Write("/sys/fs/cgroup/job/memory.max", "1000\n");
  Write("/sys/fs/cgroup/job/memory.current", "2000\n");
  EXPECT_EQ(Available(), 0u);
}

TEST(HostMemory, ThisHostAnswers) {
  EXPECT_GT(RamAvailableBytes(), 0u);
  EXPECT_GT(MemlockLimitBytes(), 0u);
  EXPECT_GT(FileSystemFreeBytes("/"), 0u);
  EXPECT_EQ(FileSystemFreeBytes("/no/such/path"), UINT64_MAX);
}

}  // namespace
}  // namespace unreft
