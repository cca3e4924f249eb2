// Where the bytes are that a rank restores: the plan of its copies. It is computed on the work
// pool, since what a trainer asks for may be cut in any way.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "layout/tensor_table.h"
#include "smp/memory/memory_plan.h"
#include "smp/restore/earlier_library.h"
#include "smp/restore/restore_desk.h"

namespace unreft::smp {
namespace {

constexpr Duration kSameFailure = std::chrono::minutes(10);  // is not told again
constexpr size_t kPagePieces = 16 << 10;                     // about 1 MB

uint32_t NumberOf(Rank rank) { return static_cast<uint32_t>(rank.value); }

}  // namespace

// Shared with the pool, which alone touches it while it computes.
struct RestoreDesk::Planning {
  uint64_t request = 0;
  bool reads_pages = false;
  uint64_t restoring = 0;
  std::vector<TensorSpec> targets;
  std::shared_ptr<recovery::RestoreTables> tables;  // of all ranks that are planned for
  std::vector<uint32_t> preferred;
  std::map<Rank, WireSlot> here;  // the slabs that this node has
  absl::Status status = absl::UnknownError("not computed yet");
  std::vector<PlanSource> sources;
  std::vector<PlanPiece> pieces;  // in the order of their sources

  void Compute() {
    absl::StatusOr<std::vector<PlanPiece>> planned = Plan();
    status = planned.status();
    if (absl::IsFailedPrecondition(status) || absl::IsNotFound(status)) {
      status = absl::Status(status.code(),
                            fmt::format("{}; restore into tensors like those that were stored, or "
                                        "give that state up with 'unreft fresh-start'",
                                        std::string(status.message())));
    }
    sources.clear();
    pieces.clear();
    if (!status.ok()) return;
    pieces = *std::move(planned);
    for (const uint32_t number : recovery::NumberSources(pieces)) {
      const auto slot = here.find(Rank{number});
      sources.push_back({Rank{number}, slot == here.end() ? WireSlot{} : slot->second});
    }
  }
  bool IsAnyStaged() const { return std::ranges::any_of(sources, &PlanSource::is_staged); }

