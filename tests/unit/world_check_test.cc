#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "layout/tensor_table.h"
#include "tests/unit/layout_testing.h"

namespace unreft::layout {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// One rank for each list.
absl::Status Check(std::vector<std::vector<TensorSpec>> ranks) {
  std::vector<TensorTable> tables;
  for (auto& specs : ranks) {
    auto table = TensorTable::Create(std::move(specs));
    EXPECT_TRUE(table.ok()) << table.status();
    tables.push_back(*std::move(table));
  }
  return CheckWorld(tables);
}

std::string Refusal(std::vector<std::vector<TensorSpec>> ranks) {
  const absl::Status status = Check(std::move(ranks));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  return std::string(status.message());
}

TEST(CheckWorldTest, TakesShardsReplicasAndLoners) {
  EXPECT_TRUE(Check({}).ok());
  EXPECT_TRUE(Check({{}, {}}).ok());
  EXPECT_TRUE(Check({{Whole("w", {4}, 0, 2), Spec("v", {8}, {0}, {4}), Whole("rng0", {2})},
                     {Whole("w", {4}, 1, 2), Spec("v", {8}, {4}, {4}), Whole("rng1", {2})}})
                  .ok());
  // Replicas of shards: two columns, each held by two ranks.
  EXPECT_TRUE(Check({{Spec("w", {4, 2}, {0, 0}, {4, 1}, 0, 2)},
                     {Spec("w", {4, 2}, {0, 1}, {4, 1}, 1, 2)},
                     {Spec("w", {4, 2}, {0, 0}, {4, 1}, 1, 2)},
                     {Spec("w", {4, 2}, {0, 1}, {4, 1}, 0, 2)}})
                  .ok());
}

TEST(CheckWorldTest, RefusesDifferentDtypeOrShape) {
  EXPECT_THAT(
      Refusal({{Whole("w", {4}, 0, 2)}, {Whole("w", {4}, 1, 2, Dtype::kBfloat16)}}),
      AllOf(HasSubstr("'w'"), HasSubstr("rank 0 says float32"), HasSubstr("rank 1 says bfloat16")));
  EXPECT_THAT(Refusal({{Spec("w", {8}, {0}, {4})}, {Spec("w", {9}, {4}, {5})}}),
              AllOf(HasSubstr("'w'"), HasSubstr("[8]"), HasSubstr("[9]"), HasSubstr("rank 1")));
  EXPECT_THAT(Refusal({{Whole("w", {4}, 0, 2)}, {Whole("w", {2, 2}, 1, 2)}}), HasSubstr("[2, 2]"));
}

TEST(CheckWorldTest, RefusesOverlapsThatAreNotReplicas) {
  EXPECT_THAT(Refusal({{Spec("w", {8}, {0}, {5})}, {Spec("w", {8}, {4}, {4})}}),
              AllOf(HasSubstr("'w'"), HasSubstr("[0:5)"), HasSubstr("rank 0"), HasSubstr("[4:8)"),
                    HasSubstr("rank 1")));
  EXPECT_THAT(Refusal({{Whole("w", {8})}, {Spec("w", {8}, {2}, {1})}}), HasSubstr("[2:3)"));
}

TEST(CheckWorldTest, RefusesAnotherNumberOfHoldersThanReplicas) {
  EXPECT_THAT(Refusal({{Whole("w", {4}, 0, 3)}, {Whole("w", {4}, 2, 3)}}),
              AllOf(HasSubstr("'w'"), HasSubstr("3 replicas"), HasSubstr("held by 2"),
                    HasSubstr("ranks 0, 1")));
  EXPECT_THAT(Refusal({{Whole("w", {4})}, {Whole("w", {4})}}),
              AllOf(HasSubstr("1 replicas"), HasSubstr("held by 2")));
  EXPECT_THAT(Refusal({{Whole("w", {4}, 0, 2)}, {Whole("w", {4}, 1, 3)}}), HasSubstr("3 replicas"));
}

TEST(CheckWorldTest, RefusesTheSameReplicaTwice) {
  EXPECT_THAT(Refusal({{Whole("w", {4}, 1, 2)}, {Whole("w", {4}, 1, 2)}}),
              AllOf(HasSubstr("'w'"), HasSubstr("ranks 0 and 1"), HasSubstr("replica 1 of 2")));
}

TEST(CheckWorldTest, RefusesHoles) {
  EXPECT_THAT(Refusal({{Spec("w", {8, 2}, {0, 0}, {4, 2})}, {Spec("w", {8, 2}, {5, 0}, {3, 2})}}),
              AllOf(HasSubstr("'w'"), HasSubstr("14 elements of the 16"), HasSubstr("[8, 2]")));
  // A shape whose product does not fit in 64 bits is not covered by little.
  const uint64_t big = uint64_t{1} << 40;
  EXPECT_THAT(Refusal({{Spec("w", {big, big}, {0, 0}, {1, 1})}}), HasSubstr("cover 1 elements"));
}

TEST(CheckWorldTest, NamesFewOfManyRanks) {
  std::vector<std::vector<TensorSpec>> ranks;
  for (uint32_t rank = 0; rank < 20; ++rank) ranks.push_back({Whole("w", {4}, rank, 21)});
  EXPECT_THAT(Refusal(ranks), AllOf(HasSubstr("7 and 12 more"), HasSubstr("21"), HasSubstr("20")));
}

// `count` different ranks, in random order.
std::vector<size_t> DrawRanks(Random& random, size_t world, size_t count) {
  std::vector<size_t> ranks(world);
  std::iota(ranks.begin(), ranks.end(), 0);
  for (size_t i = world; i > 1; --i) std::swap(ranks[i - 1], ranks[random.Below(i)]);
  ranks.resize(count);
  return ranks;
}

std::vector<std::vector<TensorSpec>> RandomWorld(Random& random) {
  std::vector<std::vector<TensorSpec>> ranks(1 + random.Below(4));
  for (int t = 0; t < 3; ++t) {
    const Dims shape = RandomShape(random, 3, 5);
    const auto count = static_cast<uint32_t>(1 + random.Below(ranks.size()));
    for (const Box& box : RandomShards(random, shape)) {
      const std::vector<size_t> holders = DrawRanks(random, ranks.size(), count);
      for (uint32_t i = 0; i < count; ++i) {
        ranks[holders[i]].push_back(
            Spec("t" + std::to_string(t), shape, box.offset, box.extent, i, count));
      }
    }
  }
  return ranks;
}

// Any spec whose name its rank has once, so that the rank's own check does not see the change.
TensorSpec* DrawLoner(Random& random, std::vector<std::vector<TensorSpec>>& ranks) {
  std::vector<TensorSpec*> loners;
  for (auto& specs : ranks) {
    for (TensorSpec& spec : specs) {
      const auto same = [&](const TensorSpec& other) { return other.name == spec.name; };
      if (std::count_if(specs.begin(), specs.end(), same) == 1) loners.push_back(&spec);
    }
  }
  return loners.empty() ? nullptr : loners[random.Below(loners.size())];
}

TEST(CheckWorldTest, TakesRandomWorldsAndFindsAnyOneWrong) {
  int wrongs = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Random random(seed);
    auto ranks = RandomWorld(random);
    ASSERT_TRUE(Check(ranks).ok()) << seed << Check(ranks);
    TensorSpec* spec = DrawLoner(random, ranks);
    if (spec == nullptr) continue;
    ++wrongs;
    if (random.OneIn(2)) {
      spec->replica_count += 1;
    } else if (spec->replica_count > 1) {
      spec->replica_index = (spec->replica_index + 1) % spec->replica_count;
    } else {  // half of a tensor, or a tensor that is not what the others say
      spec->global_shape.push_back(2);
      spec->offset.push_back(0);
      spec->extent.push_back(1);
    }
    EXPECT_EQ(Check(ranks).code(), absl::StatusCode::kFailedPrecondition) << seed;
  }
  EXPECT_GT(wrongs, 200);
}

TEST(CheckWorldTest, ChecksManyRanksWithoutComparingAllPairs) {
  constexpr uint64_t kRanks = 2000;
  std::vector<TensorTable> tables;
  for (uint64_t rank = 0; rank < kRanks; ++rank) {
    std::vector<TensorSpec> specs;
    for (int t = 0; t < 20; ++t) {
      specs.push_back(Spec("fsdp" + std::to_string(t), {kRanks, 8}, {rank, 0}, {1, 8}));
      specs.push_back(Whole("ddp" + std::to_string(t), {8}, static_cast<uint32_t>(rank), kRanks));
    }
    tables.push_back(*TensorTable::Create(std::move(specs)));
  }
  EXPECT_TRUE(CheckWorld(tables).ok()) << CheckWorld(tables);
}

}  // namespace
}  // namespace unreft::layout
