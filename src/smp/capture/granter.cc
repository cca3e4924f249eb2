#include "smp/capture/granter.h"

namespace unreft::smp {
namespace {

// After a skip for want of a slot, so many steps run without a step-back version.
constexpr uint64_t kEagerSteps = 64;

}  // namespace

bool Granter::MayGrant(RankSession& session) const {
  return !state_.timeline_closed && session.connected() && session.control() != nullptr &&
         session.timeline.value != 0 && session.timeline == state_.record->chain().newest();
}

void Granter::EnsureGrant(RankSession& session) {
  if (!MayGrant(session)) return;
  TellCaptureFrom(session);
  const GrantWord word =
      GrantWord::Decode(session.control()->grant.load(std::memory_order_acquire));
  if (word.state == GrantState::kGranted) return;
  if (word.state == GrantState::kClaimed) {
    // Its doorbell is still to come: until then the slot counts as offered.
    Slot* claimed = SlotOf(session, word.slot, word.generation);
    if (claimed != nullptr && claimed->phase == SlotPhase::kGranted) return;
  }
  Slot* slot = GrantFree(session);
  if (slot == nullptr) {
    slot = RetireForGrant(session);
    if (slot == nullptr) return;
  }
  slot->registration = session.registration;
  state_.record->SetCaptureBegan();
  session.control()->grant.store(
      GrantWord{GrantState::kGranted, slot->id, slot->generation}.Encode(),
      std::memory_order_release);
}

// Content that has rotted, of a version that nobody restores any more or that is older than the
// committed one, or whose slab of this rank has been rebuilt in another slot: nothing can be read
// from it.
bool Granter::IsOfNoUse(const Slot& slot) const {
  if (!slot.HasRotted()) return false;
  if (!state_.MayRetire(slot.version)) return false;
  const bool is_given_up = slot.version.timeline == capture_from_.timeline &&
                           slot.version < capture_from_ &&
                           slot.version != state_.record->committed();
  return is_given_up || slot.version < state_.record->committed() ||
         !state_.record->chain().IsLive(slot.version) ||
         std::ranges::any_of(
             state_.slots->OfRank(slot.owner),
             [&](const Slot* other) {
               return other->phase == SlotPhase::kSealed && other->version == slot.version;
             });
}

Slot* Granter::GrantFree(RankSession& session) {
  return state_.slots->Grant(session.rank(), session.life(), session.world(), session.attempt(),
                             session.timeline);
}

// Frees what has rotted, or the rank's oldest version that is older than the committed one. While a
// newer version is under way this is the step-back version, which is kept unless snapshots were
// skipped for it.
Slot* Granter::RetireForGrant(RankSession& session) {
  Slot* oldest = nullptr;
  bool under_way = false;
  for (Slot* slot : state_.slots->OfRank(session.rank())) {
    if (IsOfNoUse(*slot)) {
      state_.slots->Reuse(*slot);
      return GrantFree(session);
    }
    under_way |= slot->phase == SlotPhase::kCapturing || slot->phase == SlotPhase::kDraining ||
                 (slot->phase == SlotPhase::kSealed && slot->version > state_.record->committed());
    if (slot->phase != SlotPhase::kSealed || slot->version >= state_.record->committed()) continue;
    // In that of another world nothing can be captured; it goes with all of its version.
    if (IsOfAnotherWorld(*slot, session.world())) continue;
    if (!state_.MayRetire(slot->version)) continue;
    if (oldest == nullptr || slot->version < oldest->version) oldest = slot;
  }
  const bool eager = session.newest_step < session.eager_until;
  if (oldest == nullptr || (under_way && !eager)) return nullptr;
  state_.slots->Free(*oldest);
  return GrantFree(session);
}

void Granter::HurryAfterSkip(RankSession& session) {
  session.eager_until = Step{session.newest_step.value + kEagerSteps};
}

void Granter::Revoke(RankSession& session) {
  if (session.control() == nullptr) return;
  uint64_t word = session.control()->grant.load(std::memory_order_acquire);
  const GrantWord grant = GrantWord::Decode(word);
  if (grant.state != GrantState::kGranted) return;
  // Fails when the trainer claims it at this moment: then its doorbell decides.
  if (!session.control()->grant.compare_exchange_strong(word, GrantWord{}.Encode())) return;
  // The page is the trainer's to write: what is in it may be another rank's slot.
  Slot* slot = SlotOf(session, grant.slot, grant.generation);
  if (slot == nullptr) return;
  if (slot->phase == SlotPhase::kGranted) state_.slots->Free(*slot);
  // An earlier daemon process made the offer: adopted as if it were taken.
  if (slot->phase == SlotPhase::kCapturing) state_.slots->Abandon(*slot, true);
}

void Granter::RevokeAll() {
  for (auto& [rank, session] : state_.sessions) Revoke(*session);
}

void Granter::Adopt(RankSession& session) {
  Revoke(session);
  const GrantWord word =
      GrantWord::Decode(session.control()->grant.load(std::memory_order_acquire));
  Slot* slot = SlotOf(session, word.slot, word.generation);
  if (word.state == GrantState::kClaimed && slot != nullptr &&
      slot->phase == SlotPhase::kCapturing && !slot->registration) {
    slot->registration = session.registration;
  }
}

Slot* Granter::SlotOf(const RankSession& session, SlotId id, Generation generation) const {
  Slot* slot = state_.slots->Find(id, generation);
  if (slot == nullptr || slot->owner != session.rank() || slot->writer != session.life()) {
    return nullptr;
  }
  return slot;
}

void Granter::OnCaptureFrom(Version first) {
  capture_from_ = first;
  for (auto& [rank, session] : state_.sessions) TellCaptureFrom(*session);
}

void Granter::TellCaptureFrom(RankSession& session) const {
  if (session.control() == nullptr) return;
  const bool is_of = session.timeline == capture_from_.timeline;
  session.control()->capture_from.store(is_of ? capture_from_.step.value : 0,
                                        std::memory_order_release);
}

}  // namespace unreft::smp
