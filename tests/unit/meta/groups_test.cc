#include "meta/groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace unreft::meta {
namespace {

std::vector<GroupCandidate> Nodes(size_t count) {
  std::vector<GroupCandidate> nodes;
  for (uint64_t slot = 0; slot < count; ++slot) nodes.push_back({NodeSlot{slot}, ""});
  return nodes;
}

TEST(GroupsTest, SizesDifferByAtMostOneAndEveryNodeIsInOneGroup) {
  for (uint32_t k = 1; k <= 5; ++k) {
    for (uint32_t m = 0; m <= 3; ++m) {
      for (size_t count = k + m; count < 40; ++count) {
        const auto grouping = FormGroups(Nodes(count), k, m);
        ASSERT_TRUE(grouping.ok()) << grouping.status();
        ASSERT_EQ(grouping->groups.size(), count / (k + m));
        std::set<NodeSlot> seen;
        size_t smallest = count;
        size_t largest = 0;
        for (const ec::Group& group : grouping->groups) {
          EXPECT_EQ(group.slots.size() - group.k, m);
          EXPECT_GE(group.k, k);
          EXPECT_TRUE(std::ranges::is_sorted(group.slots));
          smallest = std::min(smallest, group.slots.size());
          largest = std::max(largest, group.slots.size());
          seen.insert(group.slots.begin(), group.slots.end());
        }
        EXPECT_EQ(seen.size(), count);
        EXPECT_LE(largest - smallest, 1U);
        EXPECT_EQ(grouping->exposure, "");
      }
    }
  }
}

TEST(GroupsTest, TooFewNodesAreRefusedWithTheNumbers) {
  const auto grouping = FormGroups(Nodes(3), 2, 2);
  EXPECT_EQ(grouping.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(grouping.status().message(), "a group of RS(2,2) needs 4 nodes, found 3");
}

// Of a job of RS(2,2) that goes on with fewer nodes.
TEST(GroupsTest, FewerNodesThanAGroupNeedsHaveAsManyParitiesAsLeaveThemData) {
  EXPECT_EQ(ShapeFor(9, 2, 2), (ec::CodeShape{2, 2}));
  EXPECT_EQ(ShapeFor(4, 2, 2), (ec::CodeShape{2, 2}));
  EXPECT_EQ(ShapeFor(3, 2, 2), (ec::CodeShape{1, 2}));
  EXPECT_EQ(ShapeFor(2, 2, 2), (ec::CodeShape{1, 1}));
  EXPECT_EQ(ShapeFor(1, 2, 2), (ec::CodeShape{1, 0}));
  EXPECT_EQ(ShapeFor(4, 4, 1), (ec::CodeShape{3, 1}));
  EXPECT_EQ(ShapeFor(2, 3, 0), (ec::CodeShape{2, 0}));
}

TEST(GroupsTest, ASlotThatIsThereTwiceIsRefused) {
  std::vector<GroupCandidate> nodes = Nodes(4);
  nodes.push_back({NodeSlot{2}, ""});
  EXPECT_EQ(FormGroups(nodes, 2, 2).status().message(), "node slot 2 is there twice");
}

TEST(GroupsTest, MembersOfAFailureDomainAreSpreadOverTheGroups) {
  std::vector<GroupCandidate> nodes;
  for (uint64_t slot = 0; slot < 12; ++slot) {
    nodes.push_back({NodeSlot{slot}, slot < 6 ? "rack a" : "rack b"});
  }
  const auto grouping = FormGroups(nodes, 2, 2);
  ASSERT_TRUE(grouping.ok());
  ASSERT_EQ(grouping->groups.size(), 3U);
  for (const ec::Group& group : grouping->groups) {
    const auto in_a = std::ranges::count_if(group.slots, [](NodeSlot s) { return s.value < 6; });
    EXPECT_EQ(in_a, 2);
  }
  EXPECT_EQ(grouping->exposure, "");
}

TEST(GroupsTest, MoreThanMMembersOfADomainAreTold) {
  std::vector<GroupCandidate> nodes = Nodes(4);
  for (int i = 0; i < 3; ++i) nodes[i].failure_domain = "rack a";
  const auto grouping = FormGroups(nodes, 2, 2);
  ASSERT_TRUE(grouping.ok());
  EXPECT_EQ(
      grouping->exposure,
      "the group of slot 0 has 3 members in failure domain 'rack a', it stands the loss of 2");
}

TEST(GroupsTest, TheOrderOfTheNodesDoesNotMatter) {
  std::vector<GroupCandidate> nodes = Nodes(11);
  for (size_t i = 0; i < nodes.size(); i += 3) nodes[i].failure_domain = "rack";
  const auto needed = FormGroups(nodes, 2, 1);
  std::mt19937 shuffle(1);
  for (int i = 0; i < 20; ++i) {
    std::ranges::shuffle(nodes, shuffle);
    EXPECT_EQ(FormGroups(nodes, 2, 1)->groups, needed->groups);
  }
}

}  // namespace
}  // namespace unreft::meta
