#include "smp/capture/capture_desk.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "smp/job/layout_check.h"

namespace unreft::smp {
namespace {

// After a skip for want of a slot, so many steps run without a step-back version.
constexpr uint64_t kEagerSteps = 64;

}  // namespace

CaptureDesk::CaptureDesk(NodeState& state)
    : state_(state),
      sealer_(
          state.seams.executor, state.seams.pool, state.options.job,
          state.options.checksum_task_blocks, state.seams.faults,
          [this](Slot& slot, absl::Status status) { OnSealed(slot, status); },
          [this](Slot&) {
            if (state_.on_slot_change) state_.on_slot_change();
          }),
      mode_(state.record->captures_all() ? layout::CaptureMode::kFull
                                         : layout::CaptureMode::kSharded),
      shortage_(state.seams.executor, state.options.memory_retry, [this] { ProvideRefused(); }) {}

CaptureDesk::~CaptureDesk() {
  state_.seams.executor.Cancel(misfit_timer_);
  state_.seams.executor.Cancel(budget_timer_);
  state_.seams.executor.Cancel(answer_timer_);
}

// --- grants ---

void CaptureDesk::RunRules() {
  if (drained_) {
    for (Slot* slot : state_.slots->All()) {
      if (slot->phase == SlotPhase::kCapturing && slot->captured) return;
    }
    std::exchange(drained_, nullptr)();
  }
  for (auto& [rank, session] : state_.sessions) {
    TellShortage(*session);
    TellNewSlots(*session);
    EnsureGrant(*session);
    const bool is_over = IsChecked(*session) || !session->registration_status.ok();
    if (session->answer_due && is_over) Answer(*session);
  }
  if (IsShort()) shortage_.Arm();
  if (state_.on_slot_change) state_.on_slot_change();
}

bool CaptureDesk::MayGrant(RankSession& session) const {
  return !state_.timeline_closed && session.connected() && session.registration_status.ok() &&
         misfit_.ok() && IsChecked(session) && session.control() != nullptr &&
         session.timeline.value != 0 && session.timeline == state_.record->chain().newest();
}

void CaptureDesk::EnsureGrant(RankSession& session) {
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
  Slot* slot = state_.slots->Grant(session.rank(), session.life(), session.world(),
                                   session.attempt(), session.timeline);
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

// Frees the rank's oldest version that is older than the committed one. While a newer version is
// under way this is the step-back version, which is kept unless snapshots were skipped for it.
Slot* CaptureDesk::RetireForGrant(RankSession& session) {
  Slot* oldest = nullptr;
  bool under_way = false;
  for (Slot* slot : state_.slots->OfRank(session.rank())) {
    under_way |= slot->phase == SlotPhase::kCapturing || slot->phase == SlotPhase::kDraining ||
                 (slot->phase == SlotPhase::kSealed && slot->version > state_.record->committed());
    if (slot->phase != SlotPhase::kSealed || slot->version >= state_.record->committed()) continue;
    if (!state_.MayRetire(slot->version)) continue;
    if (oldest == nullptr || slot->version < oldest->version) oldest = slot;
  }
  const bool eager = session.newest_step < session.eager_until;
  if (oldest == nullptr || (under_way && !eager)) return nullptr;
  state_.slots->Free(*oldest);
  return state_.slots->Grant(session.rank(), session.life(), session.world(), session.attempt(),
                             session.timeline);
}

void CaptureDesk::Revoke(RankSession& session) {
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

// After a restart of the daemon: what its predecessor offered is known from the control page.
void CaptureDesk::AdoptGrant(RankSession& session) {
  Revoke(session);
  const GrantWord word =
      GrantWord::Decode(session.control()->grant.load(std::memory_order_acquire));
  Slot* slot = SlotOf(session, word.slot, word.generation);
  if (word.state == GrantState::kClaimed && slot != nullptr &&
      slot->phase == SlotPhase::kCapturing && !slot->registration) {
    slot->registration = session.registration;
  }
}

void CaptureDesk::OnSessionEnded(RankSession& session) {
  Revoke(session);
  for (Slot* slot : state_.slots->OfRank(session.rank())) {
    if (slot->writer != session.life() || slot->captured) continue;
    if (slot->phase == SlotPhase::kGranted) slot->phase = SlotPhase::kCapturing;  // claimed unseen
    state_.slots->Abandon(*slot, false);
  }
}

// --- a snapshot ---

Slot* CaptureDesk::SlotOf(RankSession& session, SlotId id, Generation generation) {
  Slot* slot = state_.slots->Find(id, generation);
  if (slot == nullptr || slot->owner != session.rank() || slot->writer != session.life()) {
    return nullptr;
  }
  return slot;
}

void CaptureDesk::TellAbandoned(RankSession& session, Version version, const std::string& reason) {
  session.Send(VersionState{version, VersionPhase::kAbandoned, reason});
}

// The answer to a doorbell that comes when all is over: the trainer missed how it ended.
void CaptureDesk::TellEnd(RankSession& session, Version version) {
  if (version == state_.record->committed()) {
    return session.Send(VersionState{version, VersionPhase::kCommitted, ""});
  }
  TellAbandoned(session, version,
                "how it ended was not heard of, and its memory is used by another snapshot");
}

void CaptureDesk::Refuse(RankSession& session, Slot& slot, Version version,
                         const std::string& reason) {
  state_.seams.log.Warn("rank {}: version {} refused: {}", session.rank(), version, reason);
  if (slot.phase == SlotPhase::kGranted) slot.phase = SlotPhase::kCapturing;
  state_.slots->Abandon(slot, slot.captured.has_value());
  TellAbandoned(session, version, reason);
}

void CaptureDesk::OnClaimed(RankSession& session, const Claimed& claimed) {
  Slot* slot = SlotOf(session, claimed.slot, claimed.generation);
  if (slot == nullptr) return TellEnd(session, claimed.version);
  const bool is_offer = slot->phase == SlotPhase::kGranted;
  const bool is_adopted = slot->phase == SlotPhase::kCapturing && slot->version.step.value == 0;
  if (!is_offer && !is_adopted) return;  // a repetition
  session.NoteNamed(claimed.version);
  if (state_.timeline_closed || claimed.version.timeline != state_.record->chain().newest() ||
      claimed.version <= state_.record->committed()) {
    return Refuse(session, *slot, claimed.version,
                  "a newer one is committed, or another attempt of the job has begun");
  }
  // The trainer writes one snapshot at a time: an earlier one that it never completed is over. What
  // it tells again to a new daemon process may have a later one beside it, not told again yet, that
  // it still writes.
  for (Slot* other : state_.slots->OfRank(session.rank())) {
    const bool is_earlier =
        is_offer || (other->version.step.value != 0 && other->version < claimed.version);
    if (other != slot && is_earlier && other->phase == SlotPhase::kCapturing && !other->captured &&
        other->writer == session.life()) {
      state_.slots->Abandon(*other, true);
    }
  }
  slot->phase = SlotPhase::kCapturing;
  slot->version = claimed.version;
  slot->parent = state_.record->chain().ParentOf(claimed.version.timeline).value_or(Version{});
  slot->registration = session.registration;
  state_.account.Started(claimed.version.step, state_.seams.executor.Now());
  state_.coordinator->ReportClaimed(claimed.version, session.rank());
  RunRules();
}

void CaptureDesk::OnProgress(RankSession& session, const Progress& progress) {
  Slot* slot = SlotOf(session, progress.slot, progress.generation);
  if (slot == nullptr || slot->phase != SlotPhase::kCapturing || !slot->registration) return;
  const ProgressWord word =
      ProgressWord::Decode(session.control()->progress.load(std::memory_order_acquire));
  if (word.generation_low != static_cast<uint32_t>(progress.generation.value)) return;
  sealer_.Publish(*slot, word.blocks);
}

void CaptureDesk::OnCaptured(RankSession& session, Captured captured) {
  Slot* slot = SlotOf(session, captured.slot, captured.generation);
  if (slot == nullptr) return TellEnd(session, captured.version);
  if (slot->phase == SlotPhase::kSealed) {
    if (slot->version <= state_.record->committed()) return TellEnd(session, slot->version);
    return session.Send(VersionState{slot->version, VersionPhase::kSealed, ""});
  }
  if (slot->phase == SlotPhase::kDraining) {
    state_.slots->Abandon(*slot, true);
    return TellAbandoned(session, captured.version, "it was given up before it was complete");
  }
  if (slot->phase != SlotPhase::kCapturing || slot->captured) return;
  if (slot->version != captured.version || !slot->registration) {
    return Refuse(session, *slot, captured.version, "the daemon was not told that it had begun");
  }
  const Version version = captured.version;
  if (state_.timeline_closed) {
    slot->captured = std::move(captured);
    return Refuse(session, *slot, version, "a recovery decision is being made");
  }
  if (absl::Status status = sealer_.Complete(*slot, captured); !status.ok()) {
    slot->captured = std::move(captured);
    Refuse(session, *slot, version, std::string(status.message()));
    state_.coordinator->ReportFailed(version, session.rank(), std::string(status.message()));
  }
}

void CaptureDesk::OnSealed(Slot& slot, const absl::Status& status) {
  RankSession* session = state_.SessionOf(slot.owner);
  if (slot.abandoned) {
    state_.slots->FreeIfDrained(slot);
    return RunRules();
  }
  if (!status.ok()) {
    state_.seams.log.Error("version {} of rank {}: {}", slot.version, slot.owner, status.message());
    if (absl::IsDataLoss(status)) ++state_.counters.device_checksum_mismatches;
    const Version version = slot.version;
    state_.slots->Abandon(slot, true);
    state_.coordinator->ReportFailed(version, slot.owner, std::string(status.message()));
    return RunRules();
  }
  ++state_.counters.slots_sealed;
  state_.counters.bytes_sealed += slot.manifest->data_bytes;
  if (session != nullptr && session->life() == slot.writer) {
    ++session->captured;
    session->last_captured = slot.version.step;
    session->captured_extras_bytes = slot.captured ? slot.captured->extras_bytes : 0;
    session->Send(VersionState{slot.version, VersionPhase::kSealed, ""});
  }
  state_.coordinator->ReportSealed(slot.version, slot.owner, slot.world, DigestsOf(*slot.manifest));
  RunRules();
}

void CaptureDesk::OnSkipped(RankSession& session, const Skipped& skipped) {
  ++session.skipped;
  ++state_.counters.snapshots_skipped;
  session.last_skip = skipped.reason;
  session.NoteNamed(skipped.version);
  session.eager_until = Step{session.newest_step.value + kEagerSteps};
  if (skipped.version.timeline == state_.record->chain().newest()) {
    state_.account.Skipped(skipped.version.step,
                           fmt::format("rank {}: {}", session.rank(), skipped.reason),
                           state_.seams.executor.Now());
  }
  state_.coordinator->ReportFailed(skipped.version, session.rank(), "skipped: " + skipped.reason);
  RunRules();
}

void CaptureDesk::OnGaveUp(RankSession& session, const GaveUp& gave_up) {
  ++session.given_up;
  session.last_given_up = gave_up.reason;
  session.NoteNamed(gave_up.version);
  Slot* slot = SlotOf(session, gave_up.slot, gave_up.generation);
  // Not when it is said again and was heard: the rank may have registered with less since.
  const bool is_news = slot != nullptr && slot->phase != SlotPhase::kFree && session.registration;
  if (is_news && gave_up.extras_bytes_needed > session.extras_bytes) {
    session.extras_bytes = gave_up.extras_bytes_needed;
    Revoke(session);  // what is offered now is too small, and not told of any more
    session.registration_status = ProvideSlots(session);
    Answer(session);
    slot = SlotOf(session, gave_up.slot, gave_up.generation);
  }
  if (slot != nullptr && !slot->captured) {
    if (slot->phase == SlotPhase::kGranted) slot->phase = SlotPhase::kCapturing;
    state_.slots->Abandon(*slot, true);
  }
  state_.coordinator->ReportFailed(gave_up.version, session.rank(), "gave up: " + gave_up.reason);
  RunRules();
}

// --- of the coordinator ---

void CaptureDesk::OnCommitted(Version version) {
  ++state_.counters.versions_committed;
  state_.SendToAll(VersionState{version, VersionPhase::kCommitted, ""});
  for (Slot* slot : state_.slots->All()) {
    if (slot->phase == SlotPhase::kQuarantined && slot->reusable && slot->version < version) {
      state_.slots->Reuse(*slot);
    }
  }
}

void CaptureDesk::OnAbandoned(Version version, const std::string& reason) {
  if (version == state_.record->committed()) return;
  ++state_.counters.versions_abandoned;
  for (auto& [rank, session] : state_.sessions) {
    if (session->control() != nullptr) TellAbandoned(*session, version, reason);
  }
  for (Slot* slot : state_.slots->All()) {
    if (slot->version != version) continue;
    if (slot->phase == SlotPhase::kSealed) state_.slots->Free(*slot);
    if (slot->phase == SlotPhase::kCapturing && slot->version.step.value != 0) {
      state_.slots->Abandon(*slot, false);
    }
  }
}

void CaptureDesk::OnCaptureFrom(Version first) {
  capture_from_ = first;
  for (auto& [rank, session] : state_.sessions) TellCaptureFrom(*session);
}

void CaptureDesk::TellCaptureFrom(RankSession& session) const {
  if (session.control() == nullptr) return;
  const bool is_of = session.timeline == capture_from_.timeline;
  session.control()->capture_from.store(is_of ? capture_from_.step.value : 0,
                                        std::memory_order_release);
}

void CaptureDesk::OnReplicasDisagree(const std::string& what) {
  state_.seams.log.Warn("{}; every rank captures all it holds from now on", what);
  mode_ = layout::CaptureMode::kFull;
  state_.record->SetCapturesAll();
  for (auto& [rank, session] : state_.sessions) {
    if (!session->registration || session->registration->plan.mode() == mode_) continue;
    const auto specs = session->registration->table.specs();
    Revoke(*session);
    session->registration_status = Accept(*session, {specs.begin(), specs.end()});
    AnswerWhenChecked(*session);
  }
}

void CaptureDesk::Close(absl::AnyInvocable<void()> drained) {
  for (auto& [rank, session] : state_.sessions) Revoke(*session);
  drained_ = std::move(drained);
  RunRules();
}

}  // namespace unreft::smp
