#include "base/job_memory.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "base/shm_segment_store.h"

namespace unreft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Segments of jobs that no other test has.
class JobMemoryTest : public ::testing::Test {
 protected:
  ~JobMemoryTest() override {
    for (const std::string& job : {job_, other_}) {
      const auto left = store_.List("/unreft." + job + ".");
      for (const SegmentInfo& segment : *left) EXPECT_TRUE(store_.Remove(segment.name).ok());
    }
  }
  std::unique_ptr<Segment> Make(const std::string& job, uint64_t node, const std::string& what,
                                uint64_t bytes) {
    auto segment = store_.Create(SegmentPrefix(job, node) + what, bytes);
    EXPECT_TRUE(segment.ok()) << segment.status();
    return *std::move(segment);
  }
  // Of the test's jobs.
  std::vector<JobMemory> List() {
    auto all = ListJobMemory(store_);
    EXPECT_TRUE(all.ok()) << all.status();
    std::erase_if(
        *all, [&](const JobMemory& memory) { return memory.job != job_ && memory.job != other_; });
    return *all;
  }

  ShmSegmentStore store_;
  const std::string job_ = "memory-" + std::to_string(getpid());
  const std::string other_ = job_ + "-other";
};

TEST_F(JobMemoryTest, IsThatOfEachDaemon) {
  const auto served = Make(job_, 3, "node", 4096);
  ASSERT_TRUE(served->Lock().ok());
  (void)Make(job_, 3, "slot0", 8192);
  (void)Make(job_, 12, "slot0", 4096);  // its node segment is gone
  (void)Make(other_, 0, "node", 4096);
  const std::vector<JobMemory> all = List();
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].job, job_);
  EXPECT_EQ(all[0].node, 3U);
  EXPECT_EQ(all[0].segments, 2U);
  EXPECT_EQ(all[0].bytes, 12288U);
  EXPECT_TRUE(all[0].is_served);
  EXPECT_EQ(all[1].node, 12U);
  EXPECT_FALSE(all[1].is_served);
  EXPECT_EQ(all[2].job, other_);
  EXPECT_FALSE(all[2].is_served);
}

TEST_F(JobMemoryTest, WhatNobodyServesIsNamedToWhoIsRefused) {
  const auto served = Make(job_, 3, "node", 4096);
  ASSERT_TRUE(served->Lock().ok());
  (void)Make(job_, 4, "node", 4096);
  (void)Make(other_, 0, "slot0", 8192);
  EXPECT_THAT(DescribeUnserved(List(), other_, 1),
              AllOf(HasSubstr("12288 bytes"), HasSubstr("job " + job_ + ", node 4 (4096 bytes)"),
                    HasSubstr("unreft memory"), Not(HasSubstr("node 3"))));
  EXPECT_THAT(DescribeUnserved(List(), other_, 0), Not(HasSubstr(other_)));
  EXPECT_EQ(DescribeUnserved({}, job_, 0), "");
}

TEST_F(JobMemoryTest, TheLargestAreNamedFirst) {
  std::vector<JobMemory> all;
  for (uint64_t node = 0; node < 6; ++node) {
    all.push_back({.job = job_, .node = node, .segments = 1, .bytes = 100 + node % 5});
  }
  EXPECT_THAT(DescribeUnserved(all, other_, 0),
              HasSubstr(fmt::format("610 bytes are held by what no unreftd serves any more: "
                                    "job {0}, node 4 (104 bytes), job {0}, node 3 (103 bytes), "
                                    "job {0}, node 2 (102 bytes), job {0}, node 1 (101 bytes) "
                                    "and 2 more; ",
                                    job_)));
}

// A daemon that starts while somebody looks is not refused for it.
TEST_F(JobMemoryTest, WhoLooksKeepsNobodyFromServing) {
  (void)Make(job_, 3, "node", 4096);
  const std::string name = SegmentPrefix(job_, 3) + "node";
  std::atomic<bool> is_over = false;
  std::thread looking([&] {
    while (!is_over) (void)store_.IsServed(name);
  });
  for (int i = 0; i < 300; ++i) {
    auto segment = store_.Open(name, Access::kReadWrite);
    ASSERT_TRUE(segment.ok()) << segment.status();
    EXPECT_TRUE((*segment)->Lock().ok());
    auto second = store_.Open(name, Access::kReadWrite);
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_FALSE((*second)->Lock().ok());
  }
  is_over = true;
  looking.join();
}

}  // namespace
}  // namespace unreft
