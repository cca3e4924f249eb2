// Which losses a version survives, in a group of RS(2,2) whose nodes have rank i each.

#include "recovery/restorable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>

namespace unreft::recovery {
namespace {

constexpr Version kVersion{Timeline{1}, Step{7}};
constexpr uint64_t kNodes = 4;
constexpr uint64_t kParities = 2;

using Nodes = std::map<NodeSlot, NodeHolding>;

ec::Group GroupOfFour() {
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
      holding.descriptions.push_back({NodeSlot{of}, {Rank{of}}, kNodes});
    }
  }
  return nodes;
}

std::optional<Restorable> Find(const Nodes& nodes, std::string* missing = nullptr) {
  const std::vector<ec::Group> groups{GroupOfFour()};
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

// Of a world of four it took ranks 0 to 2 and 7 for all of them.
TEST(RestorableTest, ARankThatIsNotOfTheWorldStandsForNoOther) {
  Nodes nodes = Whole();
  nodes[NodeSlot{3}].sealed = {Rank{7}};
  nodes[NodeSlot{0}].descriptions.clear();
  nodes[NodeSlot{1}].descriptions.clear();
  std::string missing;
  EXPECT_FALSE(Find(nodes, &missing));
  EXPECT_EQ(missing, "1:7 lacks rank 3");
}

TEST(RestorableTest, OfWhatNobodyHasNoRankIsNamed) {
  std::string missing;
  EXPECT_FALSE(FindHolders(kVersion, {}, {}, &missing));
  EXPECT_EQ(missing, "nobody has anything of 1:7");
}

TEST(RestorableTest, ALostSlabThatACopyNamesTwiceIsHeldOnce) {
  Nodes nodes = Whole();
  nodes.erase(NodeSlot{3});
  nodes[NodeSlot{0}].descriptions.at(0).ranks = {Rank{3}, Rank{3}};
  const auto found = Find(nodes);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->holders.at(3), (SlabHolder{NodeSlot{3}, {Rank{3}}, true}));
}

// The commit that was written of it was taken by nobody.
TEST(RestorableTest, AGuardNamesNoGroupWhoseMembersAreNotAscending) {
  Nodes nodes = Whole();
  for (auto& [slot, holding] : nodes) {
    holding.data_chunks = 2;
    for (const uint64_t member : {0, 1, 1, 2}) {
      holding.encoded.push_back({NodeSlot{member}, "a", {}});
    }
  }
  const std::vector<ec::Group> recorded{GroupOfFour()};
  EXPECT_EQ(EncodedGroups(nodes, recorded), recorded);
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
    std::erase_if(holding.descriptions,
                  [](const auto& description) { return description.of == NodeSlot{0}; });
  }
  std::string missing;
  EXPECT_FALSE(Find(nodes, &missing));
  EXPECT_EQ(missing, "1:7 lacks rank 0");
}

