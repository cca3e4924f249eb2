#include "smp/restore/restore_desk.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "smp/protect/group_view.h"

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

absl::Status RestoredByOthers(Version version, uint64_t source_world, Rank rank, uint64_t world) {
  return absl::FailedPreconditionError(fmt::format(
      "version {} was saved by {} ranks, rank {} is one of {} and takes only what as many have "
      "saved: restart with {} ranks, or open the client with any_world, or give the state up with "
      "'unreft fresh-start'",
      version, source_world, rank, world, source_world));
}

// Of a session that has asked.
Asker AskerOf(const RankSession& session, NodeSlot here) {
  return {session.rank(), session.life(), *session.restore_request, here,
          session.restore_at_or_before};
}

// Whether it was made for the session's process, whatever that asked for since.
bool TakesPart(const RankSession& session, const JobDecision& decision, NodeSlot here) {
  // A leader of an earlier release does not write who asked.
  if (decision.asked.empty()) return session.attempt() == decision.attempt;
  const auto asked = decision.asked.find(session.rank());
  return asked != decision.asked.end() &&
         AreOneProcess(asked->second, {session.rank(), session.life(), 0, here});
}

}  // namespace

RestoreDesk::RestoreDesk(NodeState& state)
    : state_(state), verifier_(state.seams.executor, state.seams.pool, *state.slots) {}

RestoreDesk::~RestoreDesk() { state_.seams.executor.Cancel(retired_timer_); }

void RestoreDesk::Join(Cluster cluster) {
  cluster_.emplace(std::move(cluster));
  cluster_->server.set_decoded(
      [this](const ReadRequest& request, uint64_t bytes, SlabSource::ReadDone done) {
        if (restoring_ != nullptr && restoring_->decoded != nullptr) {
          return restoring_->decoded->OnRead(request, bytes, std::move(done));
        }
        done(absl::NotFoundError(fmt::format("node {} restores nothing", state_.options.node)));
      });
}

// --- asking ---

void RestoreDesk::OnRestoreRequest(RankSession& session, const RestoreRequest& request) {
  EndStaging(session);
  session.restore_request = request.request;
  session.takes_any_world = request.any_world;
  session.restore_at_or_before.reset();
  if (request.has_at_or_before) session.restore_at_or_before = request.at_or_before;
  // It asked this before, and the answer was lost or went to an earlier process of this daemon.
  if (!AsksForDecision(session)) return AnswerWaiting();
  AskFor(session);
}

void RestoreDesk::AskFor(const RankSession& like) {
  std::vector<Asker> asking;
  for (const auto& [rank, session] : state_.sessions) {
    if (AsksForDecision(*session) && session->attempt() == like.attempt() &&
        session->world() == like.world()) {
      asking.push_back(AskerOf(*session, state_.options.node));
    }
  }
  state_.coordinator->AskDecision(like.attempt(), like.world(), std::move(asking));
}

// Whether the session waits for this decision.
bool RestoreDesk::Waits(const RankSession& session, const JobDecision& decision) const {
  return session.restore_request && session.attempt() == decision.attempt &&
         IsFor(decision, AskerOf(session, state_.options.node));
}

// Not where one was made for it and is about to be told: nobody would take that question back.
bool RestoreDesk::AsksForDecision(const RankSession& session) const {
  return session.restore_request &&
         (restoring_ == nullptr || !Waits(session, restoring_->decision));
}

std::vector<HeldSlab> RestoreDesk::Inventory() const {
  std::vector<HeldSlab> slabs;
  for (Slot* slot : state_.slots->All()) {
    if (slot->phase != SlotPhase::kSealed) continue;
    slabs.push_back({{slot->version, slot->owner, slot->world}, slot->manifest});
  }
  return slabs;
}

std::vector<RottenSlab> RestoreDesk::RottenSlabs() const {
  std::vector<RottenSlab> slabs;
  for (const Slot* slot : state_.slots->All()) {
    // One that was found like that names no version that could be believed.
    if (slot->phase != SlotPhase::kQuarantined || slot->manifest == nullptr) continue;
    slabs.push_back({slot->version, slot->owner, slot->problem});
  }
  return slabs;
}

