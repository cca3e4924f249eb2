// What a launcher makes of an operator's order on which nodes the job is to run.
#include "tools/cli/resize_wish.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unreft::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = WishVerdict::Kind;
using Nodes = std::set<uint64_t>;

const RunShape kShape{.nodes = 4, .range = {2, 4}};
const Nodes kAll{0, 1, 2, 3};

ResizeWish On(uint64_t nodes, Nodes without = {}) {
  return {.nodes = nodes, .without = std::move(without)};
}
ResizeWish AllBut(Nodes without) { return {.without = std::move(without)}; }

TEST(ResizeWishTest, IsReadFromAnAnswerOfThatShapeAlone) {
  const ResizeAnswer answer = ParseResize(nlohmann::json::parse(
      R"({"order":{"nodes":3,"without":[2,1],"ordered_s":7},"committed":{"timeline":1,"step":4},
          "there":[0,1],"lost":[3]})"));
  ASSERT_TRUE(answer.wish);
  EXPECT_EQ(*answer.wish, (ResizeWish{.nodes = 3, .without = {1, 2}, .ordered_s = 7}));
  EXPECT_EQ(answer.committed["step"], 4);
  EXPECT_EQ(answer.there, (Nodes{0, 1}));
  EXPECT_EQ(answer.lost, Nodes{3});
  for (const char* other : {"7", "{}", R"({"order":null})", R"({"order":7,"lost":"x"})",
                            R"({"order":{"nodes":"3","without":[-1]}})", R"({"order":{}})"}) {
    EXPECT_FALSE(ParseResize(nlohmann::json::parse(other)).wish) << other;
  }
}

TEST(ResizeWishTest, IsSaidInWords) {
  EXPECT_EQ(On(3).Text(), "3 nodes");
  EXPECT_EQ(On(1, {0, 2}).Text(), "1 node, without node 0, 2");
  EXPECT_EQ(AllBut({1}).Text(), "all nodes but node 1");
}

TEST(JudgeTest, FewerNodesAreWithoutTheHighest) {
  const WishVerdict verdict = Judge(On(3), kAll, kAll, kShape);
  EXPECT_EQ(verdict.kind, Kind::kMove);
  EXPECT_THAT(verdict.nodes, ElementsAre(0, 1, 2));
  EXPECT_THAT(Judge(On(3, {1}), kAll, kAll, kShape).nodes, ElementsAre(0, 2, 3));
  EXPECT_THAT(Judge(On(2, {1}), kAll, kAll, kShape).nodes, ElementsAre(0, 2));
  EXPECT_THAT(Judge(AllBut({0}), kAll, kAll, kShape).nodes, ElementsAre(1, 2, 3));
}

TEST(JudgeTest, ThoseThatHaveADaemonComeFirst) {
  EXPECT_THAT(Judge(On(3), kAll, {0, 2, 3}, kShape).nodes, ElementsAre(0, 2, 3));
  EXPECT_THAT(Judge(AllBut({0}), kAll, {0, 2, 3}, kShape).nodes, ElementsAre(1, 2, 3))
      << "it may be back";
}

TEST(JudgeTest, WhatIsAsIsWishedStays) {
  EXPECT_EQ(Judge(On(4), kAll, kAll, kShape).kind, Kind::kMet);
  EXPECT_EQ(Judge(On(3), {0, 2, 3}, kAll, kShape).kind, Kind::kMet) << "whichever these are";
  EXPECT_EQ(Judge(AllBut({1}), {0, 2, 3}, kAll, kShape).kind, Kind::kMet);
  EXPECT_EQ(Judge(AllBut({1}), {0, 2}, kAll, kShape).kind, Kind::kMet) << "it asks for no more";
}

TEST(JudgeTest, MoreNodesAreThoseThatRunAndTheLowestOthers) {
  EXPECT_THAT(Judge(On(3), {0, 3}, kAll, kShape).nodes, ElementsAre(0, 1, 3));
  EXPECT_THAT(Judge(On(4), {0, 2, 3}, kAll, kShape).nodes, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Judge(AllBut({2}), {0, 2, 3}, kAll, kShape).nodes, ElementsAre(0, 1, 3));
}

