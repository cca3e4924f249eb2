#include "durable/copy_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace unreft::durable {
namespace {

using ::testing::HasSubstr;
using Path = std::vector<PathElement>;

const KeyMap kNoMap;

CopyName Of(const std::string& stored, const KeyMap& map = kNoMap) {
  CopyNames names(map);
  names.Add(stored);
  return names.Of(stored);
}

// Names of no kind that is known stay as they are.
void ExpectItself(const std::string& stored) {
  EXPECT_EQ(Of(stored), (CopyName{stored, {stored}})) << stored;
}

TEST(CopyNamesTest, TensorsAreWhereGetStateDictHasThem) {
  EXPECT_EQ(Of("model/layer.weight"), (CopyName{"model.layer.weight", {"model", "layer.weight"}}));
  EXPECT_EQ(Of("rank0/buffer/norm.mean"), (CopyName{"model.norm.mean", {"model", "norm.mean"}}));
  EXPECT_EQ(Of("buffer/norm.mean"), (CopyName{"model.norm.mean", {"model", "norm.mean"}}));
  EXPECT_EQ(Of("optim/layer.weight/exp_avg"),
            (CopyName{"optim.state.layer.weight.exp_avg",
                      {"optim", "state", "layer.weight", "exp_avg"}}));
}

TEST(CopyNamesTest, OfSeveralOptimizersTheStateIsInOneDict) {
  EXPECT_EQ(Of("optim0/a/step"), (CopyName{"optim.state.a.step", {"optim", "state", "a", "step"}}));
  EXPECT_EQ(Of("optim12/b/step").path, (Path{"optim", "state", "b", "step"}));
  EXPECT_EQ(Of("group4/optim1/c/step").path, (Path{"optim", "state", "c", "step"}));
}

TEST(CopyNamesTest, OnlyTheLastPartOfAStateIsItsKey) {
  EXPECT_EQ(Of("optim/a/b/exp_avg").path, (Path{"optim", "state", "a/b", "exp_avg"}));
  EXPECT_EQ(Of("model/a/b").path, (Path{"model", "a/b"}));
}

TEST(CopyNamesTest, TheFirstThatHoldsItsOwnHasThePlainKeyInWhicheverOrder) {
  std::vector<std::string> stored = {"rank10/buffer/n", "rank2/buffer/n", "rank3/buffer/n",
                                     "group4/model/w",  "group8/model/w", "rank3/buffer/other"};
  for (int rotation = 0; rotation < 6; ++rotation) {
    std::rotate(stored.begin(), stored.begin() + 1, stored.end());
    CopyNames names(kNoMap);
    for (int times = 0; times < 2; ++times) {
      for (const std::string& name : stored) names.Add(name);
    }
    EXPECT_EQ(names.Of("rank2/buffer/n"), (CopyName{"model.n", {"model", "n"}}));
    EXPECT_EQ(names.Of("rank3/buffer/n"),
              (CopyName{"unreft.rank3.model.n", {"unreft", "rank3", "model", "n"}}));
    EXPECT_EQ(names.Of("rank10/buffer/n").key, "unreft.rank10.model.n");
    EXPECT_EQ(names.Of("group4/model/w").key, "model.w");
    EXPECT_EQ(names.Of("group8/model/w"),
              (CopyName{"unreft.group8.model.w", {"unreft", "group8", "model", "w"}}));
    EXPECT_EQ(names.Of("rank3/buffer/other").key, "model.other");
  }
}

TEST(CopyNamesTest, StateThatARankHasOfItsOwnIsBesideTheFirstOnes) {
  CopyNames names(kNoMap);
  names.Add("rank1/optim/w/exp_avg");
  names.Add("rank0/optim/w/exp_avg");
  EXPECT_EQ(names.Of("rank0/optim/w/exp_avg").key, "optim.state.w.exp_avg");
  EXPECT_EQ(names.Of("rank1/optim/w/exp_avg"),
            (CopyName{"unreft.rank1.optim.state.w.exp_avg",
                      {"unreft", "rank1", "optim", "state", "w", "exp_avg"}}));
}

TEST(CopyNamesTest, NoTwoOfThemShareThePlainKey) {
  const std::vector<std::string> stored = {"model/w", "rank0/model/w", "group0/model/w",
                                           "rank1/model/w"};
  CopyNames names(kNoMap);
  for (const std::string& name : stored) names.Add(name);
  EXPECT_EQ(names.Of("model/w").key, "model.w") << "all ranks have it";
  EXPECT_EQ(names.Of("rank0/model/w").key, "unreft.rank0.model.w");
  EXPECT_EQ(names.Of("group0/model/w").key, "unreft.group0.model.w");
  EXPECT_EQ(names.Of("rank1/model/w").key, "unreft.rank1.model.w");

  CopyNames of_sets(kNoMap);
  for (const char* name : {"rank0/model/w", "group0/model/w"}) of_sets.Add(name);
  EXPECT_NE(of_sets.Of("rank0/model/w").key, of_sets.Of("group0/model/w").key);
}

TEST(CopyNamesTest, NamesOfNoKnownKindStayAsTheyAre) {
  for (const char* name : {"w", "master/layer.weight", "model.layer.weight", "rank3/extras/device",
                           "rank0/master/w", "", "/", "optimizer/w/exp_avg"}) {
    ExpectItself(name);
  }
}

TEST(CopyNamesTest, NamesThatOnlyLookLikeAKindStayAsTheyAre) {
  for (const char* name : {"rank/x",
                           "rank/model/y",
                           "rankx/model/y",
                           "rank3model/y",
                           "rank3",
                           "rank3/",
                           "rank3/x",
                           "group/model/y",
                           "group-1/model/y",
                           "rank+1/model/y",
                           "rank 1/model/y",
                           "rank1 /model/y",
                           "rank1.0/model/y",
                           "rank18446744073709551616/model/y",
                           "Rank3/model/y",
                           "xrank3/model/y",
                           "rank3//model/y",
                           "rank3/rank4/model/y",
                           "rank3/group4/model/y",
                           "optim",
                           "optim/",
                           "optim/x",
                           "optim1/",
                           "optim1/x",
                           "optimx/a/b",
                           "optim-1/a/b",
                           "model",
                           "modelx/y",
                           "rank3/optim/x",
                           "rank3xmodel/y",
                           "optim1xa/b"}) {
    ExpectItself(name);
  }
}

// An empty name of a parameter is one, as of a module that is itself one.
TEST(CopyNamesTest, AnEmptyPartOfANameStaysOne) {
  EXPECT_EQ(Of("model/"), (CopyName{"model.", {"model", ""}}));
  EXPECT_EQ(Of("optim//step").path, (Path{"optim", "state", "", "step"}));
  EXPECT_EQ(Of("optim/w/").path, (Path{"optim", "state", "w", ""}));
}

TEST(CopyNamesTest, ThePlaceOfAValueIsJoinedByDots) {
  const CopyNames names(kNoMap);
  EXPECT_EQ(names.At({"optim", "param_groups", int64_t{12}, "lr"}),
            (CopyName{"optim.param_groups.12.lr", {"optim", "param_groups", int64_t{12}, "lr"}}));
}

TEST(CopyNamesTest, TheLongestBeginningOfAKeyIsReplaced) {
  const KeyMap map = {{"model.", "net."}, {"model.head.", "top."}, {"m", "x"}, {"other", ""}};
  EXPECT_EQ(Of("model/a", map), (CopyName{"net.a", {"net.a"}}));
  EXPECT_EQ(Of("model/head.w", map), (CopyName{"top.w", {"top.w"}}));
  EXPECT_EQ(Of("master/w", map), (CopyName{"xaster/w", {"xaster/w"}}));
  EXPECT_EQ(Of("optim/model.a/step", map).key, "optim.state.model.a.step") << "not within";
  const KeyMap reversed(map.rbegin(), map.rend());
  EXPECT_EQ(Of("model/head.w", reversed).key, "top.w") << "whichever stands first";
}

TEST(CopyNamesTest, ABeginningMayBeTakenAway) {
  const KeyMap map = {{"model.", ""}};
  EXPECT_EQ(Of("model/layer.weight", map), (CopyName{"layer.weight", {"layer.weight"}}));
  EXPECT_EQ(Of("optim/layer.weight/step", map).path,
            (Path{"optim", "state", "layer.weight", "step"}));
}

TEST(CopyNamesTest, TheMapHoldsForValuesAndForWhatRanksHaveOfTheirOwn) {
  const KeyMap map = {{"unreft.rank1.", "second."}, {"optim.param_groups.0", "group"}};
  CopyNames names(map);
  names.Add("rank0/buffer/n");
  names.Add("rank1/buffer/n");
  EXPECT_EQ(names.Of("rank1/buffer/n").key, "second.model.n");
  EXPECT_EQ(names.Of("rank0/buffer/n").key, "model.n");
  EXPECT_EQ(names.At({"optim", "param_groups", int64_t{0}, "lr"}),
            (CopyName{"group.lr", {"group.lr"}}));
}

TEST(CopyNamesTest, WhatIsPlacedKeepsItsNameAndAPathThatHasIt) {
  CopyNames names(KeyMap{{"net.", "model."}});
  names.Place("model/w", {});
  names.Place(".a", {"", "a"});
  names.Place("list.0", {"list", 0});
  names.Place("x", {"y"});
  names.Place("net.w", {"net", "w"});
  EXPECT_EQ(names.Of("model/w"), (CopyName{"model/w", {"model/w"}}));
  EXPECT_EQ(names.Of(".a"), (CopyName{".a", {"", "a"}}));
  EXPECT_EQ(names.Of("list.0"), (CopyName{"list.0", {"list", 0}}));
  EXPECT_EQ(names.Of("x"), (CopyName{"x", {"x"}}));
  EXPECT_EQ(names.Of("net.w"), (CopyName{"model.w", {"model.w"}}));
}

TEST(CopyNamesTest, AMappingIsFromUpToTheFirstEqualsSign) {
  const auto parsed = [](const std::string& text) {
    auto mapping = ParseKeyMapping(text);
    EXPECT_TRUE(mapping.ok()) << mapping.status();
    return *std::move(mapping);
  };
  EXPECT_EQ(parsed("model.=net."), std::pair(std::string("model."), std::string("net.")));
  EXPECT_EQ(parsed("model.="), std::pair(std::string("model."), std::string()));
  EXPECT_EQ(parsed("a=b=c"), std::pair(std::string("a"), std::string("b=c")));
  EXPECT_EQ(parsed("a=="), std::pair(std::string("a"), std::string("=")));
}

TEST(CopyNamesTest, AMappingFromNothingIsRefusedWithItsText) {
  for (const char* text : {"", "model.", "=", "=net."}) {
    const absl::Status status = ParseKeyMapping(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("'" + std::string(text) + "'"));
  }
}

}  // namespace
}  // namespace unreft::durable
