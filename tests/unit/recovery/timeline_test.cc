#include "recovery/timeline.h"

#include <gtest/gtest.h>

namespace unreft::recovery {
namespace {

Version V(uint64_t timeline, uint64_t step) { return {Timeline{timeline}, Step{step}}; }

TEST(TimelineTest, NumbersCountOnAndIdsTellTwoOfOneNumberApart) {
  const Timeline first = NextTimeline(Timeline{0}, 7);
  EXPECT_EQ(NumberOf(first), 1U);
  EXPECT_EQ(RandomIdOf(first), 7U);
  const Timeline second = NextTimeline(first, 0);
  EXPECT_EQ(NumberOf(second), 2U);
  EXPECT_GT(second, first);
  const Timeline other = NextTimeline(first, 1);
  EXPECT_NE(other, second);
  EXPECT_EQ(NumberOf(other), 2U);
  EXPECT_EQ(fmt::format("{}", Version{other, Step{45}}), "2:45");
}

TEST(TimelineTest, ThoseOfEarlierReleasesAreTheirNumberAlone) {
  const Timeline before{41};
  EXPECT_EQ(NumberOf(before), 41U);
  EXPECT_EQ(RandomIdOf(before), 0U);
  EXPECT_EQ(fmt::format("{}", before), "41");
  const Timeline next = NextTimeline(before, 7);
  EXPECT_EQ(NumberOf(next), 42U);
  EXPECT_GT(next, before);
}

// Of a store that was lost, and of one that went on without it.
TEST(TimelineChainTest, AVersionOfAnotherTimelineOfThatNumberIsDead) {
  TimelineChain chain;
  const Timeline first = NextTimeline(Timeline{0}, 7);
  chain.Open(first, V(0, 0));
  chain.Open(NextTimeline(first, 5), {first, Step{3}});
  EXPECT_TRUE(chain.IsLive({NextTimeline(first, 5), Step{45}}));
  EXPECT_FALSE(chain.IsLive({NextTimeline(first, 4), Step{45}}));
  EXPECT_FALSE(chain.IsLive({NextTimeline(first, 6), Step{45}}));
  EXPECT_TRUE(chain.IsOver(NextTimeline(first, 4)));
  EXPECT_TRUE(chain.IsOver(NextTimeline(first, 6)));
  EXPECT_FALSE(chain.IsOver(NextTimeline(first, 5)));
  EXPECT_FALSE(chain.IsOver(NextTimeline(NextTimeline(first, 5), 1))) << "not heard of yet";
}

TEST(TimelineChainTest, EmptyHasNothingLive) {
  TimelineChain chain;
  EXPECT_EQ(chain.newest(), Timeline{0});
  EXPECT_FALSE(chain.IsLive(V(0, 0)));
  EXPECT_FALSE(chain.IsLive(V(1, 1)));
}

TEST(TimelineChainTest, StepsAfterTheBranchAreDeadForEver) {
  TimelineChain chain;
  chain.Open(Timeline{1}, V(0, 0));
  EXPECT_TRUE(chain.IsLive(V(1, 7)));
  chain.Open(Timeline{2}, V(1, 5));
  EXPECT_TRUE(chain.IsLive(V(1, 5)));
  EXPECT_TRUE(chain.IsLive(V(1, 4)));
  EXPECT_FALSE(chain.IsLive(V(1, 6)));
  EXPECT_TRUE(chain.IsLive(V(2, 6)));
  // Back before the branch point of 2: all of 2 is dead, too.
  chain.Open(Timeline{3}, V(1, 4));
  EXPECT_FALSE(chain.IsLive(V(2, 6)));
  EXPECT_FALSE(chain.IsLive(V(1, 5)));
  EXPECT_TRUE(chain.IsLive(V(1, 4)));
}

TEST(TimelineChainTest, AFreshStartKillsAllBefore) {
  TimelineChain chain;
  chain.Open(Timeline{1}, V(0, 0));
  chain.Open(Timeline{2}, V(0, 0));
  EXPECT_FALSE(chain.IsLive(V(1, 1)));
  EXPECT_TRUE(chain.IsLive(V(2, 1)));
}

// Or attempts that never capture would push out those that the committed version stands on.
TEST(TimelineChainTest, WhatTheParentDoesNotStandOnIsForgotten) {
  TimelineChain chain;
  chain.Open(Timeline{1}, V(0, 0));
  chain.Open(Timeline{2}, V(1, 5));
  chain.Open(Timeline{3}, V(2, 9));
  chain.Open(Timeline{4}, V(2, 9));
  chain.Open(Timeline{5}, V(2, 9));
  EXPECT_EQ(chain.origins().size(), 3u);
  EXPECT_TRUE(chain.IsLive(V(2, 9)));
  EXPECT_TRUE(chain.IsLive(V(1, 5)));
  EXPECT_FALSE(chain.IsLive(V(3, 10)));
  chain.Open(Timeline{6}, V(0, 0));
  EXPECT_EQ(chain.origins().size(), 1u);
}

TEST(TimelineChainTest, ForgottenOriginsEndTheChain) {
  TimelineChain chain;
  chain.Open(Timeline{1}, V(0, 0));
  chain.Open(Timeline{2}, V(1, 5));
  chain.Open(Timeline{3}, V(2, 9));
  chain.Trim(1);
  EXPECT_TRUE(chain.IsLive(V(2, 9)));
  EXPECT_FALSE(chain.IsLive(V(1, 5))) << "timeline 2's parent is not known any more";
}

TEST(TimelineChainTest, AnOddParentEndsTheWalk) {
  const TimelineChain chain({{Timeline{2}, V(2, 3)}});
  EXPECT_TRUE(chain.IsLive(V(2, 9)));
  EXPECT_FALSE(chain.IsLive(V(1, 1)));
}

}  // namespace
}  // namespace unreft::recovery
