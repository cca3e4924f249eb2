// A library of an earlier release is told each row by itself, and the rows are those of the pieces.

#include "smp/restore/earlier_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace unreft::smp {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

const WireSlot kFirst{SlotId{3}, Generation{7}, "/unreft.job.0.slot3"};
const WireSlot kSecond{SlotId{4}, Generation{9}, "/unreft.job.0.slot4"};

TEST(EarlierLibraryTest, RowsOfTheSlotsOfThisNodeAreNamedByThoseSlots) {
  // The source between the two is of another node.
  const std::vector<PlanSource> sources = {{Rank{0}, kFirst}, {Rank{1}, {}}, {Rank{2}, kSecond}};
  const std::vector<PlanPiece> pieces = {
      {0, 0, 64, 0, 8}, {1, 0, 0, 8, 8}, {2, 1, 100, 20, 4, 3, 16, 10}};
  Plan plan;
  ASSERT_TRUE(NameRows(sources, pieces, plan).ok());
  EXPECT_THAT(plan.slots, ElementsAre(kFirst, kSecond));
  EXPECT_THAT(plan.pieces, ElementsAre(WirePiece{0, 0, 64, 0, 8}, WirePiece{1, 1, 100, 20, 4},
                                       WirePiece{1, 1, 116, 30, 4}, WirePiece{1, 1, 132, 40, 4}));
}

TEST(EarlierLibraryTest, MoreRowsThanAFrameHoldsAreRefusedWithTheirNumber) {
  const std::vector<PlanSource> sources = {{Rank{0}, kFirst}};
  Plan plan;
  const std::vector<PlanPiece> most = {{0, 0, 0, 0, 1, 2'000'000, 2, 1}};
  EXPECT_TRUE(NameRows(sources, most, plan).ok());
  const std::vector<PlanPiece> more = {{0, 0, 0, 0, 1, 2'000'001, 2, 1}};
  plan = {};
  const absl::Status status = NameRows(sources, more, plan);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("at most 2000000 rows"), HasSubstr("has 2000001"),
                    HasSubstr("the library of this daemon's release")));
}

TEST(EarlierLibraryTest, RowsAreCutAtTheBordersOfBlocks) {
  // Rows of 4 from 6, 12 and 18; blocks of 8.
  const std::vector<PlanPiece> pieces = {{0, 2, 6, 50, 4, 3, 6, 10}};
  EXPECT_THAT(
      RowsByBlock(pieces, 8),
      ElementsAre(Pair(0, ElementsAre(WirePiece{0, 2, 6, 50, 2})),
                  Pair(1, ElementsAre(WirePiece{0, 2, 0, 52, 2}, WirePiece{0, 2, 4, 60, 4})),
                  Pair(2, ElementsAre(WirePiece{0, 2, 2, 70, 4}))));
}

}  // namespace
}  // namespace unreft::smp