std::vector<WireSlot> RestoreDesk::SealedSlotsOf(Rank rank) const {
  std::vector<Slot*> sealed = state_.slots->OfRank(rank);
  std::erase_if(sealed, [](const Slot* slot) { return slot->phase != SlotPhase::kSealed; });
  std::sort(sealed.begin(), sealed.end(),
            [](const Slot* a, const Slot* b) { return a->version > b->version; });
  std::vector<WireSlot> slots;
  for (const Slot* slot : sealed) {
    slots.push_back({slot->id, slot->generation, slot->segment->name()});
  }
  return slots;
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
    for (auto& [rank, session] : state_.sessions) {
      if (!Waits(*session, decision)) continue;
      session->Send(AnswerFor(*session, decision));
      session->restore_request.reset();
    }
    return;
  }
  state_.seams.log.Info("decision: {} opens timeline {}", TextOf(decision), decision.timeline);
  // Those that the decision before was made for may live on: they take no part in what follows.
  // Others may be about to ask, or follow this one already, wherever they asked from.
  for (auto& [rank, session] : state_.sessions) {
    if (session->timeline == Timeline{} || session->timeline == decision.timeline ||
        TakesPart(*session, decision, state_.options.node)) {
      continue;
    }
    session->timeline = Timeline{};
    session->superseded = true;
  }
  TellReplaced(decision);
  Begin(decision);
  DropDeadVersions();
  AnswerWaiting();
}

// Those that were still to be told the decision before, which was not made for them again: nobody
// would answer them any more.
void RestoreDesk::TellReplaced(const JobDecision& by) {
  if (restoring_ == nullptr) return;
  for (auto& [rank, session] : state_.sessions) {
    if (!Waits(*session, restoring_->decision) || Waits(*session, by)) continue;
    const std::string why = fmt::format(
        "timeline {}, which was decided for it, ended before it was told: timeline {} of attempt "
        "{} follows it, and was asked for by other processes",
        restoring_->decision.timeline, by.timeline, by.attempt);
    state_.seams.log.Warn("rank {} restores nothing: {}", rank, why);
    JobDecision replaced;
    replaced.status = absl::AbortedError(fmt::format("rank {}: {}", rank, why));
    session->Send(AnswerFor(*session, replaced));
    session->restore_request.reset();
  }
}

// Whether the ranks can use it is not known yet.
std::string RestoreDesk::TextOf(const JobDecision& decision) {
  if (decision.kind == DecisionKind::kFresh) return "a fresh start";
  if (std::exchange(decided_, decision.version) == decision.version) {
    return fmt::format("version {} again, since nothing was committed after it,", decision.version);
  }
  return fmt::format("version {} is to be restored and", decision.version);
}

void RestoreDesk::Begin(const JobDecision& decision) {
  // The same again, for a later attempt: what is under way goes on.
  if (restoring_ != nullptr && restoring_->decision.kind == decision.kind &&
      restoring_->decision.version == decision.version &&
      restoring_->decision.holders == decision.holders) {
    restoring_->decision = decision;
    return;
  }
  Retire();
  restoring_ = std::make_unique<Restoring>();
  restoring_->number = ++restorings_;
  restoring_->decision = decision;
  if (decision.kind != DecisionKind::kRestored) return;
  // The ranks that asked have registered what they train, and mostly restore just that.
  recovery::WantedBoxes wanted;
  for (const auto& [rank, session] : state_.sessions) {
    if (session->registration != nullptr) wanted.Add(session->registration->table.specs());
  }
  restoring_->catalog = std::make_unique<RestoreCatalog>(
      state_, cluster_->peers, cluster_->job, decision, std::move(wanted), [this] { OnCatalog(); });
  if (restoring_->catalog->ready()) OnCatalog();
}

