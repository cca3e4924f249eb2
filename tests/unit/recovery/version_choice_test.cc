#include "recovery/version_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  chain.Open(V(0, 0));
  chain.Open(V(1, 5));
  const std::vector<SealedSlab> slabs = {Slab(V(1, 4), 0), Slab(V(1, 4), 1), Slab(V(1, 6), 0),
                                         Slab(V(1, 6), 1), Slab(V(2, 6), 0), Slab(V(1, 5), 1),
                                         Slab(V(1, 5), 0), Slab(V(2, 7), 1)};
  EXPECT_THAT(WholeVersions(slabs, chain), ElementsAre(V(1, 5), V(1, 4)));
  EXPECT_EQ(DescribeMissing(slabs, chain), "2:7 lacks rank 0; 2:6 lacks rank 1");
}

TEST(VersionChoiceTest, TwoSlabsOfOneRankAreNotTwoRanks) {
  TimelineChain chain;
  chain.Open(V(0, 0));
  const std::vector<SealedSlab> slabs = {Slab(V(1, 1), 0, 3), Slab(V(1, 1), 0, 3)};
  EXPECT_THAT(WholeVersions(slabs, chain), IsEmpty());
  EXPECT_EQ(DescribeMissing(slabs, chain), "1:1 lacks ranks 1, 2");
}

}  // namespace
}  // namespace unreft::recovery
