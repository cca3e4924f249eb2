#include "recovery/version_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "recovery/missing_ranks.h"

namespace unreft::recovery {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Version V(uint64_t timeline, uint64_t step) { return {Timeline{timeline}, Step{step}}; }

SealedSlab Slab(Version version, uint64_t rank, uint64_t world = 2) {
  return {version, Rank{rank}, world};
}

TEST(VersionChoiceTest, WholeLiveVersionsNewestFirst) {
  TimelineChain chain;
  chain.Open(Timeline{1}, V(0, 0));
  chain.Open(Timeline{2}, V(1, 5));
  const std::vector<SealedSlab> slabs = {Slab(V(1, 4), 0), Slab(V(1, 4), 1), Slab(V(1, 6), 0),
                                         Slab(V(1, 6), 1), Slab(V(2, 6), 0), Slab(V(1, 5), 1),
                                         Slab(V(1, 5), 0), Slab(V(2, 7), 1)};
  EXPECT_THAT(WholeVersions(slabs, chain), ElementsAre(V(1, 5), V(1, 4)));
  EXPECT_EQ(DescribeMissing(slabs, chain), "2:7 lacks rank 0; 2:6 lacks rank 1");
}

TEST(VersionChoiceTest, TwoSlabsOfOneRankAreNotTwoRanks) {
  TimelineChain chain;
  chain.Open(Timeline{1}, V(0, 0));
  const std::vector<SealedSlab> slabs = {Slab(V(1, 1), 0, 3), Slab(V(1, 1), 0, 3)};
  EXPECT_THAT(WholeVersions(slabs, chain), IsEmpty());
  EXPECT_EQ(DescribeMissing(slabs, chain), "1:1 lacks ranks 1, 2");
}

// What a slab claims costs nothing: these are as many ranks as no memory holds.
TEST(VersionChoiceTest, AWorldThatNobodyHasIsCountedAndNotGoneThrough) {
  TimelineChain chain;
  chain.Open(Timeline{1}, V(0, 0));
  const std::vector<SealedSlab> slabs = {Slab(V(1, 2), 1, uint64_t{1} << 62), Slab(V(1, 1), 0, 2),
                                         Slab(V(1, 1), 1, 2)};
  EXPECT_THAT(WholeVersions(slabs, chain), ElementsAre(V(1, 1)));
  EXPECT_EQ(DescribeMissing(slabs, chain),
            "1:2 lacks ranks 0, 2, 3, 4, 5, 6, 7, 8 and 4611686018427387895 more");
}

TEST(MissingRanksTest, NamesTheLowestAndCountsTheRest) {
  EXPECT_TRUE(FindMissing({}, 0).none());
  EXPECT_TRUE(FindMissing({Rank{0}, Rank{1}}, 2).none());
  EXPECT_EQ(FindMissing({Rank{0}, Rank{2}, Rank{9}}, 5).Text(), "1, 3, 4");
  EXPECT_EQ(FindMissing({Rank{9}}, 8).Text(), "0, 1, 2, 3, 4, 5, 6, 7");
  EXPECT_EQ(FindMissing({Rank{3}, Rank{9}}, 11).Text(), "0, 1, 2, 4, 5, 6, 7, 8 and 1 more");
}

}  // namespace
}  // namespace unreft::recovery
