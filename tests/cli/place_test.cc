#include "tools/cli/place.h"

#include <gtest/gtest.h>

namespace unreft::cli {
namespace {

TEST(Place, EachJobAndNodeHasADirectory) {
  Place place{.job = "a"};
  Place other_node{.job = "a", .node = 1};
  Place other_job{.job = "b"};
  for (Place* each : {&place, &other_node, &other_job}) ASSERT_TRUE(Resolve(*each).ok());
  EXPECT_NE(place.run_dir, other_node.run_dir);
  EXPECT_NE(place.run_dir, other_job.run_dir);
}

TEST(Place, RelativeDirectoriesBecomeAbsolute) {
  Place place{.run_dir = "some/../where/"};
  ASSERT_TRUE(Resolve(place).ok());
  EXPECT_EQ(place.run_dir.front(), '/');
  EXPECT_TRUE(place.run_dir.ends_with("/where")) << place.run_dir;
}

TEST(Place, RefusesABadJobAndALongPath) {
  Place job{.job = "a.b"};
  EXPECT_TRUE(absl::IsInvalidArgument(Resolve(job)));
  Place path{.run_dir = "/tmp/" + std::string(100, 'x')};
  EXPECT_TRUE(absl::IsInvalidArgument(Resolve(path)));
}

TEST(ShellQuote, KeepsOneWord) {
  EXPECT_EQ(ShellQuote("/run/user/0/job-1"), "/run/user/0/job-1");
  EXPECT_EQ(ShellQuote("a b$c"), "'a b$c'");
  EXPECT_EQ(ShellQuote("it's"), "'it'\\''s'");
  EXPECT_EQ(ShellQuote(""), "''");
}

}  // namespace
}  // namespace unreft::cli