// Reads that are on their way still write to memory of the job.
void RestoreDesk::Retire() {
  if (restoring_ != nullptr && restoring_->reader != nullptr) {
    restoring_->stagings.clear();
    restoring_->reader->Cancel();
    retired_.push_back(std::move(restoring_));
  }
  restoring_.reset();
  std::erase_if(retired_, [](const auto& job) { return job->reader->idle(); });
  if (retired_.empty() || retired_timer_ != TimerId::kNone) return;
  retired_timer_ = state_.seams.executor.After(state_.options.read_retry, [this] {
    retired_timer_ = TimerId::kNone;
    std::unique_ptr<Restoring> current = std::move(restoring_);
    Retire();
    restoring_ = std::move(current);
  });
}

// Every rank has restored and trained on. What is not rebuilt by now is of no use, and the others
// may have given their part of it up.
void RestoreDesk::OnCommitted(Version version) {
  if (restoring_ != nullptr && restoring_->decision.version < version) Retire();
}

void RestoreDesk::OnCatalog() {
  restoring_->reader = std::make_unique<BlockReader>(
      state_, cluster_->peers, cluster_->job, *restoring_->catalog,
      [&server = cluster_->server](const ReadRequest& request, uint64_t bytes, auto done) {
        server.Read(request, bytes, std::move(done));
      });
  restoring_->decoded = std::make_unique<DecodedBlocks>(
      state_, *restoring_->reader, *restoring_->catalog,
      [this, number = restoring_->number] { return IsCurrent(number) ? Blocks() : nullptr; });
  if (IsLostHere() && !IsRestoredByAsMany()) {
    state_.seams.log.Info(
        "version {}: what node {} has lost of it is not rebuilt, since another number of ranks "
        "restores it: it is decoded for whoever reads it until the next commit",
        restoring_->decision.version, state_.options.node);
    return AnswerWaiting();
  }
  restoring_->rebuilder = std::make_unique<SlabRebuilder>(
      state_, *restoring_->reader, *restoring_->catalog, [this, number = restoring_->number] {
        if (IsCurrent(number)) OnRebuilt();
      });
  AnswerWaiting();
}

// Of the version's slabs those that lay on this node.
bool RestoreDesk::IsLostHere() const {
  return std::ranges::any_of(restoring_->catalog->slabs(), [&](const auto& of_rank) {
    return of_rank.second.lost && of_rank.second.home == state_.options.node;
  });
}

// Ranks of another number register slots of other sizes, and a node has memory for one of the two.
bool RestoreDesk::IsRestoredByAsMany() const {
  const auto& asked = restoring_->decision.asked;
  return asked.empty() || asked.size() == SourceWorld();
}

// This node's slabs are whole again; now its share of the group's protection.
void RestoreDesk::OnRebuilt() {
  cluster_->on_rebuilt();
  MakeShareAnew();
}

// What a superseded job learns is of its own catalog: the next one asks itself.
void RestoreDesk::MakeShareAnew() {
  if (cluster_->protector == nullptr) return;
  if (cluster_->protector->RecordOf(restoring_->decision.version) != nullptr) return;
  // The version may be of groups that this node was left out of, or that have no parities.
  const CommitRecord& commit = cluster_->job.commit.value;
  if (VersionOf(commit) == restoring_->decision.version) {
    const std::optional<GroupView> group = FindGroup(commit.groups(), state_.options.node);
    if (!group || group->shape.m == 0) return;
  }
  restoring_->reader->GroupRecordOf(
      state_.options.node, [this, number = restoring_->number](
                               absl::StatusOr<std::shared_ptr<const GuardRecord>> record) {
        if (!IsCurrent(number)) return;
        const Version version = restoring_->decision.version;
        if (absl::IsNotFound(record.status())) {
          // It was whole when it was decided, and nobody had guarded it.
          const auto group = restoring_->catalog->DescribeGroup(state_.options.node);
          if (!group) return;
          state_.seams.log.Info("version {}: nobody has guarded it yet: node {} does so now",
                                version, state_.options.node);
          return Remake(*group);
        }
        if (record.ok()) return Remake(**record);
        // As long as the decision stands: who has the record may come back.
        state_.seams.log.Error(
            "version {}: this node's share of its protection is not made anew yet: {}", version,
            record.status().message());
        state_.seams.executor.After(state_.options.read_retry, lifetime_.Bind([this, number] {
          if (IsCurrent(number)) MakeShareAnew();
        }));
      });
}

