#include "base/proc_stat.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <climits>
#include <string>

namespace unreft {
namespace {

constexpr char kAfterName[] =
    " S 1 2 3 0 -1 4194560 100 200 0 0 5 6 7 8 20 0 4 0 987654321 1000 50 18446744073709551615\n";

TEST(ProcStatTest, ReadsPidAndStartTime) {
  const auto stat = ParseProcStat(std::string("4711 (python3)") + kAfterName);
  ASSERT_TRUE(stat.ok()) << stat.status();
  EXPECT_EQ(stat->pid, 4711);
  EXPECT_EQ(stat->start_time, 987654321U);
}

TEST(ProcStatTest, IsNotFooledByTheNameOfTheProgram) {
  for (const char* name : {"(", ")", ") Z 1", "a b (c) R 2 3", " (", ") (", "", "\n) S 1\n"}) {
    const auto stat = ParseProcStat(std::string("5 (") + name + ")" + kAfterName);
    ASSERT_TRUE(stat.ok()) << name << ": " << stat.status();
    EXPECT_EQ(stat->pid, 5) << name;
    EXPECT_EQ(stat->start_time, 987654321U) << name;
  }
}

TEST(ProcStatTest, RefusesWhatIsNone) {
  for (const char* text : {"", "5", "5 (a)", "5 (a) ", "5 (a) S", "5 (a) S 1 2 3", "x (a) S 1 2 3",
                           ") (", "5 (a) S 1 2 3 0 -1 4194560 100 200 0 0 5 6 7 8 20 0 4 0 x 1"}) {
    EXPECT_FALSE(ParseProcStat(text).ok()) << text;
  }
}

TEST(ProcStatTest, ReadsThePidOfTheInnermostNamespace) {
  EXPECT_EQ(*ParseOwnPid("Name:\ta\nPid:\t12\nNSpid:\t12\t7\t1\nNSpgid:\t12\t7\t1\n"), 1);
  EXPECT_EQ(*ParseOwnPid("Name:\tNSpid:\\n5\nPid:\t12\nNSpid:\t12\n"), 12);
  EXPECT_EQ(*ParseOwnPid("Name:\ta\nTgid:\t12\nPid:\t12\nPPid:\t3\n"), 12) << "an old kernel";
  EXPECT_EQ(*ReadOwnPid(getpid()), getpid());
  for (const char* text : {"", "NSpid:", "NSpid:\t\n", "NSpid:\t1\tx\n", "Name:\ta\n"}) {
    EXPECT_FALSE(ParseOwnPid(text).ok()) << text;
  }
  EXPECT_EQ(ReadOwnPid(INT_MAX).status().code(), absl::StatusCode::kNotFound);
}

TEST(ProcStatTest, ReadsThisProcess) {
  const auto stat = ReadProcStat(getpid());
  ASSERT_TRUE(stat.ok()) << stat.status();
  EXPECT_EQ(stat->pid, getpid());
  EXPECT_GT(stat->start_time, 0U);
}

TEST(ProcStatTest, DoesNotFindWhatIsNotThere) {
  EXPECT_EQ(ReadProcStat(INT_MAX).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace unreft
