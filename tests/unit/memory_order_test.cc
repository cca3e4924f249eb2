#include "layout/memory_order.h"

#include <gmock/gmock.h>

#include <vector>

#include "layout/tensor_table.h"
#include "tests/unit/layout_testing.h"

namespace unreft::layout {
namespace {

using ::testing::HasSubstr;

const MemoryOrder kChannelsLast = {0, 2, 3, 1};

// A convolution's weight, whose shape is the same in both orders.
TensorSpec Weight() { return Whole("conv", {64, 3, 3, 3}); }

TensorSpec Behind(TensorSpec logical, const MemoryOrder& order) {
  absl::StatusOr<TensorSpec> behind = InMemoryOrder(std::move(logical), order);
  EXPECT_TRUE(behind.ok()) << behind.status();
  return behind.value_or(TensorSpec{});
}

TEST(MemoryOrderTest, RowMajorTensorsStayAsTheyAre) {
  EXPECT_EQ(Behind(Weight(), {}), Weight());
  EXPECT_EQ(Behind(Weight(), {0, 1, 2, 3}), Weight());
  const LogicalTensor logical = ToLogical(Weight());
  EXPECT_EQ(logical.spec, Weight());
  EXPECT_TRUE(logical.order.empty());
}

TEST(MemoryOrderTest, APermutedTensorHasThePermutedBoxUnderANameOfItsOwn) {
  TensorSpec part = Whole("w", {64, 5, 7, 9});
  part.offset = {32, 1, 2, 3};
  part.extent = {32, 2, 3, 4};
  const TensorSpec behind = Behind(part, kChannelsLast);
  EXPECT_EQ(behind.name, "w[memory_order=0,2,3,1]");
  EXPECT_EQ(behind.global_shape, (std::vector<uint64_t>{64, 7, 9, 5}));
  EXPECT_EQ(behind.offset, (std::vector<uint64_t>{32, 2, 3, 1}));
  EXPECT_EQ(behind.extent, (std::vector<uint64_t>{32, 3, 4, 2}));
  const LogicalTensor logical = ToLogical(behind);
  EXPECT_EQ(logical.spec, part);
  EXPECT_EQ(logical.order, kChannelsLast);
}

TEST(MemoryOrderTest, TheLayoutsDigestTellsOrdersOfOneShapeApart) {
  const auto digest = [](const MemoryOrder& order) {
    return layout::TensorTable::Create({Behind(Weight(), order)})->digest();
  };
  EXPECT_NE(digest({}), digest(kChannelsLast));
  EXPECT_NE(digest({0, 3, 2, 1}), digest(kChannelsLast));
}

TEST(MemoryOrderTest, DimensionsOfOneElementHaveNoPlace) {
  const TensorSpec narrow = Whole("w", {64, 3, 1, 1});
  EXPECT_EQ(Behind(narrow, {0, 2, 3, 1}), narrow);
  EXPECT_EQ(Behind(narrow, {1, 0, 2, 3}), Behind(narrow, {2, 1, 3, 0}));
  EXPECT_EQ(ToLogical(Behind(narrow, {1, 0, 2, 3})).order, (MemoryOrder{2, 3, 1, 0}));
  // Of a rank's part alone: others have more of them.
  TensorSpec part = Weight();
  part.extent = {64, 1, 3, 3};
  EXPECT_NE(Behind(part, kChannelsLast), part);
}

TEST(MemoryOrderTest, WhatIsNoOrderIsRefusedByName) {
  for (const MemoryOrder& order :
       {MemoryOrder{0, 1, 2}, MemoryOrder{0, 1, 2, 4}, MemoryOrder{0, 1, 1, 2}}) {
    const absl::Status status = InMemoryOrder(Weight(), order).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tensor 'conv': memory_order needs each"));
  }
  TensorSpec named = Weight();
  named.name = "conv[memory_order=0,2,3,1]";
  EXPECT_TRUE(absl::IsInvalidArgument(InMemoryOrder(named, {}).status()));
}

TEST(MemoryOrderTest, NamesThatOnlyLookLikeOneAreNames) {
  for (const char* name : {"w[memory_order=]", "w[memory_order=0,2]", "w[memory_order=0,2,3,1",
                           "w[memory_order=0,2,3,x]", "w[memory_order=0,2,3,3]"}) {
    TensorSpec spec = Weight();
    spec.name = name;
    EXPECT_EQ(ToLogical(spec).spec, spec) << name;
  }
}

TEST(MemoryOrderTest, ARestoreIntoAnotherOrderIsRefusedWithBoth) {
  const std::vector<LogicalTensor> stored = {ToLogical(Behind(Weight(), kChannelsLast))};
  const auto check = [&](const MemoryOrder& order) {
    const TensorSpec target = Behind(Weight(), order);
    return CheckMemoryOrders(stored, std::vector{&target});
  };
  EXPECT_EQ(check(kChannelsLast), absl::OkStatus());
  const absl::Status status = check({});
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("tensor 'conv': its dimensions are stored in the order [0, 2, 3, 1]"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("wanted in the order [0, 1, 2, 3] (row-major)"));
  EXPECT_FALSE(check({0, 3, 2, 1}).ok());
  // What is not stored at all is the daemon's to say.
  const TensorSpec unknown = Whole("other", {2});
  EXPECT_EQ(CheckMemoryOrders(stored, std::vector{&unknown}), absl::OkStatus());
}

}  // namespace
}  // namespace unreft::layout
