#include "smp/protect/guard_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/bounds.h"
#include "base/crc32c.h"
#include "base/format.h"
#include "base/slot_header.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {
namespace {

// Those that fit, and those that growths of the slabs have made too small, until they are over.
constexpr uint64_t kGuardsPerSlot = 3;

SegmentId SegmentOf(const Guard& guard) { return {SegmentKind::kGuard, guard.id}; }

absl::Status WrongCrc(const GuardView& view, std::string_view what, uint32_t needed,
                      uint32_t found) {
  return absl::DataLossError(fmt::format("guard {}: {} has CRC {:08x}, needed {:08x}",
                                         view.geometry().guard_id, what, found, needed));
}

}  // namespace

GuardStore::GuardStore(SegmentPool& pool, Log& log, const NodeOptions& options, RandomId boot_id,
                       RandomId incarnation, absl::AnyInvocable<void()> on_free)
    : pool_(pool),
      log_(log),
      options_(options),
      boot_id_(boot_id),
      incarnation_(incarnation),
      on_free_(std::move(on_free)) {}

// --- adoption ---

absl::Status GuardStore::Adopt() {
  return pool_.Adopt(SegmentKind::kGuard, [this](SegmentId id, std::shared_ptr<Segment> segment) {
    return AdoptSegment(id, std::move(segment));
  });
}

absl::Status GuardStore::AdoptSegment(SegmentId id, std::shared_ptr<Segment> segment) {
  auto guard = std::make_unique<Guard>();
  guard->id = id.number;
  guard->segment = std::move(segment);
  absl::StatusOr<GuardView> view = GuardView::Check(guard->segment->bytes());
  if (absl::IsFailedPrecondition(view.status())) {
    return absl::FailedPreconditionError(
        fmt::format("segment {}: {}", guard->segment->name(), view.status().message()));
  }
  Guard& adopted = *guard;
  guards_[adopted.id] = std::move(guard);
  if (!view.ok()) {
    Quarantine(adopted, std::string(view.status().message()));
    return absl::OkStatus();
  }
  if (view->geometry().boot_id != boot_id_ || view->geometry().incarnation != incarnation_) {
    Quarantine(adopted, "of another incarnation of this node");
    return absl::OkStatus();
  }
  adopted.view = *view;
  adopted.generation = view->generation();
  absl::StatusOr<GuardGrant> grant = view->CheckedGrant();
  // One that was sealed when another had taken its place, and was not freed any more.
  const bool is_double =
      grant.ok() && Complete({Timeline{grant->timeline}, Step{grant->step}}) != nullptr;
  if (view->state() != GuardState::kComplete || is_double) {
    // Its pages may be reserved in part only.
    adopted.view->set_state(adopted.generation, GuardState::kEmpty);
    Populate(adopted);
    return absl::OkStatus();
  }
  absl::StatusOr<GuardRecord> record = ReadGuardRecord(*view);
  if (!grant.ok() || !record.ok()) {
    Quarantine(adopted, std::string((grant.ok() ? record.status() : grant.status()).message()));
    return absl::OkStatus();
  }
  adopted.grant = *grant;
  adopted.version = {Timeline{grant->timeline}, Step{grant->step}};
  SetComplete(adopted, std::make_shared<const GuardRecord>(*std::move(record)));
  return absl::OkStatus();
}

// --- providing ---

bool GuardStore::Fits(const Guard& guard, const GuardNeeds& needs) const {
  if (!guard.view) return false;
  const GuardGeometry& g = guard.view->geometry();
  // All chunks that a guard has room for are verified, so there is one for each parity.
  return g.block_bytes == options_.block_bytes && g.record_capacity >= needs.record_bytes &&
         g.chunks == needs.chunks && g.sources_max >= needs.sources &&
         g.positions_max >= needs.positions;
}

bool GuardStore::IsOld(const Guard& guard, Version keep_from) const {
  return guard.phase == GuardPhase::kComplete && guard.version < keep_from && guard.users == 0 &&
         !kept_.contains(guard.version);
}

