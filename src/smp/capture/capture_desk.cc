#include "smp/capture/capture_desk.h"

#include <fmt/format.h>

#include <utility>

#include "base/format.h"
#include "smp/job/refusals.h"

namespace unreft::smp {

CaptureDesk::CaptureDesk(NodeState& state)
    : state_(state),
      sealer_(
          state.seams.executor, state.seams.pool, state.options.job,
          state.options.checksum_task_blocks, state.seams.faults,
          [this](Slot& slot, absl::Status status) { OnSealed(slot, status); },
          [this](Slot&) {
            if (state_.on_slot_change) state_.on_slot_change();
          }),
      granter_(state),
      registrar_(state, granter_, [this] { RunRules(); }) {}

// --- rules ---

void CaptureDesk::RunRules() {
  if (drained_) {
    for (Slot* slot : state_.slots->All()) {
      if (slot->phase == SlotPhase::kCapturing && slot->captured) return;
    }
    std::exchange(drained_, nullptr)();
  }
  for (auto& [rank, session] : state_.sessions) {
    registrar_.TellOfSlots(*session);
    if (registrar_.MayCapture(*session)) granter_.EnsureGrant(*session);
    registrar_.AnswerOnceDecided(*session);
  }
  registrar_.RetryIfShort();
  if (state_.on_slot_change) state_.on_slot_change();
}

void CaptureDesk::OnSessionEnded(RankSession& session) {
  granter_.Revoke(session);
  for (Slot* slot : state_.slots->OfRank(session.rank())) {
    if (slot->writer != session.life() || slot->captured) continue;
    if (slot->phase == SlotPhase::kGranted) slot->phase = SlotPhase::kCapturing;  // claimed unseen
    state_.slots->Abandon(*slot, false);
  }
}

// --- a snapshot ---

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
  Slot* slot = granter_.SlotOf(session, claimed.slot, claimed.generation);
  if (slot == nullptr) return TellEnd(session, claimed.version);
  const bool is_offer = slot->phase == SlotPhase::kGranted;
  const bool is_adopted = slot->phase == SlotPhase::kCapturing && !slot->is_step_known;
  if (!is_offer && !is_adopted) return;  // a repetition
  session.NoteNamed(claimed.version);
  if (state_.timeline_closed || claimed.version.timeline != state_.record->chain().newest() ||
      claimed.version <= state_.record->committed()) {
    return Refuse(session, *slot, claimed.version, std::string(kOfNoUse));
  }
  // The trainer writes one snapshot at a time: an earlier one that it never completed is over. What
  // it tells again to a new daemon process may have a later one beside it, not told again yet, that
  // it still writes.
  for (Slot* other : state_.slots->OfRank(session.rank())) {
    const bool is_earlier = is_offer || (other->is_step_known && other->version < claimed.version);
    if (other != slot && is_earlier && other->phase == SlotPhase::kCapturing && !other->captured &&
        other->writer == session.life()) {
      state_.slots->Abandon(*other, true);
    }
  }
  slot->phase = SlotPhase::kCapturing;
  slot->version = claimed.version;
  slot->is_step_known = true;
  slot->parent = state_.record->chain().ParentOf(claimed.version.timeline).value_or(Version{});
  slot->registration = session.registration;
  state_.account.Started(claimed.version.step, state_.seams.executor.Now());
  state_.coordinator->ReportClaimed(claimed.version, session.rank());
  RunRules();
}

void CaptureDesk::OnProgress(RankSession& session, const Progress& progress) {
  Slot* slot = granter_.SlotOf(session, progress.slot, progress.generation);
  if (slot == nullptr || slot->phase != SlotPhase::kCapturing || !slot->registration) return;
  const ProgressWord word =
      ProgressWord::Decode(session.control()->progress.load(std::memory_order_acquire));
  if (word.generation_low != static_cast<uint32_t>(progress.generation.value)) return;
  sealer_.Publish(*slot, word.blocks);
}

void CaptureDesk::OnCaptured(RankSession& session, Captured captured) {
  Slot* slot = granter_.SlotOf(session, captured.slot, captured.generation);
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
  state_.coordinator->ReportSealed(slot.version, slot.owner);
  RunRules();
}

void CaptureDesk::OnSkipped(RankSession& session, const Skipped& skipped) {
  ++session.skipped;
  ++state_.counters.snapshots_skipped;
  session.last_skip = skipped.reason;
  session.NoteNamed(skipped.version);
  Granter::HurryAfterSkip(session);
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
  Slot* slot = granter_.SlotOf(session, gave_up.slot, gave_up.generation);
  // Not when it is said again and was heard: the rank may have registered with less since.
  const bool is_news = slot != nullptr && slot->phase != SlotPhase::kFree && session.registration;
  if (is_news && gave_up.extras_bytes_needed > session.extras_bytes) {
    registrar_.GrowExtras(session, gave_up.extras_bytes_needed);
    slot = granter_.SlotOf(session, gave_up.slot, gave_up.generation);
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
    if (slot->HasRotted() && slot->version < version) state_.slots->Reuse(*slot);
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
    if (slot->phase == SlotPhase::kCapturing && slot->is_step_known) {
      state_.slots->Abandon(*slot, false);
    }
  }
}

void CaptureDesk::Close(absl::AnyInvocable<void()> drained) {
  granter_.RevokeAll();
  drained_ = std::move(drained);
  RunRules();
}

}  // namespace unreft::smp
