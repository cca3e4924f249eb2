#include "smp/protect/any_k.h"

#include <algorithm>
#include <optional>

namespace unreft::smp {
namespace {

SourceHealth::Kind KindOf(const CodedVersion& coded, uint32_t chunk) {
  return chunk < coded.group.shape.k ? SourceHealth::Kind::kData : SourceHealth::Kind::kParity;
}

// The first are asked first.
enum Worth { kFree, kOwn, kGood, kDoubtful, kBad, kLost, kWorths };

// Those first that cost nothing, then what this node has, then data, then parities. If these are
// too few, parities of nodes
// that have lost a slab: it may have rotted, and its node's parities have not. Slabs that are lost
// come last: their nodes may wait for this one, and answer when they are rebuilt.
Worth WorthOf(const SourceHealth& health, const CodedVersion& coded, uint32_t stripe,
              uint64_t position, uint32_t chunk) {
  const NodeSlot holder = coded.HolderOf(stripe, chunk);
  Worth worth = health.IsOwn(holder) ? kOwn : kGood;
  if (chunk < coded.group.shape.k) {
    const std::optional<RankBlock> block = coded.DataAt(stripe, chunk, position);
    if (!block) return kFree;  // zeros that are nowhere
    if (health.IsLost(block->rank)) worth = kLost;
  } else if (health.HasLost(holder)) {
    worth = kDoubtful;
  }
  return health.IsBad(holder, KindOf(coded, chunk)) ? std::max(worth, kBad) : worth;
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> AnyK::Choose(const CodedVersion& coded, uint32_t stripe,
                                                   uint64_t position,
                                                   const std::vector<uint32_t>& landed) const {
  std::vector<uint32_t> chunks[kWorths];
  for (uint32_t chunk = 0; chunk < coded.group.shape.n(); ++chunk) {
    if (chunk == target_) continue;
    const bool is_there = std::ranges::find(landed, chunk) != landed.end();
    chunks[is_there ? kFree : WorthOf(health_, coded, stripe, position, chunk)].push_back(chunk);
  }
  std::vector<uint32_t> available;
  for (const auto& some : chunks) available.insert(available.end(), some.begin(), some.end());
  return ec::ChooseSources(coded.group.shape, available);
}

void AnyK::OnFailure(const CodedVersion& coded, uint32_t stripe, uint32_t chunk) {
  health_.Avoid(coded.HolderOf(stripe, chunk), KindOf(coded, chunk));
}

}  // namespace unreft::smp
