// Which losses a version survives, in a group of RS(2,2) whose nodes have rank i each.

#include "recovery/restorable.h"

#include <gtest/gtest.h>

#include <bit>

namespace unreft::recovery {
namespace {

constexpr Version kVersion{Timeline{1}, Step{7}};
constexpr uint64_t kNodes = 4;
constexpr uint64_t kParities = 2;

using Nodes = std::map<NodeSlot, NodeHolding>;

CodedGroup GroupOfFour() {
  return {{NodeSlot{0}, NodeSlot{1}, NodeSlot{2}, NodeSlot{3}}, kNodes - kParities};
}

// Everything in place: each node has its rank, its parities and copies of the two before it.
Nodes Whole() {
  Nodes nodes;
  for (uint64_t slot = 0; slot < kNodes; ++slot) {
    NodeHolding& holding = nodes[NodeSlot{slot}];
    holding.sealed = {Rank{slot}};
    holding.world = kNodes;
    holding.guarded = true;
    for (uint64_t back = 1; back <= kParities; ++back) {
      const uint64_t of = (slot + kNodes - back) % kNodes;
      holding.replicas.push_back({NodeSlot{of}, {Rank{of}}, kNodes});
    }
  }
  return nodes;
}

std::optional<Restorable> Find(const Nodes& nodes, std::string* missing = nullptr) {
  const std::vector<CodedGroup> groups{GroupOfFour()};
  return FindHolders(kVersion, nodes, groups, missing);
}

TEST(RestorableTest, EveryLossOfUpToTwoNodesIsDecodedAndNoOther) {
  for (uint32_t lost = 0; lost < 1U << kNodes; ++lost) {
    Nodes nodes = Whole();
    for (uint64_t slot = 0; slot < kNodes; ++slot) {
      if ((lost >> slot & 1) != 0) nodes.erase(NodeSlot{slot});
    }
    const auto found = Find(nodes);
    ASSERT_EQ(found.has_value(), std::popcount(lost) <= 2) << "lost " << lost;
    if (!found) continue;
    EXPECT_EQ(found->world, kNodes);
    ASSERT_EQ(found->holders.size(), kNodes);
    for (uint64_t slot = 0; slot < kNodes; ++slot) {
      EXPECT_EQ(found->holders[slot],
                (SlabHolder{NodeSlot{slot}, {Rank{slot}}, (lost >> slot & 1) != 0}));
    }
  }
}

TEST(RestorableTest, MemoryThatCameBackEmptyCountsAsLost) {
  Nodes nodes = Whole();
  nodes[NodeSlot{1}] = NodeHolding{};
  nodes[NodeSlot{2}] = NodeHolding{};
  const auto found = Find(nodes);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->holders[1].lost);
  EXPECT_TRUE(found->holders[2].lost);
  EXPECT_FALSE(found->holders[3].lost);
}

TEST(RestorableTest, AnIncompleteGuardCountsAsALossOfItsParities) {
  for (uint64_t unguarded = 0; unguarded < kNodes; ++unguarded) {
    for (uint64_t first = 0; first < kNodes; ++first) {
      for (uint64_t second = 0; second < kNodes; ++second) {
        if (first == unguarded || second == unguarded) continue;
        Nodes nodes = Whole();
        nodes[NodeSlot{unguarded}].guarded = false;
        nodes.erase(NodeSlot{first});
        nodes.erase(NodeSlot{second});
        // One more loss is stood; of two more only those that leave k chunks in every stripe.
        const bool is_one = first == second;
        if (is_one) {
          EXPECT_TRUE(Find(nodes)) << unguarded << " " << first;
        } else {
          EXPECT_FALSE(Find(nodes)) << unguarded << " " << first << " " << second;
        }
      }
    }
  }
}

TEST(RestorableTest, WithoutParitiesNothingIsDecoded) {
  Nodes nodes = Whole();
  for (auto& [slot, holding] : nodes) holding.guarded = false;
  EXPECT_TRUE(Find(nodes));
  nodes.erase(NodeSlot{2});
  std::string missing;
  EXPECT_FALSE(Find(nodes, &missing));
  EXPECT_NE(missing.find("lacks rank 2"), std::string::npos) << missing;
  EXPECT_NE(missing.find("2 chunks of a stripe needed"), std::string::npos) << missing;
}

TEST(RestorableTest, ASlabWhoseManifestsNobodyHasIsMissing) {
  Nodes nodes = Whole();
  nodes.erase(NodeSlot{0});
  for (auto& [slot, holding] : nodes) {
    std::erase_if(holding.replicas, [](const auto& replica) { return replica.of == NodeSlot{0}; });
  }
  std::string missing;
  EXPECT_FALSE(Find(nodes, &missing));
  EXPECT_EQ(missing, "1:7 lacks rank 0");
}

TEST(RestorableTest, OneOfTwoRanksOfANodeIsDecodedAlone) {
  Nodes nodes = Whole();
  for (auto& [slot, holding] : nodes) {
    for (auto& replica : holding.replicas) {
      if (replica.of == NodeSlot{3}) replica.ranks = {Rank{3}, Rank{4}};
      replica.world = 5;
    }
    holding.world = 5;
  }
  // The slot of rank 4 was quarantined.
  const auto found = Find(nodes);
  ASSERT_TRUE(found);
  ASSERT_EQ(found->holders.size(), 5U);
  EXPECT_EQ(found->holders[3], (SlabHolder{NodeSlot{3}, {Rank{3}}, false}));
  EXPECT_EQ(found->holders[4], (SlabHolder{NodeSlot{3}, {Rank{4}}, true}));
}

TEST(RestorableTest, NothingHeldIsNothingRestorable) {
  std::string missing;
  EXPECT_FALSE(Find({}, &missing));
  EXPECT_FALSE(missing.empty());
}

TEST(RestorableTest, OnlyLiveVersionsAreCandidatesTheNewestFirst) {
  Holdings holdings;
  const Version dead{Timeline{1}, Step{9}};
  const Version newer{Timeline{2}, Step{8}};
  holdings[kVersion] = holdings[dead] = holdings[newer] = Whole();
  const TimelineChain chain({{Timeline{1}, Version{}}, {Timeline{2}, kVersion}});
  const std::vector<CodedGroup> groups{GroupOfFour()};
  const auto versions = RestorableVersions(holdings, groups, chain);
  ASSERT_EQ(versions.size(), 2U);
  EXPECT_EQ(versions[0].version, newer);
  EXPECT_EQ(versions[1].version, kVersion);
}

TEST(RestorableTest, LossesToleratedCountsDown) {
  Nodes nodes = Whole();
  EXPECT_EQ(LossesTolerated(GroupOfFour(), nodes), 2U);
  nodes[NodeSlot{0}].guarded = false;
  EXPECT_EQ(LossesTolerated(GroupOfFour(), nodes), 1U);
  nodes = Whole();
  nodes.erase(NodeSlot{1});
  EXPECT_EQ(LossesTolerated(GroupOfFour(), nodes), 1U);
  nodes.erase(NodeSlot{2});
  EXPECT_EQ(LossesTolerated(GroupOfFour(), nodes), 0U);
}

}  // namespace
}  // namespace unreft::recovery