void RestoreDesk::Remake(const GuardRecord& record) {
  std::vector<uint64_t> description_bytes;
  for (const MemberSlab& member : record.members()) {
    description_bytes.push_back(restoring_->catalog->DescriptionBytesOf(member));
  }
  cluster_->protector->Remake(restoring_->decision.version, record, description_bytes);
}

void RestoreDesk::AnswerWaiting() {
  if (restoring_ == nullptr) return;
  if (restoring_->catalog != nullptr && !restoring_->catalog->ready()) return;
  for (auto& [rank, session] : state_.sessions) {
    if (Waits(*session, restoring_->decision)) Answer(*session);
  }
}

void RestoreDesk::Answer(RankSession& session) {
  session.timeline = restoring_->decision.timeline;
  session.superseded = false;
  session.Send(AnswerFor(session, restoring_->decision));
  session.restore_request.reset();
}

void RestoreDesk::OnSlotChange() {
  if (restoring_ != nullptr && restoring_->rebuilder != nullptr) restoring_->rebuilder->RunRules();
}

void RestoreDesk::OnSessionEnded(RankSession& session) {
  if (restoring_ != nullptr) restoring_->stagings.erase(session.rank());
  if (!session.restore_request) return;
  // Who is gone asks for nothing any more: a decision for it, when others have begun to train by
  // one of their own, would end their timeline.
  session.restore_request.reset();
  // Those that go on asking here are of one attempt.
  const auto other = std::ranges::find_if(
      state_.sessions, [this](const auto& of_rank) { return AsksForDecision(*of_rank.second); });
  AskFor(other == state_.sessions.end() ? session : *other->second);
}

// Versions that are not on the chain any more are dead for ever; captures of earlier timelines end.
void RestoreDesk::DropDeadVersions() {
  const recovery::TimelineChain& chain = state_.record->chain();
  for (Slot* slot : state_.slots->All()) {
    if (slot->phase == SlotPhase::kSealed && !chain.IsLive(slot->version)) {
      state_.slots->Free(*slot);
    } else if (slot->HasRotted() && !chain.IsLive(slot->version)) {
      state_.slots->Reuse(*slot);
    } else if (slot->phase == SlotPhase::kCapturing && slot->version.timeline != chain.newest()) {
      state_.slots->Abandon(*slot, slot->captured.has_value());
    }
  }
}

Slot* RestoreDesk::SealedSlotOf(Version version, Rank rank) const {
  for (Slot* slot : state_.slots->Sealed(version)) {
    if (slot->owner == rank) return slot;
  }
  return nullptr;
}

Decision RestoreDesk::AnswerFor(const RankSession& session, const JobDecision& decision) const {
  Decision answer;
  answer.request = *session.restore_request;
  answer.kind = decision.kind;
  answer.status = decision.status;
  answer.version = decision.version;
  answer.timeline = decision.timeline;
  if (decision.kind != DecisionKind::kRestored) return answer;

  answer.source_world = SourceWorld();
  answer.durable_copy = decision.durable_copy;
  if (absl::Status status = CheckIsThere(session, decision.version); !status.ok()) {
    answer.kind = DecisionKind::kFailed;
    answer.status = std::move(status);
    return answer;
  }
  std::set<std::string> named;
  if (const CatalogSlab* own = OwnSlabOf(session)) {
    answer.tensors = ToWire(own->manifest()->tensors);
    for (const TensorSpec& spec : own->manifest()->tensors) named.insert(spec.name);
    answer.extras = ExtrasOf(session.rank(), *own);
  }
  const auto stored = restoring_->catalog->tables()->Latest();
  for (const recovery::StoredTensor* tensor : stored->InOrder()) {
    if (!named.contains(tensor->like().name)) answer.tensors.push_back(WholeTensor(tensor->like()));
  }
  return answer;
}

