#include "durable/weight_names.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>

#include "tests/unit/layout_testing.h"

namespace unreft::durable {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

WeightNames NamesOf(const std::set<std::string>& stored, KeyMap map = {}) {
  return {PlainNames(stored), std::move(map)};
}

TEST(WeightNamesTest, AModelsParametersAndBuffersHaveBareNames) {
  const WeightNames names = NamesOf({"model/layer.weight", "rank0/buffer/norm.mean"});
  EXPECT_EQ(names.KeyOf("model/layer.weight"), "layer.weight");
  EXPECT_EQ(names.KeyOf("rank0/buffer/norm.mean"), "norm.mean");
  for (const char* const other : {"optim/layer.weight/exp_avg", "master/layer.weight",
                                  "rank0/rng/torch", "something of a client"}) {
    EXPECT_EQ(names.KeyOf(other), std::nullopt) << other;
  }
}

TEST(WeightNamesTest, OfBuffersThatEachRankHasTheFirstsAreTaken) {
  const WeightNames names = NamesOf({"model/w", "rank0/buffer/n", "rank3/buffer/n"});
  EXPECT_EQ(names.KeyOf("rank0/buffer/n"), "n");
  EXPECT_EQ(names.KeyOf("rank3/buffer/n"), std::nullopt);
}

// As of the stages of a pipeline, each of which has layers that no other has.
TEST(WeightNamesTest, WhatOneRankAloneHasIsPartOfTheModel) {
  const WeightNames names = NamesOf({"rank0/model/first.w", "rank2/model/last.w",
                                     "rank2/buffer/last.n", "group4/model/middle.w"});
  EXPECT_EQ(names.KeyOf("rank2/model/last.w"), "last.w");
  EXPECT_EQ(names.KeyOf("rank2/buffer/last.n"), "last.n");
  EXPECT_EQ(names.KeyOf("group4/model/middle.w"), "middle.w");
}

TEST(WeightNamesTest, ParametersThatRanksHaveOfTheirOwnStayApart) {
  const WeightNames names = NamesOf({"rank0/model/w", "rank1/model/w"});
  EXPECT_EQ(names.KeyOf("rank0/model/w"), "w");
  EXPECT_EQ(names.KeyOf("rank1/model/w"), "unreft.rank1.model.w");
}

TEST(WeightNamesTest, AMapSaysWhatStandsInThePlaceOfThePrefix) {
  const std::set<std::string> stored = {"model/layers.0.w", "model/head.w"};
  const auto keys = [&](KeyMap map) {
    const WeightNames names = NamesOf(stored, std::move(map));
    return fmt::format("{} {}", names.KeyOf("model/layers.0.w").value(),
                       names.KeyOf("model/head.w").value());
  };
  EXPECT_EQ(keys({{"model.", "model."}}), "model.layers.0.w model.head.w");
  EXPECT_EQ(keys({{"model.", "net."}}), "net.layers.0.w net.head.w");
  EXPECT_EQ(keys({{"model", "net"}}), "net.layers.0.w net.head.w");
  EXPECT_EQ(keys({{"model.layers.", "blocks."}}), "blocks.0.w head.w");
  EXPECT_EQ(keys({{"optim.", "o."}}), "layers.0.w head.w");
}

TEST(WeightNamesTest, OfAProgramThatDoesNotSayWhatItsModelIsEverythingIsTaken) {
  const WeightNames names = NamesOf({}, {{"w", "v"}});
  EXPECT_EQ(names.KeyOf("weights0"), "veights0");
  EXPECT_EQ(names.KeyOf("model.layer.weight"), "model.layer.weight");
  EXPECT_EQ(names.KeyOf("optimizer"), "optimizer");
}

TEST(WeightNamesTest, AManifestNamesParametersAndBuffersByTheirLogicalNames) {
  layout::SlotManifest manifest;
  manifest.tensors = {Whole("model/conv[memory_order=0,2,3,1]", {4, 3, 3, 2}),
                      Whole("rank1/buffer/n", {}), Whole("optim/conv/step", {})};
  EXPECT_THAT(ModelNames(manifest), ElementsAre("model/conv", "rank1/buffer/n"));
}

TEST(WeightNamesTest, AManifestNamesTheParametersThatWereTrained) {
  layout::SlotManifest manifest;
  manifest.tensors = {Whole("model/frozen", {4}),
                      Whole("optim/a/exp_avg[memory_order=1,0]", {4, 3}),
                      Whole("group4/optim1/b.c/d/step", {}),
                      Whole("rank1/master/e", {}),
                      Whole("rank1/buffer/n", {}),
                      Whole("weights", {})};
  EXPECT_THAT(TrainedParameters(manifest), ElementsAre("a", "b.c/d", "e"));
}

TEST(WeightNamesTest, AParameterThatIsNotStoredIsRefusedByName) {
  const std::set<std::string> stored = {"model/a", "rank3/model/b", "rank0/buffer/c"};
  EXPECT_TRUE(CheckTrained(stored, {"a", "b"}).ok());
  EXPECT_TRUE(CheckTrained(stored, {}).ok());
  const absl::Status status = CheckTrained(stored, {"a", "b", "c"});
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'c'"), HasSubstr("1 of 3 trained")));
}

TEST(WeightNamesTest, OfAllNamesThoseWithPlainKeysAreTold) {
  EXPECT_THAT(PlainNames({"model/w", "rank0/buffer/n", "rank1/buffer/n", "rank1/model/w",
                          "rank4/model/v", "rank5/model/v"}),
              ElementsAre("model/w", "rank0/buffer/n", "rank4/model/v"));
  EXPECT_THAT(PlainNames({}), IsEmpty());
}

}  // namespace
}  // namespace unreft::durable
