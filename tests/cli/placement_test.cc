#include "tools/cli/placement.h"

#include <gtest/gtest.h>

#include <set>

namespace unreft::cli {
namespace {

constexpr uint64_t kNodes = 3;

class PlacementTest : public ::testing::Test {
 protected:
  PlacementTest() {
    cluster_.nodes = kNodes;
    cluster_.spares = 1;
  }
  // What a node says that has read view `view`, in which node i is at `places[i]`.
  static nlohmann::json Answer(const std::vector<uint64_t>& places, uint64_t view = 1) {
    nlohmann::json answer{{"view", view}, {"members", nlohmann::json::array()}};
    for (uint64_t slot = 0; slot < places.size(); ++slot) {
      answer["members"].push_back({{"slot", slot}, {"place", places[slot]}});
    }
    return answer;
  }
  Placement Find(const nlohmann::json& answer, const std::set<uint64_t>& served) {
    return FindPlacement(cluster_, answer, [&](uint64_t place) { return served.contains(place); });
  }

  Cluster cluster_;
};

TEST_F(PlacementTest, AllAreWhereTheyWere) {
  const Placement placement = Find(Answer({0, 1, 2}), {0, 1, 2, 3});
  EXPECT_EQ(placement.places, (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_FALSE(placement.unsettled);
  EXPECT_TRUE(placement.vacant.empty());
}

TEST_F(PlacementTest, WaitsWhileASpareIsThereForAVacantNode) {
  const Placement placement = Find(Answer({0, 1, 2}), {0, 2, 3});
  EXPECT_TRUE(placement.unsettled);
  EXPECT_EQ(placement.vacant, std::vector<uint64_t>{1});
}

TEST_F(PlacementTest, NoSpareIsWaitedForWhereANodeIsToCome) {
  nlohmann::json answer = Answer({0, 1, 2});
  answer["members"][1]["to_come"] = true;
  const Placement placement = Find(answer, {0, 2, 3});
  EXPECT_FALSE(placement.unsettled);
  EXPECT_EQ(placement.vacant, std::vector<uint64_t>{1});
  EXPECT_TRUE(Find(answer, {0, 3}).unsettled) << "of the other one";
}

TEST_F(PlacementTest, ANodeIsWhereItsSpareIs) {
  const Placement placement = Find(Answer({0, 3, 2}), {0, 2, 3});
  EXPECT_EQ(placement.places, (std::vector<uint64_t>{0, 3, 2}));
  EXPECT_FALSE(placement.unsettled);
  EXPECT_TRUE(placement.vacant.empty());
}

TEST_F(PlacementTest, ASpareThatHasASlotIsForNoOther) {
  const Placement placement = Find(Answer({0, 3, 2}), {0, 3});
  EXPECT_FALSE(placement.unsettled);
  EXPECT_EQ(placement.vacant, std::vector<uint64_t>{2});
}

TEST_F(PlacementTest, ASpareThatIsGoneToo) {
  const Placement placement = Find(Answer({0, 3, 2}), {0, 2});
  EXPECT_FALSE(placement.unsettled);
  EXPECT_EQ(placement.vacant, std::vector<uint64_t>{1});
}

TEST_F(PlacementTest, WaitsForSomeoneWhoHasReadTheView) {
  EXPECT_TRUE(Find(nlohmann::json(), {0, 2, 3}).unsettled);
  EXPECT_TRUE(Find(Answer({0, 1, 2}, 0), {0, 1, 2, 3}).unsettled);
}

TEST_F(PlacementTest, NobodyIsWaitedForWhereNobodyIs) {
  const Placement placement = Find(nlohmann::json(), {});
  EXPECT_FALSE(placement.unsettled);
  EXPECT_EQ(placement.vacant, (std::vector<uint64_t>{0, 1, 2}));
}

TEST_F(PlacementTest, WithoutSparesNobodyIsAsked) {
  cluster_.spares = 0;
  const Placement placement = Find(nlohmann::json(), {0, 2});
  EXPECT_FALSE(placement.unsettled);
  EXPECT_EQ(placement.places, (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_EQ(placement.vacant, std::vector<uint64_t>{1});
}

}  // namespace
}  // namespace unreft::cli