// What is in use and too small goes in time, with the versions it is for: each of these guards is
// one of those that a node has, as if it fitted already, and one that fits there is in any case.
GuardStore::Provision GuardStore::ProvisionFor(const GuardNeeds& needs, Version keep_from) const {
  Provision provision;
  for (const auto& [id, guard] : guards_) {
    if (guard->phase == GuardPhase::kQuarantined) {
      // Of no use to anybody, and its problem has been logged.
      if (guard->users == 0) provision.going.push_back(guard.get());
    } else if (Fits(*guard, needs)) {
      ++provision.fitting;
    } else if (guard->phase == GuardPhase::kFree || guard->phase == GuardPhase::kPopulating ||
               IsOld(*guard, keep_from)) {
      provision.going.push_back(guard.get());
    } else {
      ++provision.too_small;
    }
  }
  const uint64_t most = options_.SlotsPerRank();
  const uint64_t wanted =
      std::max<uint64_t>(1, most - std::min<uint64_t>(most, provision.too_small));
  provision.lacking = wanted - std::min(wanted, provision.fitting);
  return provision;
}

absl::Status GuardStore::Provide(const GuardNeeds& needs, Version keep_from) {
  const Provision provision = ProvisionFor(needs, keep_from);
  for (Guard* guard : provision.going) Remove(*guard);
  for (uint64_t made = 0; made < provision.lacking; ++made) {
    // Of versions under way, while the meta store is away, nothing says that they are over.
    if (const uint64_t max = kGuardsPerSlot * options_.SlotsPerRank(); guards_.size() >= max) {
      const uint64_t fitting = provision.fitting + made;
      return absl::ResourceExhaustedError(fmt::format(
          "{} guards are needed that are large enough, there are {}; the other {} are "
          "in use, the limit is {} together",
          provision.fitting + provision.lacking, fitting, guards_.size() - fitting, max));
    }
    if (absl::Status status = Make(needs); !status.ok()) return status;
  }
  return absl::OkStatus();
}

GuardGeometry GuardStore::GeometryFor(uint64_t id, const GuardNeeds& needs) const {
  GuardGeometry geometry = MakeGuardGeometry(id, options_.block_bytes, needs.record_bytes,
                                             needs.chunks, needs.sources, needs.positions);
  geometry.boot_id = boot_id_;
  geometry.incarnation = incarnation_;
  return geometry;
}

GuardMemory GuardStore::MemoryFor(const GuardNeeds& needs, Version keep_from) const {
  const Provision provision = ProvisionFor(needs, keep_from);
  uint64_t going_bytes = 0;
  for (const Guard* guard : provision.going) going_bytes += guard->segment->bytes().size();
  const uint64_t made_bytes = provision.lacking * GuardBytes(options_.block_bytes, needs);
  return {.guards = provision.too_small + provision.fitting + provision.lacking,
          .bytes = pool_.use(SegmentKind::kGuard).bytes,
          .lacking_bytes = made_bytes - std::min(made_bytes, going_bytes)};
}

absl::Status GuardStore::Make(const GuardNeeds& needs) {
  const SegmentId id = pool_.Next(SegmentKind::kGuard);
  const GuardGeometry geometry = GeometryFor(id.number, needs);
  const uint64_t bytes = GuardSegmentBytes(geometry);
  absl::StatusOr<MemoryBudget> budget = pool_.Check(bytes);
  if (!budget.ok()) return budget.status();
  if (!budget->Fits()) {
    return absl::ResourceExhaustedError(
        fmt::format("a guard of {} bytes ({} blocks of parity) does not fit: {}", bytes,
                    needs.chunks * needs.positions, budget->Describe()));
  }
  absl::StatusOr<std::shared_ptr<Segment>> segment = pool_.Make(id, bytes);
  if (!segment.ok()) return segment.status();
  auto guard = std::make_unique<Guard>();
  guard->id = id.number;
  guard->segment = *std::move(segment);
  guard->view = FormatGuard(guard->segment->bytes(), geometry);
  Guard& made = *guard;
  guards_[made.id] = std::move(guard);
  Populate(made);
  return absl::OkStatus();
}

