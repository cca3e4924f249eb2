// What is forecast for the ranks of a layout: where bytes come from on each node, what patterns
// stand for, and what is said of what does not fit.
#include "smp/node/forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace unreft::smp {
namespace {

using layout::JobLayout;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

constexpr uint64_t kRows = 12;
constexpr uint64_t kRowBytes = 4;

TensorSpec Rows(std::string name, uint64_t begin, uint64_t end) {
  return {
      .name = std::move(name), .global_shape = {kRows}, .offset = {begin}, .extent = {end - begin}};
}

TensorSpec Whole(std::string name, std::vector<uint64_t> shape, Dtype dtype = Dtype::kFloat32) {
  std::vector<uint64_t> offset(shape.size(), 0);
  return {.name = std::move(name),
          .dtype = dtype,
          .global_shape = shape,
          .offset = std::move(offset),
          .extent = std::move(shape)};
}

// Two ranks on nodes 0 and 1 of three stored the rows of "w", their optimizer state "optim/w/m" and
// "optim/w/step", and a buffer each. Node 1 is lost; node 0 makes the forecast.
class ForecastTest : public ::testing::Test {
 protected:
  ForecastTest() : forecast_({.job = "job", .nodes = 3, .version = {Timeline{1}, Step{7}}}) {
    for (uint64_t rank = 0; rank < 2; ++rank) {
      const uint64_t begin = rank * kRows / 2;
      const uint64_t end = begin + kRows / 2;
      Add(rank, {Rows("w", begin, end), Rows("optim/w/m", begin, end), Whole("optim/w/step", {}),
                 Whole("rank" + std::to_string(rank) + "/mean", {3})});
    }
    forecast_.SetStored(stored_);
  }

  void Add(uint64_t rank, const std::vector<TensorSpec>& tensors) {
    std::vector<layout::CapturedPart> parts;
    for (uint32_t i = 0; i < tensors.size(); ++i) {
      parts.push_back({.tensor = i,
                       .bytes = ShardBytes(tensors[i]),
                       .slab_offset = uint64_t{i} * layout::kPartAlignment});
    }
    stored_->AddSlab(static_cast<uint32_t>(rank), tensors, parts);
    forecast_.AddSlab({.rank = Rank{rank},
                       .home = NodeSlot{rank},
                       .is_at_home = rank == 0,
                       .is_here = rank == 0});
  }

  // Of ranks with these tensors each, rank r on node r.
  Json Of(std::vector<std::vector<TensorSpec>> tensors, bool any_world = true) {
    JobLayout layout{.job = "job", .world = tensors.size()};
    for (auto& shards : tensors) {
      const uint64_t rank = layout.ranks.size();
      layout.ranks.push_back(
          {.rank = Rank{rank}, .node = rank, .any_world = any_world, .shards = std::move(shards)});
    }
    forecast_.SetLayout(ToJson(layout));
    const absl::Status status = forecast_.Compute();
    EXPECT_TRUE(status.ok()) << status;
    return forecast_.ToJson();
  }
  static std::vector<uint64_t> BytesOf(const Json& rank) {
    return {rank["local_bytes"], rank["peer_bytes"], rank["decoded_bytes"]};
  }

  // What a program of one rank has that fits.
  static std::vector<TensorSpec> All() {
    return {Rows("w", 0, kRows), Rows("optim/w/*", 0, kRows), Whole("rank*/mean", {3})};
  }

