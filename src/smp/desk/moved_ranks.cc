#include "smp/desk/moved_ranks.h"

#include <algorithm>

namespace unreft::smp {

bool MovedRanks::IsMoved(Rank rank, Version committed) {
  if (state_.TrainsElsewhere(rank)) return true;
  if (state_.sessions.contains(rank)) return false;
  return std::ranges::none_of(state_.slots->OfRank(rank), [&](const Slot* slot) {
    return slot->phase == SlotPhase::kSealed && slot->version >= committed;
  });
}

void MovedRanks::OnCommitted(Version version) {
  if (version == newest_) return;
  const bool goes_on = newest_.timeline == version.timeline;
  const Version before =
      goes_on ? newest_ : state_.record->chain().ParentOf(version.timeline).value_or(Version{});
  newest_ = version;
  state_.commit_before = before;
  // Trainers may be about to come back to this process; a decision may be about to need anything.
  if (!state_.lives_before.empty() || state_.timeline_closed) return;
  for (const Rank rank : state_.slots->Ranks()) {
    if (!IsMoved(rank, version)) continue;
    for (Slot* slot : state_.slots->OfRank(rank)) {
      const bool is_old = slot->phase == SlotPhase::kSealed && slot->version < before;
      if (is_old && state_.MayRetire(slot->version)) state_.slots->Free(*slot);
    }
    state_.slots->Forget(rank);
  }
}

void MovedRanks::OnRestored(uint64_t world) {
  const bool are_others = world != state_.record->committed_world();
  for (const Rank rank : state_.slots->Ranks()) {
    if (state_.TrainsElsewhere(rank)) {
      state_.slots->Forget(rank);
      continue;
    }
    // To a process that was started anew the decision may come when all train already.
    const RankSession* const session = state_.SessionOf(rank);
    if (session != nullptr && session->registration != nullptr) continue;
    // Of an attempt between, that has ended before it could commit.
    const bool is_of_another = state_.slots->IsForAnotherWorld(rank, world);
    if (are_others || is_of_another) state_.slots->Forget(rank);
  }
}

void MovedRanks::OnFreshStart() {
  for (const Rank rank : state_.slots->Ranks()) {
    if (!state_.sessions.contains(rank)) state_.slots->Forget(rank);
  }
}

}  // namespace unreft::smp