 private:
  absl::StatusOr<std::vector<PlanPiece>> Plan() const {
    const absl::StatusOr<layout::TensorTable> table = layout::TensorTable::Create(targets);
    if (!table.ok()) return table.status();
    return recovery::PlanRestore(*tables->For(table->specs()), table->specs(), preferred);
  }
};

// One plan of a rank is computed at a time, the one that it asked for last.
void RestoreDesk::OnPlanRequest(RankSession& session, PlanRequest request) {
  EndStaging(session);
  session.plan_request = request.request;
  session.plan_to_compute = std::move(request);
  if (!session.planning) StartPlanning(session);
}

void RestoreDesk::StartPlanning(RankSession& session) {
  PlanRequest request = *std::exchange(session.plan_to_compute, std::nullopt);
  auto planning = std::make_shared<Planning>();
  planning->request = request.request;
  planning->reads_pages = request.reads_pages;
  planning->targets = FromWire(std::move(request.tensors));
  for (const uint32_t target : request.allow_shape_mismatch) {
    if (target < planning->targets.size()) {
      planning->targets[target].allow_shape_mismatch = true;
      continue;
    }
    const absl::Status status = absl::InvalidArgumentError(
        fmt::format("tensor {} may have another shape: needed one of {} tensors", target,
                    planning->targets.size()));
    return SendPlan(session, {.request = planning->request, .status = status}, {});
  }
  ComputePlan(session, std::move(planning));
}

void RestoreDesk::ComputePlan(RankSession& session, std::shared_ptr<Planning> planning) {
  if (absl::Status status = GatherStored(session, *planning); !status.ok()) {
    return SendPlan(session, {.request = planning->request, .status = status}, {});
  }
  session.planning = true;
  state_.seams.pool.Submit(
      [planning] { planning->Compute(); }, state_.seams.executor,
      lifetime_.Bind([this, rank = session.rank(), life = session.life(), planning] {
        RankSession* asking = state_.SessionOf(rank);
        if (asking == nullptr || asking->life() != life) return;
        asking->planning = false;
        if (asking->plan_to_compute) return StartPlanning(*asking);
        if (asking->plan_request != planning->request) return;
        // A slot may have been given away meanwhile, or another decision made.
        if (!IsCurrent(planning->restoring) || !StillHas(*planning)) {
          return ComputePlan(*asking, planning);
        }
        TryPlan(*asking, planning, state_.seams.executor.Now() + state_.options.read_timeout);
      }));
}

absl::Status RestoreDesk::GatherStored(const RankSession& session, Planning& planning) {
  if (!IsRestoring(session)) return NothingDecidedFor(session);
  planning.restoring = restoring_->number;
  planning.tables = restoring_->catalog->tables();
  planning.preferred.clear();
  planning.here.clear();
  for (const Slot* slot : state_.slots->Sealed(restoring_->decision.version)) {
    if (restoring_->catalog->Find(slot->owner) == nullptr) continue;
    planning.here.try_emplace(slot->owner,
                              WireSlot{slot->id, slot->generation, slot->segment->name()});
  }
  // Slabs have the numbers of their ranks. The rank's own slab is taken first, wherever it is,
  // since replicas may differ; then those that this node has.
  if (OwnSlabOf(session) != nullptr) planning.preferred.push_back(NumberOf(session.rank()));
  for (const auto& [rank, slot] : planning.here) planning.preferred.push_back(NumberOf(rank));
  if (IsAlone() && planning.here.size() < SourceWorld()) planning.tables = TablesOf(planning.here);
  return absl::OkStatus();
}

// What rots while a job of one node restores is nowhere else.
std::shared_ptr<recovery::RestoreTables> RestoreDesk::TablesOf(
    const std::map<Rank, WireSlot>& here) const {
  auto tables = std::make_shared<recovery::RestoreTables>(here.size());
  layout::ManifestView view;
  for (const auto& [rank, slot] : here) {
    const auto manifest = restoring_->catalog->Find(rank)->manifest_bytes();
    const absl::Status status = view.Read(*manifest);
    UNREFT_CHECK(status.ok(), "it was read before: {}", status.ToString());
    const recovery::RestoreTables::Slab slabs[] = {{NumberOf(rank), manifest, &view}};
    tables->AddSlabs(slabs);
  }
  return tables;
}

bool RestoreDesk::StillHas(const Planning& planning) const {
  for (const auto& [rank, had] : planning.here) {
    const Slot* slot = SealedSlotOf(restoring_->decision.version, rank);
    if (slot == nullptr || slot->id != had.slot || slot->generation != had.generation) return false;
  }
  return true;
}

void RestoreDesk::TryPlan(RankSession& session, std::shared_ptr<Planning> planning, Time deadline) {
  Plan plan;
  plan.request = planning->request;
  absl::Status status = planning->status;
  if (status.ok()) status = NamePieces(session, *planning, plan);
  if (status.ok() && planning->IsAnyStaged()) {
    status = Stage(session, *planning, plan);
    // What an earlier process had staged goes with the mappings of trainers that still have it.
    if (absl::IsResourceExhausted(status) && state_.seams.executor.Now() < deadline) {
      state_.seams.executor.After(
          state_.options.memory_retry,
          lifetime_.Bind([this, rank = session.rank(), life = session.life(),
                          planning = std::move(planning), deadline]() mutable {
            RankSession* asking = state_.SessionOf(rank);
            if (asking == nullptr || asking->life() != life) return;
            if (asking->planning || asking->plan_request != planning->request) return;
            if (!IsCurrent(planning->restoring) || !StillHas(*planning)) {
              return ComputePlan(*asking, std::move(planning));
            }
            TryPlan(*asking, std::move(planning), deadline);
          }));
      return;
    }
  }
  if (!status.ok()) plan = {.request = planning->request, .status = status};
  SendPlan(session, plan, planning->pieces);
}

// Its pieces before it, in pages, if it says so of them.
void RestoreDesk::SendPlan(RankSession& session, const Plan& plan,
                           std::span<const PlanPiece> pieces) {
  session.plan_request.reset();
  for (size_t at = 0; at < plan.paged_pieces; at += kPagePieces) {
    const auto page = pieces.subspan(at, std::min(kPagePieces, pieces.size() - at));
    session.Send(PlanPage{plan.request, {page.begin(), page.end()}});
  }
  session.Send(plan);
  if (const absl::Status status = plan.status.ToStatus(); !status.ok()) {
    // Each attempt of the job may end so.
    state_.seams.log.WarnEvery(fmt::format("no plan: {}", std::string(status.message())),
                               kSameFailure, state_.seams.executor.Now(),
                               "rank {} does not restore: {}", session.rank(), status.message());
    return;
  }
  if (plan.staged_bytes == 0) return;
  restoring_->stagings.at(session.rank())->Start();
}

absl::Status RestoreDesk::NamePieces(const RankSession& session, const Planning& planning,
                                     Plan& plan) {
  if (planning.reads_pages) {
    plan.sources = planning.sources;
    plan.paged_pieces = planning.pieces.size();
    return absl::OkStatus();
  }
  const absl::Status status = NameRows(planning.sources, planning.pieces, plan);
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      fmt::format("rank {}: {}", session.rank(), std::string(status.message())));
}