  std::shared_ptr<recovery::StoredTables> stored_ = std::make_shared<recovery::StoredTables>();
  Forecast forecast_;
};

TEST_F(ForecastTest, EachRankReadsOfItsOwnNodeFirst) {
  const Json json = Of({{Rows("w", 0, 4)}, {Rows("w", 4, 8)}, {Rows("w", 8, 12)}});
  EXPECT_THAT(BytesOf(json["ranks"][0]), ElementsAre(4 * kRowBytes, 0, 0));
  EXPECT_THAT(BytesOf(json["ranks"][1]), ElementsAre(0, 2 * kRowBytes, 2 * kRowBytes));
  EXPECT_THAT(BytesOf(json["ranks"][2]), ElementsAre(0, 0, 4 * kRowBytes));
}

TEST_F(ForecastTest, PatternsStandForWhatIsStored) {
  const Json json = Of({All()});
  EXPECT_EQ(json["ranks"][0]["problem"], "");
  EXPECT_EQ(json["unwanted"], 0);
  // "w", "optim/w/m", "optim/w/step", and both ranks' own.
  EXPECT_EQ(json["ranks"][0]["tensors"], 5);
  EXPECT_THAT(BytesOf(json["ranks"][0]),
              ElementsAre(2 * 6 * kRowBytes + 4 + 12, 0, 2 * 6 * kRowBytes + 12));
}

TEST_F(ForecastTest, AmongAsManyRanksEachReadsItsOwnAlone) {
  const Json json = Of({{Whole("rank*/mean", {3})}, {Whole("rank*/mean", {3})}});
  EXPECT_THAT(BytesOf(json["ranks"][0]), ElementsAre(12, 0, 0));
  EXPECT_THAT(BytesOf(json["ranks"][1]), ElementsAre(0, 0, 12));
}

TEST_F(ForecastTest, APatternMayStandForNothing) {
  std::vector<TensorSpec> tensors = All();
  tensors.push_back(Whole("optim/other/*", {5}));
  tensors.push_back(Whole("derived?", {5}));
  const Json json = Of({tensors});
  EXPECT_EQ(json["ranks"][0]["problem"], "");
  EXPECT_EQ(json["ranks"][0]["tensors"], 5);
}

TEST_F(ForecastTest, WhatIsReadIfItIsStoredIsRead) {
  EXPECT_THAT(BytesOf(Of({{Rows("w?", 0, 4)}})["ranks"][0]), ElementsAre(4 * kRowBytes, 0, 0));
}

TEST_F(ForecastTest, AnOrderInMemoryStandsBehindAPattern) {
  const std::string order = "[memory_order=1,0]";
  Add(2,
      {Whole("c" + order, {3, 2}), Whole("optim/c/m" + order, {3, 2}), Whole("rank2/mean", {3})});
  std::vector<TensorSpec> tensors = All();
  tensors.push_back(Whole("c?" + order, {3, 2}));
  tensors.push_back(Whole("optim/c/*" + order, {3, 2}));
  const Json json = Of({tensors});
  EXPECT_EQ(json["ranks"][0]["problem"], "");
  EXPECT_EQ(json["unwanted"], 0);
  EXPECT_EQ(json["ranks"][0]["tensors"], 8);
}

TEST_F(ForecastTest, WhatDoesNotFitIsCountedAndItsFirstNamesTold) {
  std::vector<TensorSpec> tensors = {Whole("w", {kRows}, Dtype::kFloat64)};
  for (char name = 'a'; name < 'a' + 12; ++name) tensors.push_back(Whole({'x', name}, {1}));
  const Json json = Of({tensors});
  const std::string problem = json["ranks"][0]["problem"];
  EXPECT_THAT(problem,
              HasSubstr("12 of its tensors are not stored: xa, xb, xc, xd, xe, xf, xg, xh, "
                        "xi, xj, ...;"));
  EXPECT_THAT(problem, HasSubstr("1 of its tensors is of another kind than stored: w (float32 [12] "
                                 "was stored, found float64 [12])"));
  EXPECT_EQ(json["unwanted"], 4);
  EXPECT_THAT(json["unwanted_names"],
              ElementsAre("optim/w/m", "optim/w/step", "rank0/mean", "rank1/mean"));
}

TEST_F(ForecastTest, ShardsOfOneTensorAreCountedAsOne) {
  const Json json = Of({{Rows("x", 0, 4), Rows("x", 8, 12)}});
  EXPECT_THAT(json["ranks"][0]["problem"], HasSubstr("1 of its tensors is not stored: x"));
  EXPECT_EQ(json["ranks"][0]["not_stored"], 1);
}

TEST_F(ForecastTest, WhoTakesOnlyAsManyRanksIsRefusedAmongOthers) {
  EXPECT_THAT(Of({All()}, /*any_world=*/false)["ranks"][0]["problem"],
              HasSubstr("was saved by 2 ranks, and it is one of 1"));
}

TEST_F(ForecastTest, ALayoutOfAnotherJobOrOfMoreNodesIsRefused) {
  JobLayout layout{.job = "other", .world = 1, .ranks = {{.node = 3, .shards = All()}}};
  forecast_.SetLayout(ToJson(layout));
  EXPECT_THAT(std::string(forecast_.Compute().message()), HasSubstr("is of job 'other'"));
  layout.job = "job";
  forecast_.SetLayout(ToJson(layout));
  EXPECT_THAT(std::string(forecast_.Compute().message()), HasSubstr("rank 0 on node 3"));
  forecast_.SetLayout("no layout");
  EXPECT_TRUE(absl::IsInvalidArgument(forecast_.Compute()));
}

}  // namespace
}  // namespace unreft::smp
