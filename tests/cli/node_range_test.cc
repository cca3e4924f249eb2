// On which nodes of a job an attempt may run, and with how many ranks.
#include "tools/cli/node_range.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unreft::cli {
namespace {

using ::testing::HasSubstr;

TEST(NodeRangeTest, IsTwoNumbersInOrderOrOne) {
  const NodeRange range = ParseRange("3:4");
  EXPECT_EQ(range.min, 3U);
  EXPECT_EQ(range.max, 4U);
  EXPECT_EQ(ParseRange("4").min, 4U);
  EXPECT_EQ(ParseRange("4").max, 4U);
  for (const char* text : {"", "0", "0:4", "4:3", "3:", ":4", "3:4:5", "a:b", "-1:4", "3 4"}) {
    EXPECT_THAT(IsRange(text), HasSubstr("MIN:MAX")) << text;
    EXPECT_FALSE(ParseRange(text).is_given()) << text;
  }
  EXPECT_EQ(IsRange("3:4"), "");
}

TEST(NodeRangeTest, ItsEndIsTheNumberOfTheJobsNodes) {
  EXPECT_TRUE(CheckRange({3, 4}, 4, 4, 1).ok());
  EXPECT_TRUE(CheckRange({}, 4, 4, 8).ok());
  EXPECT_THAT(CheckRange({3, 5}, 4, 4, 1).message(), HasSubstr("3:5: the job has 4 nodes"));
  EXPECT_THAT(CheckRange({3, 4}, 4, 4, 4).message(), HasSubstr("4 ranks on 4 nodes are 3 on 3"));
  EXPECT_THAT(CheckRange({1, 4}, 4, 2, 1).message(), HasSubstr("at least 1 is needed"));
}

TEST(NodeRangeTest, RanksAreAsManyOnEachNodeInMultiples) {
  EXPECT_EQ(*RanksOn(4, 4, 8, 1), 8U);
  EXPECT_EQ(*RanksOn(3, 4, 8, 1), 6U);
  EXPECT_EQ(*RanksOn(3, 4, 8, 4), 4U) << "as TP 2 x PP 2";
  EXPECT_EQ(*RanksOn(3, 4, 5, 1), 3U);
  EXPECT_THAT(RanksOn(3, 4, 4, 4).status().message(),
              HasSubstr("4 ranks on 4 nodes are 3 on 3, and at least 4 are needed"));
}

TEST(NodeRangeTest, AWaitIsDescribedByWhatLacks) {
  EXPECT_EQ(DescribeWait({3, 4}, {1, 2}, 2),
            "waiting for 1 more of them: node 1, 2 has no daemon (2 of 4 nodes are there, --nodes "
            "3:4)");
  EXPECT_THAT(DescribeWait({3, 4}, {1}, 3), HasSubstr("until --shrink-after is over"));
}

}  // namespace
}  // namespace unreft::cli