absl::Status RestoreDesk::Stage(RankSession& session, const Planning& planning, Plan& plan) {
  for (const PlanSource& source : planning.sources) {
    if (!source.is_staged()) continue;
    const uint32_t block_bytes = restoring_->catalog->Find(source.rank)->head.block_bytes;
    if (block_bytes == state_.options.block_bytes) continue;
    return absl::FailedPreconditionError(
        fmt::format("rank {} was saved in blocks of {} bytes, this node has blocks of {}",
                    source.rank, block_bytes, state_.options.block_bytes));
  }
  const StagingOrder order{.request = planning.request,
                           .sources = planning.sources,
                           .pieces = planning.pieces,
                           .turns = TurnsOf(planning.sources),
                           .reads_pages = planning.reads_pages};
  if (absl::Status status = ProvideStaging(order); !status.ok()) return status;
  const std::shared_ptr<StagingPlaces>& places = state_.staging->places();
  auto staging = std::make_unique<Staging>(state_, session, *restoring_->reader, *Blocks(), order);
  plan.staging_segment = places->segment()->name();
  plan.staging_bytes = places->bytes();
  plan.staged_bytes = order.bytes();
  plan.block_bytes = static_cast<uint32_t>(state_.options.block_bytes);
  restoring_->stagings[session.rank()] = std::move(staging);
  return absl::OkStatus();
}

// What is lost comes first, for all nodes in the same order, since it is decoded once for all that
// ask for it at about the same time; then each begins with another node.
std::vector<uint32_t> RestoreDesk::TurnsOf(std::span<const PlanSource> sources) const {
  const uint64_t here = state_.options.node.value;
  const uint64_t nodes = state_.options.nodes;
  const auto turn = [&](uint32_t source) {
    const CatalogSlab& slab = *restoring_->catalog->Find(sources[source].rank);
    const uint64_t distance = slab.lost ? 0 : (slab.home.value + nodes - here) % nodes;
    return std::tuple(!slab.lost, distance, sources[source].rank);
  };
  std::vector<uint32_t> turns;
  for (uint32_t source = 0; source < sources.size(); ++source) {
    if (sources[source].is_staged()) turns.push_back(source);
  }
  std::ranges::sort(turns, {}, turn);
  return turns;
}

StagedBlocks* RestoreDesk::Blocks() {
  const std::shared_ptr<StagingPlaces>& places = state_.staging->places();
  if (places == nullptr) return nullptr;
  std::unique_ptr<StagedBlocks>& blocks = restoring_->blocks;
  if (blocks == nullptr || blocks->places() != places) {
    const bool is_any_lost = std::ranges::any_of(
        restoring_->catalog->slabs(), [](const auto& of_rank) { return of_rank.second.lost; });
    StagedBlocks::IsForOthers is_for_others = [this, &restoring = *restoring_](BlockId id) {
      return restoring.catalog->Find(id.rank)->lost &&
             restoring.reader->DecoderOf(id.rank, id.block) == state_.options.node;
    };
    blocks = std::make_unique<StagedBlocks>(
        state_.seams.executor,
        [&reader = *restoring_->reader](BlockId id, auto into, auto keep, auto done) {
          reader.Read(id.rank, id.block, into, std::move(keep), std::move(done));
        },
        places, is_any_lost ? std::move(is_for_others) : nullptr);
  }
  return blocks.get();
}

// On a node whose memory is new nobody has registered yet: what its ranks restore is what they had.
absl::Status RestoreDesk::ProvideStaging(const StagingOrder& order) {
  if (state_.staging->places() != nullptr) return absl::OkStatus();
  std::vector<uint64_t> state_bytes;
  for (const auto& [rank, session] : state_.sessions) {
    const CatalogSlab* const own = OwnSlabOf(*session);
    // Among another number of ranks nobody has said yet how large its part is: about like this one.
    state_bytes.push_back(own != nullptr ? StateBytes(own->manifest()->tensors) : order.bytes());
  }
  return state_.staging->Provide(StagingBytes(state_.options, state_bytes));
}

}  // namespace unreft::smp
