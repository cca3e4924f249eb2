#include "recovery/timeline.h"

#include <gtest/gtest.h>

namespace unreft::recovery {
namespace {

Version V(uint64_t timeline, uint64_t step) { return {Timeline{timeline}, Step{step}}; }

TEST(TimelineChainTest, EmptyHasNothingLive) {
  TimelineChain chain;
  EXPECT_EQ(chain.newest(), Timeline{0});
  EXPECT_FALSE(chain.IsLive(V(0, 0)));
  EXPECT_FALSE(chain.IsLive(V(1, 1)));
}

TEST(TimelineChainTest, StepsAfterTheBranchAreDeadForEver) {
  TimelineChain chain;
  EXPECT_EQ(chain.Open(V(0, 0)), Timeline{1});
  EXPECT_TRUE(chain.IsLive(V(1, 7)));
  EXPECT_EQ(chain.Open(V(1, 5)), Timeline{2});
  EXPECT_TRUE(chain.IsLive(V(1, 5)));
  EXPECT_TRUE(chain.IsLive(V(1, 4)));
  EXPECT_FALSE(chain.IsLive(V(1, 6)));
  EXPECT_TRUE(chain.IsLive(V(2, 6)));
  // Back before the branch point of 2: all of 2 is dead, too.
  EXPECT_EQ(chain.Open(V(1, 4)), Timeline{3});
  EXPECT_FALSE(chain.IsLive(V(2, 6)));
  EXPECT_FALSE(chain.IsLive(V(1, 5)));
  EXPECT_TRUE(chain.IsLive(V(1, 4)));
}

TEST(TimelineChainTest, AFreshStartKillsAllBefore) {
  TimelineChain chain;
  chain.Open(V(0, 0));
  chain.Open(V(0, 0));
  EXPECT_FALSE(chain.IsLive(V(1, 1)));
  EXPECT_TRUE(chain.IsLive(V(2, 1)));
}

// Or attempts that never capture would push out those that the committed version stands on.
TEST(TimelineChainTest, WhatTheParentDoesNotStandOnIsForgotten) {
  TimelineChain chain;
  chain.Open(V(0, 0));
  chain.Open(V(1, 5));
  chain.Open(V(2, 9));
  EXPECT_EQ(chain.Open(V(2, 9)), Timeline{4});
  EXPECT_EQ(chain.Open(V(2, 9)), Timeline{5});
  EXPECT_EQ(chain.origins().size(), 3u);
  EXPECT_TRUE(chain.IsLive(V(2, 9)));
  EXPECT_TRUE(chain.IsLive(V(1, 5)));
  EXPECT_FALSE(chain.IsLive(V(3, 10)));
  EXPECT_EQ(chain.Open(V(0, 0)), Timeline{6});
  EXPECT_EQ(chain.origins().size(), 1u);
}

TEST(TimelineChainTest, ForgottenOriginsEndTheChain) {
  TimelineChain chain;
  chain.Open(V(0, 0));
  chain.Open(V(1, 5));
  chain.Open(V(2, 9));
  chain.Trim(1);
  EXPECT_TRUE(chain.IsLive(V(2, 9)));
  EXPECT_FALSE(chain.IsLive(V(1, 5))) << "timeline 2's parent is not known any more";
  EXPECT_EQ(chain.Open(V(2, 9)), Timeline{4}) << "numbers are never used again";
}

TEST(TimelineChainTest, AnOddParentEndsTheWalk) {
  const TimelineChain chain({{Timeline{2}, V(2, 3)}});
  EXPECT_TRUE(chain.IsLive(V(2, 9)));
  EXPECT_FALSE(chain.IsLive(V(1, 1)));
}

}  // namespace
}  // namespace unreft::recovery