TEST(JudgeTest, WhatCannotBeMetIsSaidWithTheNumbers) {
  const WishVerdict missing = Judge(On(4), {0, 1, 2}, {0, 1, 2}, kShape);
  EXPECT_EQ(missing.kind, Kind::kCannot);
  EXPECT_EQ(missing.why, "needed 4 nodes that have a daemon, found 3: 0, 1, 2");
  EXPECT_EQ(Judge(On(1), kAll, kAll, kShape).why,
            "needed 2 to 4 nodes, by --nodes of `unreft run`, found 1");
  EXPECT_THAT(Judge(AllBut({0, 1, 2}), kAll, kAll, kShape).why, HasSubstr("found 1"));
  EXPECT_THAT(Judge(AllBut({0}), {0, 1}, {0, 1}, kShape).why,
              HasSubstr("needed 2 nodes that have a daemon, found 1: 1"));
  EXPECT_THAT(Judge(On(3), kAll, kAll, {.nodes = 4, .range = {}}).why,
              HasSubstr("without --nodes MIN:MAX"));
}

class ChooseNodesTest : public ::testing::Test {
 protected:
  std::vector<uint64_t> Choose(const std::optional<ResizeWish>& wish, const Nodes& there,
                               const Nodes& before = {}) {
    NodesAtHand at_hand{.there = there, .before = before, .has_waited = has_waited_};
    const auto choice = ChooseNodes(wish, at_hand, kShape);
    ignored_ = choice ? choice->ignored : "";
    return choice ? choice->nodes : std::vector<uint64_t>{};
  }
  bool has_waited_ = false;
  std::string ignored_;
};

TEST_F(ChooseNodesTest, WithoutAWishAllAreWaitedForAndThenAsManyAsAreNeeded) {
  EXPECT_THAT(Choose({}, kAll), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Choose({}, {0, 1, 3}), IsEmpty());
  has_waited_ = true;
  EXPECT_THAT(Choose({}, {0, 1, 3}), ElementsAre(0, 1, 3));
  EXPECT_THAT(Choose({}, {3}), IsEmpty());
}

TEST_F(ChooseNodesTest, NodesThatAreNotWishedAreNotWaitedFor) {
  EXPECT_THAT(Choose(On(3), {0, 1, 3}), ElementsAre(0, 1, 3));
  EXPECT_THAT(Choose(AllBut({2}), {0, 1, 3}), ElementsAre(0, 1, 3));
  EXPECT_THAT(Choose(On(2), kAll, {1, 3}), ElementsAre(1, 3)) << "where they were before";
  EXPECT_THAT(Choose(On(3, {1}), {0, 1, 3}), IsEmpty()) << "node 2 is wished";
}

TEST_F(ChooseNodesTest, AWishIsHeededAsFarAsThereAreNodes) {
  has_waited_ = true;
  EXPECT_THAT(Choose(On(3, {1}), {0, 1, 3}), ElementsAre(0, 3));
  EXPECT_EQ(ignored_, "");
}

TEST_F(ChooseNodesTest, TrainingGoesOnBesideAWishThatCannotBeMet) {
  EXPECT_THAT(Choose(On(1), kAll), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(ignored_, HasSubstr("needed 2 to 4 nodes"));
  has_waited_ = true;
  EXPECT_THAT(Choose(AllBut({0, 1}), {0, 1, 2}), ElementsAre(0, 1, 2));
  EXPECT_THAT(ignored_, HasSubstr("needed 2 nodes that have a daemon, found 1: 2"));
}

TEST(ReplacedNodesTest, ThoseThatGetADaemonCountAndComeLast) {
  const NodesAtHand at_hand{.there = {0, 2, 3}, .before = kAll, .replace = true};
  EXPECT_THAT(ChooseNodes({}, at_hand, kShape)->nodes, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(ChooseNodes(On(3), at_hand, kShape)->nodes, ElementsAre(0, 2, 3));
  EXPECT_THAT(ChooseNodes(On(3, {0}), at_hand, kShape)->nodes, ElementsAre(1, 2, 3));
}

TEST(WithoutARangeTest, AllNodesAreThere) {
  const RunShape all{.nodes = 4, .range = {}};
  EXPECT_THAT(ChooseNodes(On(3), {.there = {0}}, all)->nodes, ElementsAre(0, 1, 2, 3));
}

}  // namespace
}  // namespace unreft::cli
