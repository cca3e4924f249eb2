#include "recovery/restore_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/layout_testing.h"
#include "tests/unit/recovery/planner_testing.h"

namespace unreft::recovery {
namespace {

using layout::Box;
using layout::BoxOf;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::Status Failure(const Store& store, std::vector<TensorSpec> targets) {
  return PlanRestore(store.parts, targets).status();
}

TEST(RestorePlannerTest, NothingWantedIsNothingToDo) {
  Store store;
  store.AddWhole(Whole("w", {4}), 0, 0);
  EXPECT_THAT(*PlanRestore(store.parts, {}), IsEmpty());
}

TEST(RestorePlannerTest, SameCutIsOnePiece) {
  Store store;
  store.AddWhole(Whole("w", {4, 8}), 3, 640);
  const std::vector<TensorSpec> targets = {Whole("w", {4, 8})};
  EXPECT_THAT(*PlanRestore(store.parts, targets), ElementsAre(PlanPiece{3, 0, 640, 0, 128}));
}

// It was a piece for each row, minutes and gigabytes of them.
TEST(RestorePlannerTest, AColumnOfALargeMatrixIsOnePiece) {
  Store store;
  store.AddWhole(Spec("w", {1 << 24, 2}, {0, 0}, {1 << 24, 2}), 0, 64);
  const std::vector<TensorSpec> targets = {Spec("w", {1 << 24, 2}, {0, 1}, {1 << 24, 1})};
  EXPECT_THAT(*PlanRestore(store.parts, targets),
              ElementsAre(PlanPiece{0, 0, 68, 0, 4, 1 << 24, 8, 4}));
}

TEST(RestorePlannerTest, ACutIntoTooManyPiecesIsRefusedWithTheirNumber) {
  // Cut in two dimensions: a piece for each index of the first.
  const auto cut = [](const std::string& name, uint64_t length, uint64_t column) {
    return Spec(name, {length, 4, 2}, {0, 0, column}, {length, 2, 1});
  };
  Store store;
  store.AddWhole(Whole("w", {1 << 22, 4, 2}), 0, 0);
  const absl::Status status = Failure(store, {cut("w", 1 << 22, 1)});
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("'w'"), HasSubstr("needs 4194304 pieces"), HasSubstr("most 2000000")));
  // Of several targets together, too.
  Store several;
  several.AddWhole(Whole("c", {1500000, 4, 2}), 0, 0);
  EXPECT_THAT(std::string(Failure(several, {cut("c", 1500000, 0), cut("c", 1500000, 1)}).message()),
              HasSubstr("1500000 pieces beside the 1500000"));
}

TEST(RestorePlannerTest, ComparisonsOfTooManyBoxesAreRefusedWithTheirNumber) {
  // A grid, of which each target is a stripe through as many rows as columns.
  constexpr uint64_t kSide = 150;
  Store store;
  std::vector<TensorSpec> targets;
  for (uint64_t i = 0; i < kSide * kSide; ++i) {
    store.AddWhole(Spec("w", {kSide, kSide}, {i / kSide, i % kSide}, {1, 1}), 0, 64 * i);
  }
  for (uint64_t i = 0; i < 4000; ++i) {
    targets.push_back(Spec("w", {kSide, kSide}, {0, i % kSide}, {kSide, 1}));
  }
  const absl::Status status = Failure(store, targets);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("22500 comparisons"));
}

// All pairs would be 400 million, and were refused.
TEST(RestorePlannerTest, ShardsAreFoundByTheDimensionThatTheyAreCutIn) {
  constexpr uint64_t kShards = 20000;
  Store store;
  std::vector<TensorSpec> targets;
  for (uint64_t i = 0; i < kShards; ++i) {
    store.AddWhole(Spec("w", {2, 2 * kShards}, {0, 2 * i}, {2, 2}), 0, 64 * i);
    targets.push_back(Spec("w", {2, 2 * kShards}, {0, i}, {2, 3}));
  }
  const auto plan = PlanRestore(store.parts, targets);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->size(), 2 * kShards);  // each target has parts of two shards
}

TEST(RestorePlannerTest, AnotherCutIsRowByRow) {
  Store store;  // cut by columns; wanted by rows
  store.AddWhole(Spec("w", {2, 4}, {0, 0}, {2, 2}), 0, 0);
  store.AddWhole(Spec("w", {2, 4}, {0, 2}, {2, 2}), 1, 64);
  const std::vector<TensorSpec> targets = {Spec("w", {2, 4}, {1, 0}, {1, 4})};
  EXPECT_THAT(*PlanRestore(store.parts, targets),
              ElementsAre(PlanPiece{0, 0, 8, 0, 8}, PlanPiece{1, 0, 72, 8, 8}));
}

