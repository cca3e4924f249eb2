#include "smp/capture/registrar.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/format.h"
#include "smp/desk/node_memory.h"

namespace unreft::smp {
namespace {

// One holds the newest version while the other is captured.
constexpr size_t kSlotsNeeded = 2;

// Ranks whose registrations do not fit together have so long to register anew.
constexpr Duration kMisfitGrace = std::chrono::seconds(2);

// A registration is answered by then, also where the job has not looked at it.
constexpr Duration kCheckWait = std::chrono::milliseconds(300);

// Where groups can do with fewer parities, so long for them to make room for what does not fit.
constexpr Duration kMemoryWait = std::chrono::seconds(2);

constexpr Duration kSameExtras = std::chrono::minutes(10);

// The version that takes the slot's memory, also if it is yet to be decoded into it.
Version HeldIn(const Slot& slot) {
  switch (slot.phase) {
    case SlotPhase::kSealed:
    case SlotPhase::kRebuilding:
      return slot.version;
    default:
      return slot.made_for;
  }
}

}  // namespace

Registrar::Registrar(NodeState& state, Granter& granter, absl::AnyInvocable<void()> run_rules)
    : state_(state),
      granter_(granter),
      run_rules_(std::move(run_rules)),
      mode_(state.record->captures_all() ? layout::CaptureMode::kFull
                                         : layout::CaptureMode::kSharded),
      budget_log_(state),
      shortage_(state.seams.executor, state.options.memory_retry, [this] { ProvideRefused(); }) {}

Registrar::~Registrar() {
  state_.seams.executor.Cancel(misfit_timer_);
  state_.seams.executor.Cancel(answer_timer_);
}

void Registrar::OnRegister(RankSession& session, Register request) {
  session.register_request = request.request;
  session.slots_told = 0;
  session.extras_bytes = request.extras_bytes;
  session.misfit = absl::OkStatus();
  granter_.Revoke(session);
  session.registration_status = Accept(session, FromWire(std::move(request.tensors)));
  if (absl::IsResourceExhausted(session.registration_status) && state_.seams.memory_of_the_dead) {
    if (const std::string dead = state_.seams.memory_of_the_dead(); !dead.empty()) {
      session.registration_status = absl::ResourceExhaustedError(
          fmt::format("{}; {}", session.registration_status.message(), dead));
    }
  }
  if (!session.registration_status.ok()) LogRefused(session);
  if (session.registration_status.ok()) granter_.Adopt(session);
  ProvideStaging();
  budget_log_.TellSoon();
  AnswerWhenChecked(session);
}

// The trainer has the same in its error; who runs the node looks here.
void Registrar::LogRefused(const RankSession& session) {
  state_.seams.log.Error("the registration of rank {} (pid {}) is refused: {}", session.rank(),
                         session.life().pid, session.registration_status.message());
}

// Before the answer the first slot is granted: the trainer's first snapshot may follow at once. But
// where nobody can say whether all ranks' registrations fit together, it is not kept waiting.
void Registrar::AnswerWhenChecked(RankSession& session) {
  session.answer_by =
      state_.seams.executor.Now() + (MayGetMemory(session) ? kMemoryWait : kCheckWait);
  AnswerInTime();
  state_.coordinator->CheckRegistrations();
  run_rules_();
}

void Registrar::AnswerInTime() {
  if (answer_timer_ != TimerId::kNone) return;
  answer_timer_ = state_.seams.executor.After(kCheckWait, [this] {
    answer_timer_ = TimerId::kNone;
    const Time now = state_.seams.executor.Now();
    bool do_some_wait = false;
    for (auto& [rank, waiting] : state_.sessions) {
      if (!waiting->answer_by) continue;
      if (now >= *waiting->answer_by) {
        Answer(*waiting);
      } else {
        do_some_wait = true;
      }
    }
    if (do_some_wait) AnswerInTime();
  });
}

void Registrar::AnswerOnceDecided(RankSession& session) {
  const bool is_decided =
      session.registration_status.ok() ? IsChecked(session) : !MayGetMemory(session);
  if (session.answer_by && is_decided) Answer(session);
}

// Whether it lacks memory that guards of the node may yet give back.
bool Registrar::MayGetMemory(const RankSession& session) const {
  return absl::IsResourceExhausted(session.registration_status) && state_.options.parity_chunks > 0;
}

absl::Status Registrar::Accept(RankSession& session, std::vector<TensorSpec> specs) {
  absl::StatusOr<layout::TensorTable> table = layout::TensorTable::Create(std::move(specs));
  // Not for want of memory, that may come: it is tried again for nothing.
  if (absl::IsResourceExhausted(table.status())) {
    return absl::InvalidArgumentError(table.status().message());
  }
  if (!table.ok()) return table.status();
  auto registration = std::make_shared<Registration>();
  registration->plan = layout::CapturePlan::Make(*table, mode_);
  registration->table = *std::move(table);
  registration->extras_bytes = session.extras_bytes;
  session.registration = std::move(registration);
  return ProvideSlots(session);
}

SlotNeeds Registrar::NeedsOf(const RankSession& session) const {
  SlotNeeds needs;
  needs.data_bytes = session.registration->plan.data_bytes();
  needs.extras_bytes = std::max(state_.options.extras_bytes_min, 2 * session.extras_bytes);
  layout::SlotManifest manifest = ManifestOf(*session.registration);
  manifest.job = state_.options.job;
  needs.manifest_bytes = layout::ManifestBytesMax(std::move(manifest));
  needs.world = session.world();
  return needs;
}

absl::Status Registrar::ProvideSlots(RankSession& session) {
  if (absl::Status status = session.OpenControl(state_.prefix); !status.ok()) return status;
  SlotNeeds needs = NeedsOf(session);
  RetireOfOthers();
  const uint64_t slots = SlotsWanted(session);
  const absl::Status status = state_.slots->Provide(session.rank(), needs, slots);
  if (status.ok()) session.slots_provided = slots;
  if (!absl::IsResourceExhausted(status)) return status;
  // Without memory for others its slots will do, if they have room for the extras that it has now.
  for (const Slot* slot : state_.slots->OfRank(session.rank())) {
    needs.extras_bytes = std::min(needs.extras_bytes, slot->view->geometry().extras_capacity);
  }
  const bool is_enough = needs.extras_bytes >= session.extras_bytes;
  if (!is_enough || !state_.slots->Provide(session.rank(), needs, slots).ok()) return status;
  session.slots_provided = slots;
  return absl::OkStatus();
}

// Another number of ranks has saved what is in it, or a rank that trains on another node by now.
bool Registrar::IsOfOthers(const Slot& slot, uint64_t world) const {
  return IsOfAnotherWorld(slot, world) || state_.TrainsElsewhere(slot.owner);
}

// Whether no grant takes its slot before another version is committed, or somebody lets go of it.
bool Registrar::IsKept(Version version) const {
  const Version committed = state_.record->committed();
  return version == committed || (version < committed && !state_.MayRetire(version));
}

// The memory of versions that others have saved is that of as many slots of the ranks here, and so
// is a slot of the rank's own whose content has rotted: there is room for these as those go, with
// the commits that follow. Whatever others have, a rank has a slot beside those that it must keep.
uint64_t Registrar::SlotsWanted(const RankSession& session) const {
  std::set<Version> of_others;
  uint64_t rotted = 0;
  uint64_t kept = 0;
  for (const Slot* slot : state_.slots->All()) {
    const Version held = slot->HasRotted() ? slot->version : HeldIn(*slot);
    if (held == Version{}) continue;
    if (IsOfOthers(*slot, session.world())) {
      of_others.insert(held);
    } else if (slot->owner == session.rank()) {
      rotted += slot->HasRotted();
      kept += !slot->HasRotted() && IsKept(held);
    }
  }
  const uint64_t most = state_.options.SlotsPerRank();
  const uint64_t least = std::min(most, kept + 1);
  const uint64_t own = std::max(least, most - std::min<uint64_t>(most, of_others.size()));
  return std::max<uint64_t>(1, own - std::min(own, rotted));
}

void Registrar::GrowExtras(RankSession& session, uint64_t bytes) {
  const uint64_t before = std::exchange(session.extras_bytes, bytes);
  const std::vector<Slot*> offered = state_.slots->Offerable(session.rank());
  granter_.Revoke(session);  // what is offered now is too small, and not told of any more
  absl::Status status = ProvideSlots(session);
  if (absl::IsResourceExhausted(status)) {
    session.extras_bytes = before;
    // It goes on with the slots that it knows, and with smaller extras. It is not told of them
    // again, or it would repeat what it said of this snapshot.
    const bool are_there = state_.slots->Offerable(session.rank()) == offered;
    if (session.registration_status.ok() && are_there) return LogLarge(session, bytes, status);
  }
  session.registration_status = std::move(status);
  Answer(session);
}

void Registrar::LogLarge(const RankSession& session, uint64_t bytes, const absl::Status& why) {
  const std::string key = fmt::format("extras {}", session.rank());
  state_.seams.log.WarnEvery(key, kSameExtras, state_.seams.executor.Now(),
                             "rank {}: extras of {} bytes, where {} were expected, are not "
                             "captured for want of memory: {}",
                             session.rank(), bytes, session.extras_bytes, why.message());
}

void Registrar::CaptureAll(const std::string& why) {
  state_.seams.log.Warn("{}; every rank captures all it holds from now on", why);
  mode_ = layout::CaptureMode::kFull;
  state_.record->SetCapturesAll();
  for (auto& [rank, session] : state_.sessions) {
    if (!session->registration || session->registration->plan.mode() == mode_) continue;
    const auto specs = session->registration->table.specs();
    granter_.Revoke(*session);
    session->registration_status = Accept(*session, {specs.begin(), specs.end()});
    AnswerWhenChecked(*session);
  }
}

// What others have saved, and is older than what is committed: no rank here gives its slot of it up
// for another snapshot. The step-back version stays where ranks have a slot for it.
// Nothing goes before a rank has restored and registered.
void Registrar::RetireOfOthers() {
  const auto registered = std::ranges::find_if(state_.sessions, [](const auto& of_rank) {
    return of_rank.second->registration != nullptr && !of_rank.second->superseded;
  });
  if (state_.timeline_closed || registered == state_.sessions.end()) return;
  const uint64_t world = registered->second->world();
  const Version committed = state_.record->committed();
  std::vector<Slot*> old = state_.slots->All();
  std::erase_if(old, [&](const Slot* slot) {
    return slot->phase != SlotPhase::kSealed || slot->version >= committed;
  });
  Version step_back;
  for (const Slot* slot : old) step_back = std::max(step_back, slot->version);
  const bool has_room = state_.options.slots_per_rank > kSlotsNeeded;
  for (Slot* slot : old) {
    if (!IsOfOthers(*slot, world)) continue;
    const bool is_step_back = slot->version == step_back && step_back >= state_.commit_before;
    if (has_room && is_step_back) continue;
    if (state_.MayRetire(slot->version)) state_.slots->Free(*slot);
  }
}

void Registrar::ProvideRefused() {
  RetireOfOthers();
  for (auto& [rank, session] : state_.sessions) {
    if (!session->registration || session->superseded) continue;
    const bool is_refused = absl::IsResourceExhausted(session->registration_status);
    // It goes on with fewer slots, and is told of the others once they are there.
    const bool lacks_some = session->registration_status.ok() && LacksSlots(*session);
    if (!is_refused && !lacks_some) continue;
    absl::Status status = ProvideSlots(*session);
    if (!status.ok() || !is_refused) continue;
    state_.seams.log.Info("rank {}: there is memory for its versions now", rank);
    session->registration_status = std::move(status);
    granter_.Adopt(*session);
    AnswerWhenChecked(*session);
  }
  ProvideStaging();
  run_rules_();
}

bool Registrar::LacksMemory() {
  return std::ranges::any_of(state_.sessions, [&](const auto& of_rank) {
    const RankSession& session = *of_rank.second;
    if (!session.registration || session.superseded) return false;
    if (!absl::IsResourceExhausted(session.registration_status)) return false;
    return absl::IsResourceExhausted(
        state_.slots->CheckBudget(session.rank(), NeedsOf(session), SlotsWanted(session)));
  });
}

bool Registrar::LacksSlots(const RankSession& session) const {
  if (!state_.slots->ProvisionStatus(session.rank()).ok()) return true;
  return session.slots_provided < state_.options.SlotsPerRank() &&
         session.slots_provided < SlotsWanted(session);
}

// Nobody tells when there is memory that was lacking.
void Registrar::RetryIfShort() {
  bool is_short = !state_.staging->status().ok();
  for (const auto& [rank, session] : state_.sessions) {
    if (!session->registration || session->superseded) continue;
    is_short |= absl::IsResourceExhausted(session->registration_status) || LacksSlots(*session);
  }
  if (is_short) shortage_.Arm();
}

void Registrar::Answer(RankSession& session) {
  session.answer_by.reset();
  Registered answer;
  answer.request = session.register_request;
  answer.status = session.capture_status();
  answer.control_segment = session.control_name();
  answer.block_bytes = state_.options.block_bytes;
  answer.replica_check_every = state_.options.replica_check_every;
  if (session.registration) {
    answer.capture_mode = static_cast<uint8_t>(session.registration->plan.mode());
    answer.layout_digest = session.registration->plan.digest();
  }
  // Not what is removed when it is free, perhaps before the trainer maps it.
  for (Slot* slot : state_.slots->Offerable(session.rank())) {
    const SlotGeometry& geometry = slot->view->geometry();
    answer.slots.push_back({slot->id, slot->segment->name(), geometry.extras_offset,
                            geometry.extras_capacity, geometry.data_offset,
                            geometry.data_capacity});
    slot->told_to = session.life();
  }
  session.slots_told = answer.slots.size();
  session.Send(answer);
}

std::vector<RegisteredTrainer> Registrar::Registrations() const {
  std::vector<RegisteredTrainer> trainers;
  for (const auto& [rank, session] : state_.sessions) {
    if (!session->registration) continue;
    RegisteredTrainer& trainer = trainers.emplace_back(
        RegisteredTrainer{rank, session->world(), session->attempt(), session->registration});
    AddProgress(*session, trainer);
  }
  return trainers;
}

void Registrar::AddProgress(const RankSession& session, RegisteredTrainer& trainer) const {
  if (session.newest_named.timeline != state_.record->chain().newest()) return;
  for (const Slot* slot : state_.slots->OfRank(session.rank())) {
    if (slot->phase != SlotPhase::kCapturing) continue;
    // Captured before this daemon process; the trainer is to say which step.
    if (!slot->is_step_known) return;
    trainer.capturing.push_back(slot->version.step);
  }
  trainer.passed = session.newest_named.step;
}

bool Registrar::IsChecked(const RankSession& session) {
  return session.registration && session.checked_layout == session.registration->plan.digest();
}

bool Registrar::MayCapture(const RankSession& session) const {
  return session.registration_status.ok() && misfit_.ok() && IsChecked(session);
}

// What does not fit together is not captured from now on. But when a layout changes, the ranks
// register one after the other: they are told only of a misfit that lasts.
void Registrar::OnChecked(const RegistrationCheck& check) {
  bool is_news = std::exchange(misfit_, check.status) != check.status;
  for (const auto& [rank, layout] : check.layouts) {
    RankSession* session = state_.SessionOf(rank);
    if (session == nullptr || session->checked_layout == layout) continue;
    session->checked_layout = layout;
    is_news = true;
  }
  if (!is_news) return;
  if (misfit_.ok()) {
    state_.seams.executor.Cancel(std::exchange(misfit_timer_, TimerId::kNone));
    run_rules_();
    return TellAll(absl::OkStatus());
  }
  granter_.RevokeAll();
  if (misfit_timer_ == TimerId::kNone) {
    misfit_timer_ = state_.seams.executor.After(kMisfitGrace, [this] { TellMisfit(); });
  }
  run_rules_();
}

// Looks again after a while: ranks that registered since were not told, and the reason may be
// another one.
void Registrar::TellMisfit() {
  misfit_timer_ = state_.seams.executor.After(kMisfitGrace, [this] { TellMisfit(); });
  TellAll(misfit_);
}

void Registrar::TellAll(const absl::Status& misfit) {
  bool is_news = false;
  for (auto& [rank, session] : state_.sessions) {
    if (!session->registration || session->misfit == misfit) continue;
    is_news = true;
    session->misfit = misfit;
    Answer(*session);
  }
  if (!is_news) return;
  if (!misfit.ok()) return state_.seams.log.Error("no snapshots: {}", misfit.message());
  state_.seams.log.Info("the ranks' registrations fit together again");
}

void Registrar::TellOfSlots(RankSession& session) {
  TellShortage(session);
  TellNewSlots(session);
}

// Slots that were told of and whose pages could not be had: unasked, since what the trainer maps of
// them takes memory until it lets go, and nothing else says why its snapshots are skipped.
void Registrar::TellShortage(RankSession& session) {
  const absl::Status status = state_.slots->ProvisionStatus(session.rank());
  const size_t left = state_.slots->Offerable(session.rank()).size();
  if (status.ok() || left >= session.slots_told) return;
  const size_t needed = std::min<size_t>(kSlotsNeeded, session.slots_provided);
  if (left < needed) {
    granter_.Revoke(session);
    session.registration_status = absl::ResourceExhaustedError(
        fmt::format("rank {}: memory for {} versions is needed, there is some for {}: {}",
                    session.rank(), needed, left, status.message()));
    LogRefused(session);
  }
  Answer(session);
}

// Slots that were made for a slab that is rebuilt, or that are used again: unasked, or the trainer
// skipped whatever is granted in them.
void Registrar::TellNewSlots(RankSession& session) {
  const bool is_told = session.slots_told > 0 && session.registration_status.ok();
  if (!is_told || !session.connected()) return;
  const std::vector<Slot*> slots = state_.slots->Offerable(session.rank());
  const bool knows_all =
      std::ranges::all_of(slots, [&](const Slot* slot) { return slot->told_to == session.life(); });
  if (knows_all) return;
  granter_.Revoke(session);  // what is offered now may be too small, and not told of any more
  Answer(session);
}

// Once all ranks of this node have registered: a restore finds it with its pages then. What was
// made for a restore, when nobody had said yet how large its part is, may be larger than that;
// where a rank lacks memory the rest goes back.
void Registrar::ProvideStaging() {
  bool lacks_memory = false;
  for (const auto& [rank, session] : state_.sessions) {
    if (!session->registration) return;
    const absl::Status& status = session->registration_status;
    if (!status.ok() && !absl::IsResourceExhausted(status)) return;
    lacks_memory |= !status.ok();
  }
  const uint64_t needed = StagingNeeded(state_);
  if (lacks_memory && needed >= state_.memory->use(SegmentKind::kStaging).bytes) return;
  absl::Status status = state_.staging->Provide(needed);
  if (!status.ok() && status != staging_status_) {
    state_.seams.log.Error("a restart may be refused for want of memory: {}", status.message());
  }
  staging_status_ = std::move(status);
}

}  // namespace unreft::smp