// A slab is that of a rank's predecessor only among as many ranks: in another world the same number
// is another part of the state.
const CatalogSlab* RestoreDesk::OwnSlabOf(const RankSession& session) const {
  return session.world() == SourceWorld() ? restoring_->catalog->Find(session.rank()) : nullptr;
}

// Whether what the rank needs of the version was there when this was decided, and is there still.
absl::Status RestoreDesk::CheckIsThere(const RankSession& session, Version version) const {
  const bool is_same_world = session.world() == SourceWorld();
  if (!is_same_world && !session.takes_any_world) {
    return RestoredByOthers(version, SourceWorld(), session.rank(), session.world());
  }
  std::vector<Rank> needed;
  for (const auto& [rank, slab] : restoring_->catalog->slabs()) {
    if (!is_same_world) needed.push_back(rank);
  }
  if (is_same_world) needed.push_back(session.rank());
  for (const Rank rank : needed) {
    const bool is_known = restoring_->catalog->Find(rank) != nullptr;
    if (is_known && (!IsAlone() || SealedSlotOf(version, rank) != nullptr)) continue;
    return absl::DataLossError(
        fmt::format("rank {}: its slab of version {} does not verify any more", rank, version));
  }
  return absl::OkStatus();
}

WireExtras RestoreDesk::ExtrasOf(Rank rank, const CatalogSlab& slab) const {
  if (const Slot* slot = SealedSlotOf(restoring_->decision.version, rank)) {
    return {.slot = {slot->id, slot->generation, slot->segment->name()}};
  }
  return {.remote = slab.description->extras(),
          .remote_crc = slab.description->extras_crc(),
          .has_remote = true};
}

absl::Status RestoreDesk::NothingDecidedFor(const RankSession& session) {
  return absl::FailedPreconditionError(
      fmt::format("rank {}: nothing was decided for it to restore", session.rank()));
}

void RestoreDesk::OnExtrasRequest(RankSession& session, const ExtrasRequest& request) {
  Extras answer{.request = request.request};
  if (!IsRestoring(session)) {
    answer.status = NothingDecidedFor(session);
  } else if (const CatalogSlab* slab = restoring_->catalog->Find(request.rank)) {
    answer.extras = ExtrasOf(request.rank, *slab);
  } else {
    answer.status = absl::OutOfRangeError(
        fmt::format("the extras of rank {}: version {} was saved by {} ranks", request.rank,
                    restoring_->decision.version, SourceWorld()));
  }
  session.Send(answer);
}

// Whether what was decided is known, and that rank restores it.
bool RestoreDesk::IsRestoring(const RankSession& session) const {
  return restoring_ != nullptr && restoring_->decision.kind == DecisionKind::kRestored &&
         restoring_->catalog->ready() && session.timeline.value != 0 &&
         session.timeline == restoring_->decision.timeline;
}

// --- the bytes (their places: restore_desk_planning.cc) ---

// To be told by the trainer alone, which copies nothing of it any more.
void RestoreDesk::EndStaging(RankSession& session) {
  state_.staging->OnTrainerDone(session.life());
  if (restoring_ == nullptr) return;
  const auto it = restoring_->stagings.find(session.rank());
  if (it == restoring_->stagings.end()) return;
  it->second->OnTrainerDone();
  restoring_->stagings.erase(it);
}

void RestoreDesk::OnStagedDone(RankSession& session, const StagedDone& done) {
  if (restoring_ == nullptr) return;
  const auto it = restoring_->stagings.find(session.rank());
  if (it != restoring_->stagings.end()) it->second->OnDone(done);
}

void RestoreDesk::OnRestoreDone(RankSession& session, const RestoreDone& done) {
  EndStaging(session);
  session.plan_request.reset();
  const absl::Status status = done.status.ToStatus();
  if (status.ok()) return;
  state_.seams.log.Error("rank {}: its restore failed: {}", session.rank(), status.message());
  Slot* slot = state_.slots->Find(done.bad_slot, done.bad_generation);
  if (slot == nullptr || slot->phase != SlotPhase::kSealed) return;
  // Not on a trainer's word alone: its own memory may be at fault.
  verifier_.Verify({slot}, [](absl::Status) {});
}

}  // namespace unreft::smp
