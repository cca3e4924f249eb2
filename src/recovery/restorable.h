// Which version of several nodes can be restored, and from where. Pure.
//
// A node's slab of a version is there, or can be decoded from its group: of each stripe that it has
// a chunk of, k chunks of others are left, and somebody holds a copy of its manifests.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "ec/group.h"
#include "recovery/timeline.h"

namespace unreft::recovery {

// What of one member of a group went into its guards: of which memory (incarnation), and which
// ranks' slabs. Of older releases the memory is empty, or no rank is named.
struct EncodedSlabs {
  NodeSlot slot;
  std::string memory;
  std::vector<Rank> ranks;
  friend bool operator==(const EncodedSlabs&, const EncodedSlabs&) = default;
};

// What one node holds of one version.
struct NodeHolding {
  std::vector<Rank> sealed;  // ranks whose slabs are sealed on it
  uint64_t world = 0;        // that these ranks belong to; 0 when there are none
  bool guarded = false;      // its m parity chunks are complete
  struct Description {
    NodeSlot of;
    std::vector<Rank> ranks;
    uint64_t world = 0;
  };
  std::vector<Description> descriptions;  // of other slots' slabs
  // Of the guard: a digest of which slabs went into it, these by the group's members in order, and
  // the group's k. Of older releases empty, or 0.
  uint64_t coding = 0;
  std::vector<EncodedSlabs> encoded;
  uint32_t data_chunks = 0;
};

// By version, then node slot.
using Holdings = std::map<Version, std::map<NodeSlot, NodeHolding>>;

struct SlabHolder {
  NodeSlot slot;
  std::vector<Rank> ranks;  // ascending
  bool lost = false;        // to be decoded
  friend bool operator==(const SlabHolder&, const SlabHolder&) = default;
};

struct Restorable {
  Version version;
  uint64_t world = 0;
  std::vector<SlabHolder> holders;  // of all ranks, each once, by slot
  std::vector<ec::Group> groups;    // that it is encoded in
};

// The groups that a version is encoded in, by their first slot: those that its complete guards name
// (where these contradict each other, what most say, or else what is recorded), and of the recorded
// ones those of which no slot is in any of these.
std::vector<ec::Group> EncodedGroups(const std::map<NodeSlot, NodeHolding>& nodes,
                                     std::span<const ec::Group> recorded);

// From where the version can be restored, decoded in its EncodedGroups. Guards count together only
// if the same slabs went into them: of those of a group that differ, the ones that most members
// have; none when it cannot. `missing`, if given, is then told why: "rank 3 of node 1 (2 chunks of
// a stripe needed, 1 left)".
std::optional<Restorable> FindHolders(Version version, const std::map<NodeSlot, NodeHolding>& nodes,
                                      std::span<const ec::Group> recorded, std::string* missing);

// Of the live versions those that can be restored, newest first.
std::vector<Restorable> RestorableVersions(const Holdings& holdings,
                                           std::span<const ec::Group> recorded,
                                           const TimelineChain& chain);

// For an error: of every live version why it cannot be restored, newest first.
std::string DescribeUnrestorable(const Holdings& holdings, std::span<const ec::Group> recorded,
                                 const TimelineChain& chain);

// The memories of the members that are not lost: node slot to incarnation.
using Memories = std::map<NodeSlot, std::string>;

// From where the version can be restored, if it is also protected in these groups, as far as the
// memories allow that are left of those it was encoded in (docs/design_notes.md, "What a commit
// proves"): each of these holds its parities, and copies of the manifests of the members before it
// as they are sealed. None otherwise; `lacking`, if given, is then told what is missing.
std::optional<Restorable> FindProtected(Version version,
                                        const std::map<NodeSlot, NodeHolding>& nodes,
                                        std::span<const ec::Group> groups, const Memories& memories,
                                        std::string* lacking);

// Of how many more members each group stands the loss, by what it holds of the version now.
uint32_t LossesTolerated(const ec::Group& group, const std::map<NodeSlot, NodeHolding>& nodes);

// What FindProtected asks of each group: the members whose memories are left hold their parities,
// and copies of the manifests of the members before them. A group that holds nothing lacks nothing.
// `nodes` are the group's members, or more.
bool IsProtected(const ec::Group& group, const std::map<NodeSlot, NodeHolding>& nodes,
                 const Memories& memories);

}  // namespace unreft::recovery
