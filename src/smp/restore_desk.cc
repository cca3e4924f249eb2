#include "smp/restore_desk.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/format.h"

namespace unreft::smp {
namespace {

// One logical tensor of the answer: as the rank held it, or the whole of it.
WireTensor WholeTensor(TensorSpec spec) {
  spec.offset.assign(spec.global_shape.size(), 0);
  spec.extent = spec.global_shape;
  spec.replica_index = 0;
  spec.replica_count = 1;
  return {std::move(spec)};
}

}  // namespace

RestoreDesk::RestoreDesk(NodeState& state)
    : state_(state), verifier_(state.seams.executor, state.seams.pool, *state.slots) {
  // A decision that an earlier process made and its ranks may still be carrying out.
  const Timeline newest = state.record->chain().newest();
  const std::optional<Version> parent = state.record->chain().ParentOf(newest);
  if (!parent || *parent == Version{}) return;
  last_decision_ = {DecisionKind::kRestored, absl::OkStatus(), *parent, newest};
}

// --- asking ---

void RestoreDesk::OnRestoreRequest(RankSession& session, const RestoreRequest& request) {
  session.restore_request = request.request;
  AskAgain(session);
}

void RestoreDesk::AskAgain(const RankSession& like) {
  std::vector<Rank> asking;
  for (const auto& [rank, session] : state_.sessions) {
    if (session->restore_request && session->attempt() == like.attempt() &&
        session->world() == like.world()) {
      asking.push_back(rank);
    }
  }
  if (!asking.empty()) {
    state_.coordinator->AskDecision(like.attempt(), like.world(), std::move(asking));
  }
}

std::vector<recovery::SealedSlab> RestoreDesk::Inventory() const {
  std::vector<recovery::SealedSlab> slabs;
  for (Slot* slot : state_.slots->All()) {
    if (slot->phase != SlotPhase::kSealed) continue;
    slabs.push_back({slot->version, slot->owner, slot->world});
  }
  return slabs;
}

void RestoreDesk::Verify(Version version, absl::AnyInvocable<void(absl::Status)> done) {
  verifier_.Verify(state_.slots->Sealed(version), std::move(done));
}

// --- the decision ---

void RestoreDesk::OnDecision(const JobDecision& decision) {
  ++state_.counters.decisions;
  if (decision.kind == DecisionKind::kFailed) {
    ++state_.counters.decisions_failed;
    state_.seams.log.Error("no restore: {}", decision.status.message());
  } else {
    state_.seams.log.Info("decision: {} opens timeline {}",
                          decision.kind == DecisionKind::kFresh
                              ? std::string("a fresh start")
                              : fmt::format("version {} is restored and", decision.version),
                          decision.timeline);
    last_decision_ = decision;
    DropDeadVersions();
  }
  for (auto& [rank, session] : state_.sessions) {
    if (!session->restore_request) continue;
    if (decision.status.ok()) session->timeline = decision.timeline;
    session->Send(AnswerFor(*session, decision));
    session->restore_request.reset();
  }
}

// Versions that are not on the chain any more are dead for ever; captures of earlier timelines end.
void RestoreDesk::DropDeadVersions() {
  const recovery::TimelineChain& chain = state_.record->chain();
  for (Slot* slot : state_.slots->All()) {
    if (slot->phase == SlotPhase::kSealed && !chain.IsLive(slot->version)) {
      state_.slots->Free(*slot);
    } else if (slot->phase == SlotPhase::kCapturing && slot->version.timeline != chain.newest()) {
      state_.slots->Abandon(*slot, slot->captured.has_value());
    }
  }
}

Decision RestoreDesk::AnswerFor(const RankSession& session, const JobDecision& decision) const {
  Decision answer;
  answer.request = *session.restore_request;
  answer.kind = decision.kind;
  answer.status = decision.status;
  answer.version = decision.version;
  answer.timeline = decision.timeline;
  if (decision.kind != DecisionKind::kRestored) return answer;

  std::map<std::string, WireTensor> others;  // tensors of which this rank held no box
  std::set<std::string> own;
  for (Slot* slot : state_.slots->Sealed(decision.version)) {
    if (slot->owner == session.rank()) {
      answer.extras = {slot->id, slot->generation, slot->segment_name};
      answer.tensors = ToWire(slot->manifest->tensors);
      for (const TensorSpec& spec : slot->manifest->tensors) own.insert(spec.name);
    } else {
      for (const TensorSpec& spec : slot->manifest->tensors) {
        if (!others.contains(spec.name)) others.emplace(spec.name, WholeTensor(spec));
      }
    }
  }
  for (auto& [name, tensor] : others) {
    if (!own.contains(name)) answer.tensors.push_back(std::move(tensor));
  }
  return answer;
}

// --- the bytes ---

void RestoreDesk::OnPlanRequest(RankSession& session, PlanRequest request) {
  Plan plan;
  plan.request = request.request;
  plan.status = FillPlan(session, std::move(request), plan);
  session.Send(plan);
}

absl::Status RestoreDesk::FillPlan(const RankSession& session, PlanRequest request,
                                   Plan& plan) const {
  if (last_decision_.kind != DecisionKind::kRestored || session.timeline.value == 0 ||
      session.timeline != last_decision_.timeline) {
    return absl::FailedPreconditionError(
        fmt::format("rank {}: nothing was decided for it to restore", session.rank()));
  }
  absl::StatusOr<layout::TensorTable> table =
      layout::TensorTable::Create(FromWire(std::move(request.tensors)));
  if (!table.ok()) return table.status();

  std::vector<recovery::StoredPart> stored;
  std::vector<uint32_t> own;
  for (Slot* slot : state_.slots->Sealed(last_decision_.version)) {
    const auto slab = static_cast<uint32_t>(plan.slots.size());
    plan.slots.push_back({slot->id, slot->generation, slot->segment_name});
    if (slot->owner == session.rank()) own.push_back(slab);
    for (const layout::CapturedPart& part : slot->manifest->parts) {
      stored.push_back({&slot->manifest->tensors[part.tensor], slab, part.shard_begin, part.bytes,
                        part.slab_offset});
    }
  }
  absl::StatusOr<std::vector<recovery::Piece>> pieces =
      recovery::PlanRestore(stored, table->specs(), own);
  if (!pieces.ok()) return pieces.status();
  for (const recovery::Piece& piece : *pieces) {
    plan.pieces.push_back(
        {piece.slab, piece.target, piece.slab_offset, piece.target_offset, piece.bytes});
  }
  return absl::OkStatus();
}

void RestoreDesk::OnRestoreDone(RankSession& session, const RestoreDone& done) {
  const absl::Status status = done.status.ToStatus();
  if (status.ok()) return;
  state_.seams.log.Error("rank {}: its restore failed: {}", session.rank(), status.message());
  Slot* slot = state_.slots->Find(done.bad_slot, done.bad_generation);
  if (slot == nullptr || slot->phase != SlotPhase::kSealed) return;
  // Not on a trainer's word alone: its own memory may be at fault.
  verifier_.Verify({slot}, [](absl::Status) {});
}

}  // namespace unreft::smp
