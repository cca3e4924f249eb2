#include "base/run_owner.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace unreft {
namespace {

class RunOwnerTest : public ::testing::Test {
 protected:
  RunOwnerTest() {
    char name[] = "/tmp/unreft-owner-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~RunOwnerTest() override { std::filesystem::remove_all(directory_); }
  void Put(const std::string& text) { std::ofstream(directory_ + "/owner") << text; }

  std::string directory_;
};

TEST_F(RunOwnerTest, IsReadAsItWasWritten) {
  EXPECT_FALSE(ReadRunOwner(directory_));
  ASSERT_TRUE(WriteRunOwner(directory_, {"job_a-1", 12, false}).ok());
  ASSERT_TRUE(WriteRunOwner(directory_, {"job_b", 7, true}).ok());
  const auto owner = ReadRunOwner(directory_);
  ASSERT_TRUE(owner);
  EXPECT_EQ(owner->job, "job_b");
  EXPECT_EQ(owner->node, 7U);
  EXPECT_TRUE(owner->allows_inject);
}

TEST_F(RunOwnerTest, WhatIsNotWholeIsNone) {
  for (const char* text : {"", "job a\nnode 1\n", "job a.b\nnode 1\nallow_inject 0\n",
                           "job a\nnode x\nallow_inject 0\n", "node 1\njob a\nallow_inject 0\n"}) {
    Put(text);
    EXPECT_FALSE(ReadRunOwner(directory_)) << text;
  }
}

TEST_F(RunOwnerTest, AWriteThatFailsLeavesWhatWasThere) {
  ASSERT_TRUE(WriteRunOwner(directory_, {"job", 1, false}).ok());
  std::filesystem::create_directory(directory_ + "/owner.new");
  EXPECT_FALSE(WriteRunOwner(directory_, {"job", 2, false}).ok());
  EXPECT_EQ(ReadRunOwner(directory_)->node, 1U);
}

}  // namespace
}  // namespace unreft