TEST(RestorePlannerTest, ReplicasThatCapturedHalvesOfAMatrixGiveTheirRowsAndThoseThatAreCut) {
  Store store;  // rows of 16 bytes; the halves meet in the middle of row 1
  store.Add(Whole("w", {4, 4}, 0, 2), 0, 0, 24, 0);
  store.Add(Whole("w", {4, 4}, 1, 2), 1, 24, 40, 0);
  const std::vector<TensorSpec> targets = {Spec("w", {4, 4}, {0, 1}, {4, 2})};
  EXPECT_THAT(*PlanRestore(store.parts, targets),
              ElementsAre(PlanPiece{0, 0, 4, 0, 8}, PlanPiece{0, 0, 20, 8, 4},
                          PlanPiece{1, 0, 0, 12, 4}, PlanPiece{1, 0, 12, 16, 8, 2, 16, 8}));
}

// A byte would have two places, and which was right nobody could say.
TEST(RestorePlannerTest, RefusesBoxesThatOverlapWithoutBeingEqual) {
  Store store;
  store.AddWhole(Spec("w", {8}, {0}, {5}), 0, 0);
  store.AddWhole(Spec("w", {8}, {4}, {4}), 1, 0);
  const absl::Status status = Failure(store, {Whole("w", {8})});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'w'"), HasSubstr("[0:5)"), HasSubstr("[4:8)")));
}

TEST(RestorePlannerTest, SourcesAreNumberedAsTheyAreUsed) {
  Store store;
  store.AddWhole(Spec("w", {3, 4}, {0, 0}, {1, 4}), 7, 0);
  store.AddWhole(Spec("w", {3, 4}, {1, 0}, {1, 4}), 9, 0);
  store.AddWhole(Spec("w", {3, 4}, {2, 0}, {1, 4}), 4, 0);
  const std::vector<TensorSpec> targets = {Spec("w", {3, 4}, {1, 0}, {2, 4})};
  auto pieces = *PlanRestore(store.parts, targets);
  EXPECT_THAT(NumberSources(pieces), ElementsAre(4u, 9u));
  EXPECT_THAT(pieces, ElementsAre(PlanPiece{0, 0, 0, 16, 16}, PlanPiece{1, 0, 0, 0, 16}));
}

TEST(RestorePlannerTest, PartsThatContinueEachOtherAreOnePiece) {
  Store store;
  store.Add(Whole("w", {64}), 0, 0, 128, 1024);
  store.Add(Whole("w", {64}), 0, 128, 128, 1152);
  const std::vector<TensorSpec> targets = {Whole("w", {64})};
  EXPECT_THAT(*PlanRestore(store.parts, targets), ElementsAre(PlanPiece{0, 0, 1024, 0, 256}));
}

TEST(RestorePlannerTest, PreferredSlabsComeFirstInTheirOrderThenTheLowerNumber) {
  Store store;
  for (const uint32_t slab : {5u, 2u, 9u}) store.AddWhole(Whole("w", {64}, 0, 3), slab, slab * 64);
  const std::vector<TensorSpec> targets = {Whole("w", {64})};
  const auto slab_taken = [&](std::vector<uint32_t> preferred) {
    return PlanRestore(store.parts, targets, preferred)->at(0).source;
  };
  EXPECT_EQ(slab_taken({}), 2u);
  EXPECT_EQ(slab_taken({9}), 9u);
  EXPECT_EQ(slab_taken({9, 5}), 9u);
  EXPECT_EQ(slab_taken({7, 5, 9}), 5u);
  EXPECT_EQ(slab_taken({7}), 2u);
}

TEST(RestorePlannerTest, APreferredPartInTheMiddleIsTaken) {
  Store store;
  store.AddWhole(Whole("w", {64}), 0, 0);
  store.Add(Whole("w", {64}), 1, 64, 64, 0);
  const std::vector<TensorSpec> targets = {Whole("w", {64})};
  const std::vector<uint32_t> preferred = {1};
  EXPECT_THAT(*PlanRestore(store.parts, targets, preferred),
              ElementsAre(PlanPiece{0, 0, 0, 0, 64}, PlanPiece{0, 0, 128, 128, 128},
                          PlanPiece{1, 0, 0, 64, 64}));
}

TEST(RestorePlannerTest, RefusesWhatIsNotStored) {
  Store store;
  store.AddWhole(Whole("w", {4}), 0, 0);
  const absl::Status status = Failure(store, {Whole("v", {4})});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'v'"), HasSubstr("16 bytes")));
}

