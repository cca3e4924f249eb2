// What is restored, and from where: tables and holdings that are drawn from the input.
//
// The first byte chooses: a restore plan; which versions are whole; what can be restored of groups.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "base/check.h"
#include "layout/tensor_table.h"
#include "recovery/restorable.h"
#include "recovery/restore_planner.h"
#include "recovery/version_choice.h"
#include "tests/fuzz/draw.h"
#include "tests/fuzz/fuzz.h"

namespace unreft::fuzz {
namespace {

constexpr uint64_t kBytesMax = 1 << 16;  // of a target, so that each byte can be looked at

TensorSpec DrawSpec(Draw& draw) {
  TensorSpec spec;
  spec.name = std::string(1, static_cast<char>('a' + draw.Below(3)));
  spec.dtype = static_cast<Dtype>(draw.OneIn(8) ? draw.Below(20) : 9);
  const uint64_t dims = draw.Below(4);
  for (uint64_t d = 0; d < dims; ++d) {
    const uint64_t length = draw.OneIn(16) ? draw.Number() : 1 + draw.Below(8);
    spec.global_shape.push_back(length);
    const uint64_t offset = draw.OneIn(2) ? 0 : draw.Below(8);
    spec.offset.push_back(offset);
    spec.extent.push_back(draw.OneIn(2) && length > offset ? length - offset : draw.Below(8));
  }
  return spec;
}

// Parts as a checked manifest has them.
void UsePlanner(Draw& draw) {
  std::deque<TensorSpec> specs;
  std::vector<recovery::StoredPart> parts;
  for (uint64_t count = draw.Below(12); count > 0; --count) {
    TensorSpec spec = DrawSpec(draw);
    if (!layout::CheckTensorSpec(spec).ok() || ShardBytes(spec) > kBytesMax) continue;
    const uint64_t bytes = ShardBytes(spec);
    const uint64_t begin = draw.OneIn(2) ? 0 : std::min(bytes - 1, draw.Number());
    const uint64_t length = draw.OneIn(2) ? bytes - begin : std::min(bytes - begin, draw.Number());
    specs.push_back(std::move(spec));
    parts.push_back(
        {&specs.back(), static_cast<uint32_t>(draw.Below(4)), begin, length, 64 * draw.Below(64)});
  }
  std::vector<TensorSpec> targets;
  for (uint64_t count = draw.Below(6); count > 0; --count) {
    targets.push_back(DrawSpec(draw));
    if (layout::CheckTensorSpec(targets.back()).ok() && ShardBytes(targets.back()) > kBytesMax) {
      return;
    }
  }
  const uint32_t preferred[] = {static_cast<uint32_t>(draw.Below(4))};
  recovery::StoredTables tables;
  for (const recovery::StoredPart& part : parts) tables.Add(part);
  const auto plan = recovery::PlanRestore(tables, targets, preferred);
  if (!plan.ok()) return;
  // Every byte of every target exactly once, each from within a part.
  std::vector<std::vector<uint8_t>> written;
  for (const TensorSpec& target : targets) written.emplace_back(ShardBytes(target));
  for (const PlanPiece& piece : *plan) {
    auto& target = written.at(piece.target);
    UNREFT_CHECK(PieceFits(piece, UINT64_MAX, target.size()));
    ForEachRowIn(piece, 0, UINT64_MAX, [&](uint64_t from, uint64_t to, uint64_t bytes) {
      for (uint64_t i = 0; i < bytes; ++i) ++target[to + i];
      UNREFT_CHECK(std::ranges::any_of(parts, [&](const recovery::StoredPart& part) {
        return part.slab == piece.source && part.slab_offset <= from &&
               from < part.slab_offset + part.bytes;
      }));
    });
  }
  for (const auto& target : written) {
    UNREFT_CHECK(std::ranges::all_of(target, [](uint8_t times) { return times == 1; }));
  }
}

Version DrawVersion(Draw& draw) {
  return {Timeline{draw.OneIn(8) ? draw.Number() : draw.Below(4)}, Step{draw.Number()}};
}

recovery::TimelineChain DrawChain(Draw& draw) {
  std::vector<recovery::TimelineOrigin> origins;  // ascending, each of an older parent
  for (uint64_t timeline = 1, count = draw.Below(5); count > 0; --count) {
    timeline += draw.Below(2);
    const Version parent{Timeline{draw.Below(timeline)}, Step{draw.Number()}};
    origins.push_back({Timeline{timeline++}, parent});
  }
  return recovery::TimelineChain(std::move(origins));
}

void UseVersions(Draw& draw) {
  recovery::TimelineChain chain = DrawChain(draw);
  std::vector<recovery::SealedSlab> slabs;
  while (!draw.empty()) {
    slabs.push_back({DrawVersion(draw), Rank{draw.Number()}, draw.Number()});
  }
  const auto whole = recovery::WholeVersions(slabs, chain);
  UNREFT_CHECK(std::ranges::is_sorted(whole, std::greater<>()));
  for (const Version version : whole) UNREFT_CHECK(chain.IsLive(version));
  (void)recovery::DescribeMissing(slabs, chain);
  if (whole.empty()) return;
  chain.Open(NextTimeline(chain.newest(), 7), whole.front());
  UNREFT_CHECK(chain.IsLive(whole.front()));
}

ec::Group DrawGroup(Draw& draw, uint64_t first) {
  ec::Group group;
  for (uint64_t count = 1 + draw.Below(5); count > 0; --count) {
    group.slots.push_back(NodeSlot{first++});
  }
  group.k = 1 + static_cast<uint32_t>(draw.Below(group.slots.size()));
  return group;
}

std::vector<Rank> DrawRanks(Draw& draw) {
  std::vector<Rank> ranks;
  for (uint64_t count = draw.Below(4); count > 0; --count) ranks.push_back(Rank{draw.Number()});
  return ranks;
}

recovery::NodeHolding DrawHolding(Draw& draw) {
  recovery::NodeHolding holding;
  holding.sealed = DrawRanks(draw);
  holding.world = draw.Number();
  holding.guarded = !draw.OneIn(3);
  for (uint64_t count = draw.Below(3); count > 0; --count) {
    holding.descriptions.push_back({NodeSlot{draw.Below(10)}, DrawRanks(draw), draw.Number()});
  }
  holding.coding = draw.Below(3);
  for (uint64_t count = draw.Below(6); count > 0; --count) {
    holding.encoded.push_back(
        {NodeSlot{draw.Below(10)}, std::string(draw.Below(2), 'a'), {Rank{draw.Below(10)}}});
  }
  holding.data_chunks = static_cast<uint32_t>(draw.OneIn(8) ? draw.Number() : draw.Below(4));
  return holding;
}

void CheckRestorable(const recovery::Restorable& found) {
  std::vector<Rank> ranks;
  for (const recovery::SlabHolder& holder : found.holders) {
    ranks.insert(ranks.end(), holder.ranks.begin(), holder.ranks.end());
  }
  std::ranges::sort(ranks);
  UNREFT_CHECK(ranks.size() == found.world);
  for (uint64_t rank = 0; rank < ranks.size(); ++rank) UNREFT_CHECK(ranks[rank].value == rank);
  // As a record of a commit must have them (meta::CheckRecord).
  std::set<NodeSlot> slots;
  for (const ec::Group& group : found.groups) {
    UNREFT_CHECK(group.k >= 1 && group.k <= group.slots.size());
    UNREFT_CHECK(std::ranges::is_sorted(group.slots));
    for (const NodeSlot slot : group.slots) UNREFT_CHECK(slots.insert(slot).second);
  }
}

void UseHoldings(Draw& draw) {
  std::vector<ec::Group> groups;
  for (uint64_t count = draw.Below(3); count > 0; --count) {
    groups.push_back(DrawGroup(draw, groups.empty() ? 0 : groups.back().slots.back().value + 1));
  }
  const recovery::TimelineChain chain = DrawChain(draw);
  recovery::Memories memories;
  for (uint64_t slot = 0; slot < 10; ++slot) {
    if (!draw.OneIn(4)) memories[NodeSlot{slot}] = std::string(draw.Below(2), 'a');
  }
  recovery::Holdings holdings;
  while (!draw.empty()) {
    holdings[DrawVersion(draw)][NodeSlot{draw.Below(10)}] = DrawHolding(draw);
  }
  for (const auto& [version, nodes] : holdings) {
    std::string why;
    const auto found = recovery::FindHolders(version, nodes, groups, &why);
    UNREFT_CHECK(found.has_value() || !why.empty());
    if (found) CheckRestorable(*found);
    const auto is_safe = recovery::FindProtected(version, nodes, groups, memories, &why);
    if (is_safe) CheckRestorable(*is_safe);
    for (const ec::Group& group : groups) {
      UNREFT_CHECK(recovery::LossesTolerated(group, nodes) <= group.slots.size());
    }
  }
  for (const auto& found : recovery::RestorableVersions(holdings, groups, chain)) {
    CheckRestorable(found);
  }
  (void)recovery::DescribeUnrestorable(holdings, groups, chain);
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (char how = 0; how < 3; ++how) {
    for (const std::string& drawn : DrawnSeeds(20, 300)) seeds.push_back(how + drawn);
  }
  return seeds;
}

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace fuzz = unreft::fuzz;
  // Each version that is drawn is looked at by every function; longer inputs find nothing else.
  fuzz::Draw draw(fuzz::Bytes(data, std::min<size_t>(size, 2000)));
  switch (draw.Below(3)) {
    case 0:
      fuzz::UsePlanner(draw);
      break;
    case 1:
      fuzz::UseVersions(draw);
      break;
    default:
      fuzz::UseHoldings(draw);
  }
  return 0;
}