TEST(RestorableTest, OneOfTwoRanksOfANodeIsDecodedAlone) {
  Nodes nodes = Whole();
  for (auto& [slot, holding] : nodes) {
    for (auto& description : holding.descriptions) {
      if (description.of == NodeSlot{3}) description.ranks = {Rank{3}, Rank{4}};
      description.world = 5;
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

// Encoded of the memories "m0" to "m3".
Nodes Encoded() {
  Nodes nodes = Whole();
  for (auto& [slot, holding] : nodes) {
    holding.coding = 5;
    for (uint64_t of = 0; of < kNodes; ++of) {
      holding.encoded.push_back({NodeSlot{of}, "m" + std::to_string(of), {Rank{of}}});
    }
  }
  return nodes;
}

Memories AllMemories() {
  return {{NodeSlot{0}, "m0"}, {NodeSlot{1}, "m1"}, {NodeSlot{2}, "m2"}, {NodeSlot{3}, "m3"}};
}

std::optional<Restorable> Protected(const Nodes& nodes, const Memories& memories,
                                    std::string* lacking = nullptr) {
  const std::vector<ec::Group> groups{GroupOfFour()};
  return FindProtected(kVersion, nodes, groups, memories, lacking);
}

bool AnyLost(const Restorable& found) {
  return std::any_of(found.holders.begin(), found.holders.end(),
                     [](const SlabHolder& holder) { return holder.lost; });
}

TEST(ProtectedTest, EveryGuardAndEveryCopyIsNeeded) {
  ASSERT_TRUE(Protected(Encoded(), AllMemories()));
  for (uint64_t slot = 0; slot < kNodes; ++slot) {
    Nodes unguarded = Encoded();
    unguarded[NodeSlot{slot}].guarded = false;
    std::string lacking;
    EXPECT_FALSE(Protected(unguarded, AllMemories(), &lacking));
    EXPECT_EQ(lacking, "the guard of node " + std::to_string(slot) + " is not complete");
    Nodes uncopied = Encoded();
    uncopied[NodeSlot{slot}].descriptions.pop_back();
    EXPECT_FALSE(Protected(uncopied, AllMemories(), &lacking));
    EXPECT_NE(lacking.find("has no copies"), std::string::npos) << lacking;
  }
}

TEST(ProtectedTest, ASlabThatWasLeftOutIsNotProtected) {
  Nodes nodes = Encoded();
  nodes[NodeSlot{1}].sealed.push_back(Rank{4});
  for (auto& [slot, holding] : nodes) holding.world = 5;
  EXPECT_TRUE(Find(nodes));
  EXPECT_FALSE(Protected(nodes, AllMemories()));
}

TEST(ProtectedTest, OfALostMemoryNothingMoreIsAsked) {
  Nodes nodes = Encoded();
  nodes.erase(NodeSlot{2});
  Memories memories = AllMemories();
  EXPECT_FALSE(Protected(nodes, memories)) << "its node is there, and has nothing";
  memories.erase(NodeSlot{2});
  auto found = Protected(nodes, memories);
  ASSERT_TRUE(found);
  EXPECT_TRUE(AnyLost(*found));
  // Another memory in its slot.
  memories[NodeSlot{2}] = "new";
  ASSERT_TRUE(Protected(nodes, memories));
  // What the others are to hold is still needed.
  nodes[NodeSlot{3}].guarded = false;
  EXPECT_FALSE(Protected(nodes, memories));
}

// A spare had the slot for a while, and the version was encoded with its empty slab. The memory
// that came back had slabs of it, which were committed with guards that knew nothing of them.
TEST(ProtectedTest, ASlabOfAnotherMemoryThanWasEncodedIsNotProtected) {
  Nodes nodes = Encoded();
  ASSERT_TRUE(Protected(nodes, AllMemories()));
  Memories memories = AllMemories();
  memories[NodeSlot{1}] = "came back";
  std::string lacking;
  EXPECT_FALSE(Protected(nodes, memories, &lacking));
  EXPECT_EQ(lacking, "node 1 has 1 slabs in no guard: they lie in another memory than was encoded");
  // It has none of the version: its slab is decoded, as it would be if it was lost.
  nodes[NodeSlot{1}] = {};
  EXPECT_TRUE(Protected(nodes, memories));
}

TEST(ProtectedTest, ALostNodeWithoutRanksIsNotMissed) {
  Nodes nodes = Encoded();
  for (auto& [slot, holding] : nodes) {
    holding.world = 3;
    for (auto& description : holding.descriptions) {
      description.world = 3;
      if (description.of == NodeSlot{3}) description = {NodeSlot{3}, {}, 0};
    }
  }
  nodes.erase(NodeSlot{3});
  Memories memories = AllMemories();
  memories.erase(NodeSlot{3});
  const auto found = Protected(nodes, memories);
  ASSERT_TRUE(found);
  EXPECT_FALSE(AnyLost(*found));
}

TEST(ProtectedTest, MoreLossesThanParitiesAreNotStood) {
  Nodes nodes = Encoded();
  Memories memories = AllMemories();
  for (const uint64_t slot : {0, 1, 2}) {
    nodes.erase(NodeSlot{slot});
    memories.erase(NodeSlot{slot});
    EXPECT_EQ(Protected(nodes, memories).has_value(), slot < 2);
  }
}

TEST(ProtectedTest, AGroupWithoutAnySlabProtectsNothing) {
  const std::vector<ec::Group> groups{GroupOfFour(),
                                      {{NodeSlot{4}, NodeSlot{5}, NodeSlot{6}, NodeSlot{7}}, 2}};
  Memories memories = AllMemories();
  for (uint64_t slot = 4; slot < 8; ++slot) memories[NodeSlot{slot}] = "m";
  EXPECT_TRUE(FindProtected(kVersion, Encoded(), groups, memories, nullptr));
}

TEST(ProtectedTest, SlabsOfANodeInNoGroupAreNotProtected) {
  Nodes nodes = Encoded();
  nodes[NodeSlot{9}].guarded = true;  // of an earlier formation
  EXPECT_TRUE(Protected(nodes, AllMemories()));
  nodes[NodeSlot{9}].sealed = {Rank{0}};
  std::string lacking;
  EXPECT_FALSE(Protected(nodes, AllMemories(), &lacking));
  EXPECT_EQ(lacking, "node 9 has slabs, and is in no group");
}

TEST(RestorableTest, GuardsOfOtherSlabsDoNotCountTogether) {
  // Node 1 came back empty and encoded the others with an empty slab of its own.
  Nodes nodes = Encoded();
  nodes[NodeSlot{1}].coding = 6;
  nodes[NodeSlot{1}].sealed.clear();
  for (auto& description : nodes[NodeSlot{1}].descriptions) description.ranks.clear();
  const auto found = Find(nodes);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->holders[1], (SlabHolder{NodeSlot{1}, {Rank{1}}, true}));
  nodes.erase(NodeSlot{0});
  EXPECT_TRUE(Find(nodes));
  nodes.erase(NodeSlot{2});
  EXPECT_FALSE(Find(nodes)) << "its guard is none of this coding";
}

TEST(RestorableTest, SlabsThatLieOtherwiseThanWhenTheyWereEncodedAreNoSources) {
  // All but node 2 lost their memories, and nodes 1 and 3 got slabs out of a durable copy. Node 2
  // has copies of the manifests of nodes 0 and 1 alone, and knows which ranks node 3 had.
  Nodes nodes = Encoded();
  nodes.erase(NodeSlot{0});
  for (const uint64_t slot : {1, 3}) {
    NodeHolding holding;
    holding.sealed = {Rank{slot}};
    holding.world = kNodes;
    nodes[NodeSlot{slot}] = holding;
  }
  EXPECT_TRUE(Find(nodes)) << "the same slabs, wherever they are from";
  nodes[NodeSlot{2}].encoded[3].ranks = {Rank{3}, Rank{2}};
  nodes[NodeSlot{2}].encoded[2].ranks = {};
  std::string missing;
  EXPECT_FALSE(Find(nodes, &missing));
  EXPECT_THAT(missing, ::testing::HasSubstr("2 chunks of a stripe needed, 1 left"));
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
  const std::vector<ec::Group> groups{GroupOfFour()};
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

// --- what stored versions are encoded in ---

ec::Group GroupOf(std::initializer_list<uint64_t> slots) {
  ec::Group group;
  for (const uint64_t slot : slots) group.slots.push_back(NodeSlot{slot});
  group.k = static_cast<uint32_t>(group.slots.size() - kParities);
  return group;
}

// Adds what the members of the group hold: rank i of node i, of eight.
void Protect(Nodes& nodes, const ec::Group& group, uint64_t coding) {
  const size_t n = group.slots.size();
  for (size_t member = 0; member < n; ++member) {
    NodeHolding& holding = nodes[group.slots[member]];
    holding.sealed = {Rank{group.slots[member].value}};
    holding.world = 8;
    holding.guarded = true;
    holding.coding = coding;
    holding.data_chunks = group.k;
    for (const NodeSlot slot : group.slots) holding.encoded.push_back({slot, "m", {}});
    for (size_t back = 1; back <= kParities; ++back) {
      const NodeSlot of = group.slots[(member + n - back) % n];
      holding.descriptions.push_back({of, {Rank{of.value}}, 8});
    }
  }
}

const ec::Group kEven = GroupOf({0, 2, 4, 6});
const ec::Group kOdd = GroupOf({1, 3, 5, 7});
// As they would be formed of other failure domains.
const std::vector<ec::Group> kOthers = {GroupOf({0, 3, 5, 7}), GroupOf({1, 2, 4, 6})};

Nodes EvenAndOdd() {
  Nodes nodes;
  Protect(nodes, kEven, 9);  // the lower coding is the odd ones'
  Protect(nodes, kOdd, 5);
  return nodes;
}

TEST(EncodedGroupsTest, AreThoseThatGuardsNameNotThoseThatAreRecorded) {
  EXPECT_EQ(EncodedGroups(EvenAndOdd(), kOthers), (std::vector{kEven, kOdd}));
  for (uint64_t slot = 0; slot < 8; ++slot) {
    Nodes nodes = EvenAndOdd();
    nodes.erase(NodeSlot{slot});
    const auto found = FindHolders(kVersion, nodes, kOthers, nullptr);
    ASSERT_TRUE(found) << "without node " << slot;
    EXPECT_EQ(found->groups, (std::vector{kEven, kOdd}));
    EXPECT_TRUE(found->holders[slot].lost);
  }
}

TEST(EncodedGroupsTest, EveryLossThatTheirGroupsStandIsDecodedAndNoOther) {
  for (uint32_t lost = 0; lost < 1U << 8; ++lost) {
    Nodes nodes = EvenAndOdd();
    int losses[2] = {};
    for (uint64_t slot = 0; slot < 8; ++slot) {
      if ((lost >> slot & 1) == 0) continue;
      nodes.erase(NodeSlot{slot});
      ++losses[slot % 2];
    }
    const bool is_stood = losses[0] <= 2 && losses[1] <= 2;
    EXPECT_EQ(FindHolders(kVersion, nodes, kOthers, nullptr).has_value(), is_stood) << lost;
  }
}

TEST(EncodedGroupsTest, WhatNoGuardNamesIsAsRecorded) {
  Nodes nodes;
  EXPECT_EQ(EncodedGroups(nodes, kOthers), kOthers);
  Protect(nodes, kEven, 9);
  EXPECT_EQ(EncodedGroups(nodes, {}), std::vector{kEven});
  EXPECT_EQ(EncodedGroups(nodes, std::vector{kEven, kOdd}), (std::vector{kEven, kOdd}));
  EXPECT_EQ(EncodedGroups(nodes, kOthers), std::vector{kEven}) << "no slot is in two groups";
  for (auto& [slot, holding] : nodes) holding.data_chunks = 0;
  EXPECT_EQ(EncodedGroups(nodes, kOthers), kOthers) << "of a release that did not say";
  for (auto& [slot, holding] : nodes) holding.data_chunks = 5;
  EXPECT_EQ(EncodedGroups(nodes, kOthers), kOthers) << "no such group";
}

// A record with it would be one that nobody takes.
TEST(EncodedGroupsTest, AGroupThatNoCodeIsOfIsNamedByNobody) {
  ec::Group group;
  for (uint64_t slot = 0; slot < 10; ++slot) group.slots.push_back(NodeSlot{slot});
  Nodes nodes;
  group.k = 2;
  Protect(nodes, group, 9);
  EXPECT_EQ(EncodedGroups(nodes, {}), std::vector{group});
  group.k = 1;
  nodes.clear();
  Protect(nodes, group, 9);
  EXPECT_EQ(EncodedGroups(nodes, {}), std::vector<ec::Group>{}) << "9 parities, 8 can be";
}

TEST(EncodedGroupsTest, OfThoseThatContradictEachOtherTheOneThatMoreGuardsName) {
  Nodes nodes = EvenAndOdd();
  Nodes others;
  for (const ec::Group& group : kOthers) Protect(others, group, 7);
  nodes[NodeSlot{0}] = others[NodeSlot{0}];
  EXPECT_EQ(EncodedGroups(nodes, kOthers), (std::vector{kEven, kOdd}));
  nodes[NodeSlot{2}] = others[NodeSlot{2}];
  nodes[NodeSlot{4}] = others[NodeSlot{4}];
  EXPECT_EQ(EncodedGroups(nodes, kOthers), (std::vector{kEven, kOdd}))
      << "the odd ones are named by four, and two of the others lie across";
  // Two of each: what is recorded.
  nodes = {};
  Protect(nodes, kEven, 9);
  for (const uint64_t slot : {4, 6}) nodes[NodeSlot{slot}] = others[NodeSlot{slot}];
  EXPECT_EQ(EncodedGroups(nodes, kOthers)[1], kOthers[1]);
  EXPECT_EQ(EncodedGroups(nodes, std::vector{kEven}), std::vector{kEven});
}

TEST(EncodedGroupsTest, GuardsOfAnotherGroupProtectNothing) {
  const Memories memories = {{NodeSlot{0}, "m"}, {NodeSlot{1}, "m"}, {NodeSlot{2}, "m"},
                             {NodeSlot{3}, "m"}, {NodeSlot{4}, "m"}, {NodeSlot{5}, "m"},
                             {NodeSlot{6}, "m"}, {NodeSlot{7}, "m"}};
  const Nodes nodes = EvenAndOdd();
  EXPECT_TRUE(FindProtected(kVersion, nodes, std::vector{kEven, kOdd}, memories, nullptr));
  EXPECT_FALSE(FindProtected(kVersion, nodes, kOthers, memories, nullptr));
  EXPECT_EQ(LossesTolerated(kEven, nodes), 2U);
  EXPECT_EQ(LossesTolerated(kOthers[0], nodes), 0U);
}

}  // namespace
}  // namespace unreft::recovery