TEST(RestorePlannerTest, RefusesAnotherDtypeOrShape) {
  Store store;
  store.AddWhole(Whole("w", {4}), 0, 0);
  absl::Status status = Failure(store, {Whole("w", {4}, 0, 1, Dtype::kBfloat16)});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'w'"), HasSubstr("float32 [4]"), HasSubstr("bfloat16 [4]")));
  status = Failure(store, {Whole("w", {2, 2})});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("[4]"), HasSubstr("[2, 2]")));
  store.AddWhole(Whole("w", {5}), 7, 0);
  status = Failure(store, {Whole("w", {4})});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("[4]"), HasSubstr("[5]"), HasSubstr("slab 7")));
}

TensorSpec OfAnyShape(TensorSpec spec) {
  spec.allow_shape_mismatch = true;
  return spec;
}

// A vocabulary that was padded for two ranks.
Store Vocabulary() {
  Store store;
  store.AddWhole(Spec("w", {6, 2}, {0, 0}, {3, 2}), 0, 0);
  store.AddWhole(Spec("w", {6, 2}, {3, 0}, {3, 2}), 1, 0);
  return store;
}

TEST(RestorePlannerTest, OfAnotherShapeComesWhatBothHave) {
  const Store store = Vocabulary();
  // For three ranks it is padded to nine rows.
  const std::vector<TensorSpec> larger = {OfAnyShape(Spec("w", {9, 2}, {0, 0}, {3, 2})),
                                          OfAnyShape(Spec("w", {9, 2}, {4, 0}, {3, 2})),
                                          OfAnyShape(Spec("w", {9, 2}, {7, 0}, {2, 2}))};
  EXPECT_THAT(*PlanRestore(store.parts, larger),
              ElementsAre(PlanPiece{0, 0, 0, 0, 24}, PlanPiece{1, 1, 8, 0, 16}));
  // And narrower, and without padding.
  const std::vector<TensorSpec> smaller = {OfAnyShape(Spec("w", {5, 1}, {2, 0}, {3, 1}))};
  EXPECT_THAT(*PlanRestore(store.parts, smaller),
              ElementsAre(PlanPiece{0, 0, 16, 0, 4}, PlanPiece{1, 0, 0, 4, 4, 2, 8, 4}));
}

TEST(RestorePlannerTest, OfAnotherShapeEveryByteThatBothHaveIsNeeded) {
  Store store;
  store.AddWhole(Spec("w", {6, 2}, {0, 0}, {3, 2}), 0, 0);
  const absl::Status status = Failure(store, {OfAnyShape(Spec("w", {9, 2}, {2, 0}, {6, 2}))});
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("of the box [2:8, 0:2) 32 bytes are needed, what a tensor of shape [6, 2] "
                        "has of it, found 8 stored"));
}

TEST(RestorePlannerTest, OfAnyShapeIsNotOfAnyTypeOrNumberOfDimensions) {
  const Store store = Vocabulary();
  TensorSpec other = OfAnyShape(Whole("w", {9, 2}));
  other.dtype = Dtype::kFloat64;
  EXPECT_TRUE(absl::IsFailedPrecondition(Failure(store, {other})));
  EXPECT_TRUE(absl::IsFailedPrecondition(Failure(store, {OfAnyShape(Whole("w", {12}))})));
  EXPECT_TRUE(absl::IsFailedPrecondition(Failure(store, {Whole("w", {9, 2})})));
}

TEST(RestorePlannerTest, RefusesMissingBytes) {
  Store store;
  store.Add(Whole("w", {64}), 0, 0, 128, 0);
  store.Add(Whole("w", {64}), 1, 192, 64, 0);
  const absl::Status status = Failure(store, {Whole("w", {64})});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'w'"), HasSubstr("needs 256"),
                                                   HasSubstr("found 192"), HasSubstr("byte 128")));
  // The missing bytes are not wanted by everybody.
  EXPECT_TRUE(Failure(store, {Spec("w", {64}, {0}, {32}), Spec("w", {64}, {48}, {16})}).ok());
}

TEST(RestorePlannerTest, RefusesHostileTargets) {
  Store store;
  store.AddWhole(Whole("w", {4}), 0, 0);
  const uint64_t big = uint64_t{1} << 63;
  for (const TensorSpec& bad :
       {Spec("w", {4}, {big}, {big}), Spec("w", {4}, {0, 0}, {4}), Spec("w", {4}, {0}, {0}),
        Whole("w", {big, big}), Whole("w", {4}, 0, 1, static_cast<Dtype>(0))}) {
    EXPECT_EQ(Failure(store, {bad}).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace unreft::recovery