void GuardStore::Populate(Guard& guard) {
  guard.phase = GuardPhase::kPopulating;
  pool_.Populate(SegmentOf(guard),
                 lifetime_.Bind([this, id = guard.id](const absl::Status& status) {
                   Populated(*guards_.at(id), status);
                 }));
}

void GuardStore::Populated(Guard& guard, const absl::Status& status) {
  if (!status.ok()) {
    log_.Error("guard {}: {}", guard.id, status.message());
    return Remove(guard);
  }
  guard.phase = GuardPhase::kFree;
  on_free_();
}

// --- handing out ---

Guard* GuardStore::Take(Version version, const GuardNeeds& needs, Version keep_from) {
  Guard* taken = nullptr;
  for (Guard* guard : All()) {
    if (guard->phase == GuardPhase::kFree && Fits(*guard, needs)) {
      taken = guard;
      break;
    }
    const bool is_old = IsOld(*guard, keep_from) && Fits(*guard, needs);
    if (is_old && (taken == nullptr || guard->version < taken->version)) taken = guard;
  }
  if (taken == nullptr) return nullptr;
  if (taken->phase == GuardPhase::kComplete) Free(*taken);
  // Memory that rots leads no access astray, but who adopts the guard reads its geometry.
  taken->view->MendGeometry();
  taken->generation = Generation{taken->generation.value + 1};
  taken->grant = GuardGrant{};
  taken->grant.generation = taken->generation.value;
  taken->grant.timeline = version.timeline.value;
  taken->grant.step = version.step.value;
  taken->grant.positions = needs.positions;
  taken->grant.sources = needs.sources;
  SetBodyCrc(taken->grant);
  taken->view->header().grant = taken->grant;
  taken->view->set_state(taken->generation, GuardState::kFilling);
  taken->phase = GuardPhase::kFilling;
  taken->version = version;
  return taken;
}

void GuardStore::RemoveUnused(Version keep_from) {
  for (Guard* guard : All()) {
    if (guard->phase == GuardPhase::kFree || IsOld(*guard, keep_from)) Remove(*guard);
  }
}

void GuardStore::SetComplete(Guard& guard, std::shared_ptr<const GuardRecord> record) {
  guard.phase = GuardPhase::kComplete;
  guard.record = std::move(record);
  guard.coding = CodingOf(guard.record->group(), guard.record->members());
}

void GuardStore::MendHeader(Guard& guard) {
  guard.view->MendGeometry();
  guard.view->set_state(guard.generation, GuardState::kComplete);
}

void GuardStore::Free(Guard& guard) {
  if (guard.users > 0) {
    guard.dropped = true;
    return;
  }
  guard.view->set_state(guard.generation, GuardState::kEmpty);
  guard.phase = GuardPhase::kFree;
  guard.version = Version{};
  guard.record.reset();
  guard.dropped = false;
}

void GuardStore::EndUse(uint64_t id, Generation generation) {
  Guard* guard = Find(id, generation);
  if (guard == nullptr || --guard->users > 0 || !guard->dropped) return;
  Free(*guard);
  on_free_();
}

void GuardStore::Quarantine(Guard& guard, std::string problem) {
  log_.Error("segment {} is quarantined: {}", guard.segment->name(), problem);
  guard.phase = GuardPhase::kQuarantined;
  guard.problem = std::move(problem);
}

void GuardStore::Remove(Guard& guard) {
  pool_.Remove(SegmentOf(guard));
  guards_.erase(guard.id);
}

// --- looking ---

Guard* GuardStore::Find(uint64_t id, Generation generation) {
  const auto it = guards_.find(id);
  if (it == guards_.end() || it->second->generation != generation) return nullptr;
  return it->second.get();
}

Guard* GuardStore::Complete(Version version) {
  for (auto& [id, guard] : guards_) {
    if (guard->phase == GuardPhase::kComplete && guard->version == version && !guard->dropped) {
      return guard.get();
    }
  }
  return nullptr;
}

