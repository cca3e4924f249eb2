#include "smp/memory/slot_store.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/control_page.h"
#include "base/format.h"
#include "base/lost_pages.h"
#include "smp/memory/slot_content.h"

namespace unreft::smp {
namespace {

// No memory has so many, and sums of what fits do not wrap.
constexpr uint64_t kSlotBytesMax = uint64_t{1} << 48;

SegmentId SegmentOf(const Slot& slot) { return {SegmentKind::kSlot, slot.id.value}; }

// Each daemon process has generations of its own, as it does not know those of what an earlier one
// removed: 2 years of them at 4 grants a second. After 4096 sessions they come again.
constexpr int kGenerationBitsOfSession = 28;

Generation BeforeFirst(ProcessNumber session) {
  return Generation{session.value << kGenerationBitsOfSession & kGenerationMax};
}

}  // namespace

SlotStore::SlotStore(Seams seams, const NodeOptions& options, RandomId boot_id,
                     RandomId incarnation, ProcessNumber session,
                     absl::AnyInvocable<void()> on_change)
    : seams_(seams),
      options_(options),
      boot_id_(boot_id),
      incarnation_(incarnation),
      on_change_(std::move(on_change)),
      newest_generation_(BeforeFirst(session)) {}

SlotStore::~SlotStore() {
  for (auto& [id, slot] : slots_) seams_.processes.Unwatch(slot->writer_watch);
}

// --- adoption ---

absl::Status SlotStore::Adopt() {
  return seams_.pool.Adopt(SegmentKind::kSlot,
                           [this](SegmentId id, std::shared_ptr<Segment> segment) {
                             return AdoptSegment(id, std::move(segment));
                           });
}

absl::Status SlotStore::AdoptSegment(SegmentId id, std::shared_ptr<Segment> segment) {
  auto slot = std::make_unique<Slot>();
  slot->id = SlotId{id.number};
  slot->segment = std::move(segment);
  absl::StatusOr<SlotView> view = SlotView::Check(slot->segment->bytes());
  if (absl::IsFailedPrecondition(view.status())) {
    return absl::FailedPreconditionError(
        fmt::format("segment {}: {}", slot->segment->name(), view.status().message()));
  }
  Slot& adopted = *slot;
  slots_[adopted.id] = std::move(slot);
  if (!view.ok()) {
    Quarantine(adopted, std::string(view.status().message()));
  } else if (view->geometry().boot_id != boot_id_ || view->geometry().incarnation != incarnation_) {
    Quarantine(adopted, fmt::format("slot {}: of another incarnation of this node", adopted.id));
  } else {
    adopted.view = *view;
    AdoptContent(adopted);
  }
  return absl::OkStatus();
}

void SlotStore::AdoptContent(Slot& slot) {
  const SlotStateWord word = slot.view->state();
  slot.generation = word.generation;
  if (word.state == SlotState::kEmpty) {
    // Its pages may be reserved in part only. A slot that was never granted does not say whose it
    // is.
    absl::StatusOr<SlotGrant> last_grant = slot.view->CheckedGrant();
    if (!last_grant.ok()) return Remove(slot);
    slot.owner = Rank{last_grant->rank};
    slot.world = last_grant->world;
    newest_generation_ = std::max(newest_generation_, slot.generation);
    return Populate(slot);
  }
  absl::StatusOr<SlotGrant> grant = slot.view->CheckedGrant();
  if (!grant.ok()) return Quarantine(slot, std::string(grant.status().message()));
  slot.owner = Rank{grant->rank};
  newest_generation_ = std::max(newest_generation_, slot.generation);
  slot.writer = {grant->pid, grant->start_time};
  slot.world = grant->world;
  slot.attempt = Attempt{grant->attempt};
  slot.version.timeline = Timeline{grant->timeline};
  switch (word.state) {
    case SlotState::kSealed:
      return AdoptSealed(slot);
    case SlotState::kCapturing:
    case SlotState::kAbandoned:
      slot.phase =
          word.state == SlotState::kCapturing ? SlotPhase::kCapturing : SlotPhase::kDraining;
      return WatchWriter(slot);
    default:
      return Quarantine(
          slot, fmt::format("slot {}: unknown state {}", slot.id, static_cast<int>(word.state)));
  }
}

void SlotStore::AdoptSealed(Slot& slot) {
  absl::StatusOr<layout::SlotManifest> manifest = ReadManifest(*slot.view);
  if (!manifest.ok()) return Quarantine(slot, std::string(manifest.status().message()));
  slot.phase = SlotPhase::kSealed;
  slot.version = manifest->version;
  slot.is_step_known = true;
  slot.parent = manifest->parent;
  slot.world = manifest->world;
  slot.manifest = std::make_shared<const layout::SlotManifest>(*std::move(manifest));
}

// --- providing ---

bool SlotStore::Fits(const Slot& slot, const SlotNeeds& needs) const {
  if (!slot.view || IsOfAnotherWorld(slot, needs.world)) return false;
  const SlotGeometry& geometry = slot.view->geometry();
  return geometry.block_bytes == options_.block_bytes &&
         geometry.data_capacity >= needs.data_bytes &&
         geometry.extras_capacity >= needs.extras_bytes &&
         geometry.manifest_capacity >= needs.manifest_bytes;
}

// Not that of a rank that is forgotten, nor one that is too small by now, but for a slab that is to
// be decoded into it.
bool SlotStore::IsOfUse(const Slot& slot) const {
  if (!CheckNoPagesLost(slot.segment->bytes()).ok()) return false;
  if (slot.made_for != Version{}) return true;
  if (forgotten_.contains(slot.owner)) return false;
  const auto needs = needs_.find(slot.owner);
  return needs == needs_.end() || Fits(slot, needs->second);
}

absl::Status SlotStore::CheckBudget(Rank rank, const SlotNeeds& needs, uint64_t slots) {
  uint64_t fitting = 0;
  for (const Slot* slot : OfRank(rank)) {
    fitting += slot->phase != SlotPhase::kQuarantined && Fits(*slot, needs);
  }
  std::map<Rank, SlotNeeds> all = needs_;
  all[rank] = needs;
  return CheckRoom(rank, needs, slots, slots - std::min(fitting, slots), all);
}

absl::Status SlotStore::CheckRoom(Rank rank, const SlotNeeds& needs, uint64_t slots,
                                  uint64_t lacking, const std::map<Rank, SlotNeeds>& all) {
  if (const uint64_t largest = std::max(needs.data_bytes, needs.extras_bytes);
      largest > kSlotBytesMax) {
    return absl::ResourceExhaustedError(
        fmt::format("rank {}: a slot for {} bytes, {} are possible", rank, largest, kSlotBytesMax));
  }
  const GuardMemory guards = GuardsFor(all);
  const StagingMemory staging = this->staging();
  const uint64_t slot_bytes = SlotBytes(options_.block_bytes, needs);
  absl::StatusOr<MemoryBudget> budget = seams_.pool.Check(
      SumBytes(lacking * slot_bytes, SumBytes(guards.lacking_bytes, staging.lacking_bytes)));
  if (!budget.ok()) return budget.status();
  if (budget->Fits()) return absl::OkStatus();
  return absl::ResourceExhaustedError(fmt::format(
      "rank {}: {} slots of {} bytes{} do not fit: {}; capture less per rank (more replicas or "
      "ranks share the state), use fewer slots, or give the node more memory",
      rank, slots, slot_bytes, DescribeBeside(guards, staging), budget->Describe()));
}

absl::Status SlotStore::Provide(Rank rank, const SlotNeeds& needs, uint64_t slots) {
  // Nobody has a use for them, also if there is no memory for others.
  for (Slot* slot : All()) {
    // What another memory has made is left alone.
    if (!slot->view && SlotView::Check(slot->segment->bytes()).ok()) continue;
    const bool is_of_another = slot->owner == rank && slot->phase == SlotPhase::kFree &&
                               IsOfAnotherWorld(*slot, needs.world);
    // Whose it was its header may not say.
    const bool is_broken =
        slot->phase == SlotPhase::kQuarantined && !slot->reusable && !slot->InUse();
    if (is_of_another || is_broken) Remove(*slot);
  }
  if (absl::Status status = CheckBudget(rank, needs, slots); !status.ok()) return status;
  needs_[rank] = needs;
  forgotten_.erase(rank);
  provision_status_[rank] = absl::OkStatus();
  uint64_t fitting = 0;
  for (Slot* slot : OfRank(rank)) {
    if (slot->phase == SlotPhase::kQuarantined) continue;
    if (Fits(*slot, needs)) {
      ++fitting;
    } else if (slot->phase == SlotPhase::kFree && slot->made_for == Version{}) {
      Remove(*slot);
    }
  }
  for (; fitting < slots; ++fitting) {
    if (absl::Status status = MakeSlot(rank, needs); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SlotStore::ProvideForRebuild(Rank rank, const SlotNeeds& needs, Version version) {
  uint64_t fitting = 0;
  for (Slot* slot : OfRank(rank)) {
    if (slot->phase == SlotPhase::kQuarantined || !Fits(*slot, needs)) continue;
    ++fitting;
    if (slot->phase != SlotPhase::kFree && slot->phase != SlotPhase::kPopulating) continue;
    slot->made_for = version;
    if (IsOfUse(*slot)) return absl::OkStatus();
  }
  if (fitting >= options_.SlotsPerRank()) return absl::OkStatus();
  if (absl::Status status = CheckRoom(rank, needs, 1, 1, needs_); !status.ok()) return status;
  return MakeSlot(rank, needs, version);
}

bool SlotStore::IsForAnotherWorld(Rank rank, uint64_t world) {
  const auto needs = needs_.find(rank);
  const uint64_t provided = needs == needs_.end() ? 0 : needs->second.world;
  if (provided != 0 && provided != world) return true;
  return std::ranges::any_of(OfRank(rank), [&](const Slot* slot) {
    return slot->phase != SlotPhase::kSealed && IsOfAnotherWorld(*slot, world);
  });
}

void SlotStore::Forget(Rank rank) {
  needs_.erase(rank);
  provision_status_.erase(rank);
  forgotten_.insert(rank);
  for (Slot* slot : OfRank(rank)) {
    slot->made_for = Version{};
    ScheduleRemove(slot->id);
  }
}

absl::Status SlotStore::MakeSlot(Rank rank, const SlotNeeds& needs, Version made_for) {
  const SegmentId next = seams_.pool.Next(SegmentKind::kSlot);
  const SlotId id{next.number};
  if (id.value > kSlotIdMax) return absl::ResourceExhaustedError("no slot number is left of 65536");
  SlotGeometry geometry = MakeSlotGeometry(id, options_.block_bytes, needs.manifest_bytes,
                                           needs.extras_bytes, needs.data_bytes);
  geometry.boot_id = boot_id_;
  geometry.incarnation = incarnation_;
  absl::StatusOr<std::shared_ptr<Segment>> segment =
      seams_.pool.Make(next, SlotSegmentBytes(geometry));
  if (!segment.ok()) return segment.status();
  auto slot = std::make_unique<Slot>();
  slot->id = id;
  slot->owner = rank;
  slot->made_for = made_for;
  slot->world = needs.world;
  slot->segment = *std::move(segment);
  slot->view = FormatSlot(slot->segment->bytes(), geometry);
  Slot& made = *slot;
  slots_[id] = std::move(slot);
  Populate(made);
  return absl::OkStatus();
}

void SlotStore::Populate(Slot& slot) {
  slot.phase = SlotPhase::kPopulating;
  seams_.pool.Populate(SegmentOf(slot), lifetime_.Bind([this, id = slot.id](absl::Status status) {
    Populated(*Find(id), std::move(status));
  }));
}

void SlotStore::Populated(Slot& slot, absl::Status status) {
  if (!status.ok()) {
    seams_.log.Error("segment {} of rank {}: {}", slot.segment->name(), slot.owner,
                     status.message());
    provision_status_[slot.owner] = std::move(status);
    Remove(slot);
    return on_change_();
  }
  slot.phase = SlotPhase::kFree;
  // The needs may have grown meanwhile.
  if (!IsOfUse(slot)) ScheduleRemove(slot.id);
  on_change_();
}

// --- granting, freeing ---

Slot* SlotStore::Grant(Rank rank, ProcessLife writer, uint64_t world, Attempt attempt,
                       Timeline timeline) {
  const auto needs = needs_.find(rank);
  if (needs == needs_.end()) return nullptr;
  for (Slot* slot : OfRank(rank)) {
    if (slot->phase != SlotPhase::kFree || !Fits(*slot, needs->second)) continue;
    WriteGrant(*slot, writer, world, attempt, timeline);
    return slot;
  }
  return nullptr;
}

void SlotStore::WriteGrant(Slot& slot, ProcessLife writer, uint64_t world, Attempt attempt,
                           Timeline timeline) {
  newest_generation_ = Generation{(newest_generation_.value + 1) & kGenerationMax};
  slot.generation = newest_generation_;
  slot.view->MendGeometry();
  SlotGrant grant;
  grant.generation = slot.generation.value;
  grant.rank = slot.owner.value;
  grant.world = world;
  grant.pid = writer.pid;
  grant.start_time = writer.start_time;
  grant.attempt = attempt.value;
  grant.timeline = timeline.value;
  SetBodyCrc(grant);
  slot.view->header().grant = grant;
  slot.view->set_state(slot.generation, SlotState::kCapturing);
  slot.phase = SlotPhase::kGranted;
  slot.made_for = Version{};
  slot.writer = writer;
  slot.world = world;
  slot.attempt = attempt;
  slot.version = Version{timeline, Step{0}};
  slot.is_step_known = false;
}

Slot* SlotStore::TakeForRebuild(Rank rank, std::shared_ptr<const layout::SlotManifest> manifest,
                                uint64_t manifest_bytes) {
  const SlotNeeds needs = {.data_bytes = manifest->data_bytes,
                           .extras_bytes = manifest->extras_bytes,
                           .manifest_bytes = manifest_bytes};
  // The rank may have been provided for less since.
  std::vector<Slot*> slots = OfRank(rank);
  const auto found = std::ranges::find_if(slots, [&](const Slot* slot) {
    return slot->phase == SlotPhase::kFree && IsOfUse(*slot) && Fits(*slot, needs);
  });
  if (found == slots.end()) return nullptr;
  Slot* slot = *found;
  // A life that never was: whoever adopts the slot finds its writer gone.
  WriteGrant(*slot, ProcessLife{}, manifest->world, manifest->attempt, manifest->version.timeline);
  slot->phase = SlotPhase::kRebuilding;
  slot->version = manifest->version;
  slot->is_step_known = true;
  slot->parent = manifest->parent;
  slot->manifest = std::move(manifest);
  slot->blocks_done = 0;
  return slot;
}

void SlotStore::WatchWriter(Slot& slot) {
  seams_.processes.Unwatch(slot.writer_watch);
  slot.writer_watch =
      seams_.processes.Watch(slot.writer, [this, id = slot.id, generation = slot.generation] {
        Slot* ended = Find(id, generation);
        if (ended == nullptr) return;
        ended->writer_watch = WatchId::kNone;
        const bool complete = ended->captured.has_value() && !ended->abandoned;
        const bool writing =
            ended->phase == SlotPhase::kCapturing || ended->phase == SlotPhase::kDraining;
        if (writing && !complete) Abandon(*ended, true);
      });
}

void SlotStore::Free(Slot& slot) {
  UNREFT_CHECK(!slot.InUseByPool(), "slot {} is in use", slot.id);
  std::erase_if(slot.readings, [](const auto& reading) { return !reading->Stop(); });
  if (slot.InUse()) {
    slot.abandoned = true;
    slot.writer_done = true;
    slot.phase = SlotPhase::kDraining;
    slot.view->set_state(slot.generation, SlotState::kAbandoned);
    return;
  }
  seams_.processes.Unwatch(slot.writer_watch);
  slot.writer_watch = WatchId::kNone;
  slot.view->set_state(slot.generation, SlotState::kEmpty);
  slot.phase = SlotPhase::kFree;
  slot.registration.reset();
  slot.manifest.reset();
  slot.captured.reset();
  slot.blocks_ready = slot.blocks_done = 0;
  slot.abandoned = false;
  slot.writer_done = false;
  slot.problem.clear();
  slot.reusable = false;
  slot.version = Version{};
  slot.is_step_known = false;
  if (!IsOfUse(slot)) ScheduleRemove(slot.id);
}

void SlotStore::Reuse(Slot& slot) {
  const bool is_extra = Offerable(slot.owner).size() >= options_.SlotsPerRank();
  return is_extra && !slot.InUse() ? Remove(slot) : Free(slot);
}

void SlotStore::Abandon(Slot& slot, bool writer_done) {
  if (slot.phase != SlotPhase::kCapturing && slot.phase != SlotPhase::kDraining) return;
  slot.abandoned = true;
  slot.writer_done |= writer_done || slot.captured.has_value();
  slot.phase = SlotPhase::kDraining;
  slot.view->set_state(slot.generation, SlotState::kAbandoned);
  if (!slot.writer_done && slot.writer_watch == WatchId::kNone) WatchWriter(slot);
  FreeIfDrained(slot);
}

void SlotStore::FreeIfDrained(Slot& slot) {
  if (slot.phase != SlotPhase::kDraining || !slot.writer_done || slot.InUse()) return;
  Free(slot);
  on_change_();
}

void SlotStore::Quarantine(Slot& slot, std::string problem) {
  seams_.log.Error("segment {} is quarantined: {}", slot.segment->name(), problem);
  seams_.processes.Unwatch(slot.writer_watch);
  slot.writer_watch = WatchId::kNone;
  slot.phase = SlotPhase::kQuarantined;
  slot.problem = std::move(problem);
  ++quarantined_;
}

void SlotStore::ScheduleRemove(SlotId id) {
  // Not at once: whoever freed the slot still looks at it.
  seams_.executor.Post(lifetime_.Bind([this, id] {
    Slot* slot = Find(id);
    if (slot != nullptr && slot->phase == SlotPhase::kFree && !IsOfUse(*slot)) Remove(*slot);
  }));
}

void SlotStore::Remove(Slot& slot) {
  seams_.processes.Unwatch(slot.writer_watch);
  // A trainer may map it yet.
  if (slot.view) slot.view->set_state(slot.generation, SlotState::kEmpty);
  seams_.pool.Remove(SegmentOf(slot));
  slots_.erase(slot.id);
}

// --- looking ---

Slot* SlotStore::Find(SlotId id) {
  const auto it = slots_.find(id);
  return it == slots_.end() ? nullptr : it->second.get();
}

Slot* SlotStore::Find(SlotId id, Generation generation) {
  Slot* slot = Find(id);
  return slot != nullptr && slot->generation == generation ? slot : nullptr;
}

std::vector<Slot*> SlotStore::All() {
  std::vector<Slot*> all;
  for (auto& [id, slot] : slots_) all.push_back(slot.get());
  return all;
}

std::set<Rank> SlotStore::Ranks() const {
  std::set<Rank> ranks;
  for (const auto& [rank, needs] : needs_) ranks.insert(rank);
  for (const auto& [id, slot] : slots_) {
    if (slot->view) ranks.insert(slot->owner);
  }
  return ranks;
}

std::vector<Slot*> SlotStore::OfRank(Rank rank) {
  std::vector<Slot*> slots = All();
  std::erase_if(slots, [&](Slot* slot) { return slot->owner != rank || !slot->view; });
  return slots;
}

std::vector<Slot*> SlotStore::Offerable(Rank rank) {
  const auto needs = needs_.find(rank);
  if (needs == needs_.end()) return {};
  std::vector<Slot*> slots = OfRank(rank);
  std::erase_if(slots, [&](Slot* slot) {
    return slot->phase == SlotPhase::kQuarantined || !Fits(*slot, needs->second);
  });
  // The trainer refuses what does not verify.
  for (Slot* slot : slots) slot->view->MendGeometry();
  return slots;
}

std::vector<Slot*> SlotStore::Sealed(Version version) {
  std::vector<Slot*> slots = All();
  std::erase_if(slots, [&](Slot* slot) {
    return slot->phase != SlotPhase::kSealed || slot->version != version;
  });
  return slots;
}

absl::Status SlotStore::ProvisionStatus(Rank rank) {
  const auto it = provision_status_.find(rank);
  return it == provision_status_.end() ? absl::OkStatus() : it->second;
}

GuardMemory SlotStore::GuardsFor(const std::map<Rank, SlotNeeds>& needs) const {
  if (!guards_) return {};
  std::vector<SlotNeeds> slabs;
  for (const auto& [rank, of_rank] : needs) slabs.push_back(of_rank);
  return guards_(slabs);
}

}  // namespace unreft::smp