std::vector<Guard*> GuardStore::All() {
  std::vector<Guard*> all;
  for (auto& [id, guard] : guards_) all.push_back(guard.get());
  return all;
}

// --- reading and sealing ---

absl::StatusOr<GuardRecord> ReadGuardRecord(GuardView view) {
  absl::StatusOr<GuardSeal> seal = view.CheckedSeal();
  if (!seal.ok()) return seal.status();
  const auto bytes = view.record().first(seal->record_bytes);
  if (const uint32_t crc = Crc32c(bytes); crc != seal->record_crc) {
    return WrongCrc(view, "record", seal->record_crc, crc);
  }
  GuardRecord record;
  if (!record.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError(
        fmt::format("guard {}: its record does not parse", view.geometry().guard_id));
  }
  if (record.min_reader() > kGuardRecordFormat) {
    return absl::DataLossError(
        fmt::format("guard {}: its record is for readers of format {}, not {}",
                    view.geometry().guard_id, record.min_reader(), kGuardRecordFormat));
  }
  for (const MemberDescription& description : record.descriptions()) {
    for (const SlabDescription& slab : description.slabs()) {
      if (slab.rank() < slab.world() && slab.world() <= kRanksMax) continue;
      return absl::DataLossError(fmt::format(
          "guard {}: its record has a slab of rank {} of {}, there are at most {} ranks",
          view.geometry().guard_id, slab.rank(), slab.world(), kRanksMax));
    }
  }
  return record;
}

absl::Status VerifyGuard(GuardView view) {
  absl::StatusOr<GuardGrant> grant = view.CheckedGrant();
  if (!grant.ok()) return grant.status();
  absl::StatusOr<GuardRecord> record = ReadGuardRecord(view);
  if (!record.ok()) return record.status();
  // It may have rotted since the record was read.
  const absl::StatusOr<GuardSeal> seal = view.CheckedSeal();
  if (!seal.ok()) return seal.status();
  const uint32_t parity_crc = Crc32c(view.parity_crc_table());
  if (parity_crc != seal->parity_crc_table_crc) {
    return WrongCrc(view, "table of parity CRCs", seal->parity_crc_table_crc, parity_crc);
  }
  const uint32_t input_crc = Crc32c(view.input_crc_table());
  if (input_crc != seal->input_crc_table_crc) {
    return WrongCrc(view, "table of input CRCs", seal->input_crc_table_crc, input_crc);
  }
  for (uint32_t chunk = 0; chunk < view.geometry().chunks; ++chunk) {
    const auto crcs = view.parity_crcs(chunk, grant->positions);
    for (uint64_t position = 0; position < grant->positions; ++position) {
      const uint32_t crc = Crc32c(view.block(chunk, position));
      if (crc == crcs[position]) continue;
      return WrongCrc(view, fmt::format("block {} of parity {}", position, chunk), crcs[position],
                      crc);
    }
  }
  return absl::OkStatus();
}

absl::Status SealGuard(GuardView view, Generation generation, const GuardRecord& record) {
  // Of 2 GiB or more protobuf would make nothing, without a word.
  const uint64_t needed = record.ByteSizeLong();
  const uint64_t most = std::min<uint64_t>(view.record().size(), std::numeric_limits<int>::max());
  if (needed > most) {
    return absl::ResourceExhaustedError(
        fmt::format("guard {}: its record needs {} bytes, the most are {}, the region has {}",
                    view.geometry().guard_id, needed, most, view.record().size()));
  }
  const std::string bytes = record.SerializeAsString();
  std::memcpy(view.record().data(), bytes.data(), bytes.size());
  GuardSeal seal;
  seal.generation = generation.value;
  seal.record_bytes = bytes.size();
  seal.record_crc = Crc32c(view.record().first(bytes.size()));
  seal.parity_crc_table_crc = Crc32c(view.parity_crc_table());
  seal.input_crc_table_crc = Crc32c(view.input_crc_table());
  SetBodyCrc(seal);
  view.header().seal = seal;
  view.set_state(generation, GuardState::kComplete);
  return absl::OkStatus();
}

}  // namespace unreft::smp
