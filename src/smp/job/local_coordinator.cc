#include "smp/job/local_coordinator.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/format.h"
#include "smp/job/refusals.h"
#include "smp/job/replica_comparison.h"

namespace unreft::smp {
namespace {

constexpr size_t kPendingMax = 64;

}  // namespace

LocalCoordinator::LocalCoordinator(Executor& executor, NodeRecord& record, Node& node, Log& log,
                                   const NodeOptions& options, FaultPoints* faults)
    : executor_(executor),
      record_(record),
      node_(node),
      log_(log),
      options_(options),
      faults_(faults),
      pin_clock_(executor, [this] { KeepPins(); }) {}

LocalCoordinator::~LocalCoordinator() {
  if (round_) executor_.Cancel(round_->deadline);
  for (auto& [version, pending] : pending_) executor_.Cancel(pending.deadline);
}

// --- deciding what is restored (docs/protocol.md, rule 21) ---

void LocalCoordinator::AskDecision(Attempt attempt, uint64_t world, std::vector<Asker> askers) {
  if (round_ && (round_->attempt != attempt || round_->world != world) && !round_->deciding) {
    executor_.Cancel(round_->deadline);
    round_.reset();
  }
  if (!round_) {
    round_ = Round{attempt, world, {}, TimerId::kNone, false};
    round_->deadline = executor_.After(options_.restore_wait, [this] { Deadline(); });
  }
  if (round_->deciding) return;
  round_->asked.clear();
  for (const Asker& asker : askers) round_->asked[asker.rank] = asker.life;
  if (round_->asked.size() == world) Decide();
}

void LocalCoordinator::Deadline() {
  round_->deadline = TimerId::kNone;
  if (round_->deciding) return;
  JobDecision decision;
  std::set<Rank> ranks;
  for (const auto& [rank, life] : round_->asked) ranks.insert(rank);
  decision.status = RanksMissing(round_->attempt, round_->world, ranks, options_.restore_wait);
  EndRound(std::move(decision));
}

void LocalCoordinator::Decide() {
  round_->deciding = true;
  executor_.Cancel(round_->deadline);
  round_->deadline = TimerId::kNone;
  node_.CloseTimeline(lifetime_.Bind([this] { Choose(absl::OkStatus()); }));
}

void LocalCoordinator::Choose(absl::Status last_failure) {
  const std::vector<recovery::SealedSlab> slabs = Slabs();
  std::vector<Version> whole = recovery::WholeVersions(slabs, record_.chain());
  std::erase_if(whole, [&](Version version) {
    const absl::Status status = CheckLayouts(version);
    if (!status.ok()) log_.Warn("version {} is no candidate: {}", version, status.message());
    return !status.ok();
  });
  if (whole.empty()) return NothingWhole(last_failure);
  const Version newest = whole.front();
  for (const recovery::SealedSlab& slab : slabs) {
    if (slab.version != newest || slab.world == round_->world) continue;
    JobDecision decision;
    decision.status = OtherWorld(newest, slab.world, round_->attempt, round_->world);
    return EndRound(std::move(decision));
  }
  TryVersion(newest);
}

std::vector<recovery::SealedSlab> LocalCoordinator::Slabs() const {
  std::vector<recovery::SealedSlab> slabs;
  for (const HeldSlab& held : node_.Inventory()) slabs.push_back(held.slab);
  return slabs;
}

absl::Status LocalCoordinator::CheckLayouts(Version version) {
  ManifestsByRank manifests;
  for (const HeldSlab& held : node_.Inventory()) {
    if (held.slab.version == version) manifests[held.slab.rank] = held.manifest;
  }
  return layouts_.Check(manifests);
}

void LocalCoordinator::TryVersion(Version version) {
  node_.Verify(version, lifetime_.Bind([this, version](absl::Status status) {
    if (status.ok()) {
      // What was found bad before it was asked for is not read again.
      const std::vector<Version> whole = recovery::WholeVersions(Slabs(), record_.chain());
      const bool is_whole = std::find(whole.begin(), whole.end(), version) != whole.end();
      return is_whole ? Restore(version) : Choose(absl::OkStatus());
    }
    log_.Error("version {} does not verify: {}; looking for an older one", version,
               status.message());
    Choose(std::move(status));
  }));
}

void LocalCoordinator::Restore(Version version) {
  JobDecision decision;
  decision.kind = DecisionKind::kRestored;
  decision.version = version;
  decision.timeline = TimelineOn(version);
  record_.SetCommitted(version, round_->world);
  (void)CheckFault(faults_, "node.decision");
  EndRound(std::move(decision));
}

void LocalCoordinator::NothingWhole(const absl::Status& last_failure) {
  if (record_.committed_world() == 0) return FreshStart();
  JobDecision decision;
  decision.status = Unrecoverable(
      record_.committed(), record_.committed_world(), "this node's",
      {recovery::DescribeMissing(Slabs(), record_.chain()), std::string(last_failure.message())});
  EndRound(std::move(decision));
}

void LocalCoordinator::FreshStart() {
  JobDecision decision;
  decision.kind = DecisionKind::kFresh;
  decision.timeline = TimelineOn(Version{});
  EndRound(std::move(decision));
}

// Until a capture begins in a timeline, asking again is the same decision for the same processes.
// For others it opens another: somebody who was told of this one may live on.
Timeline LocalCoordinator::TimelineOn(Version parent) {
  const Timeline newest = record_.chain().newest();
  const bool again = round_->asked == decided_for_ && !record_.capture_began();
  if (again && record_.chain().ParentOf(newest) == parent) return newest;
  decided_for_ = round_->asked;
  return record_.OpenTimeline(parent);
}

void LocalCoordinator::EndRound(JobDecision decision) {
  executor_.Cancel(round_->deadline);
  decision.attempt = round_->attempt;
  round_.reset();
  if (decision.status.ok()) {
    for (auto& [version, pending] : pending_) executor_.Cancel(pending.deadline);
    pending_.clear();
    given_up_through_ = Step{};
    newest_steps_ = NewestSteps(decision.version.step);
  }
  node_.OnDecision(decision);
  KeepPins();
}

void LocalCoordinator::AskEverCommitted(EverCommittedDone done) {
  executor_.Post(
      [ever = record_.committed_world() != 0, done = std::move(done)]() mutable { done(ever); });
}

void LocalCoordinator::DeclareFreshStart(bool force, FreshStartDone done) {
  absl::StatusOr<Timeline> opens = FreshStartUnderRanks(node_.RanksServed());
  if (force || node_.RanksServed() == 0) {
    log_.Warn("{}", FreshStartDeclared(options_.node, record_.committed(), node_.RanksServed()));
    record_.DeclareFreshStart();
    decided_for_.clear();  // the next decision opens another in any case
    KeepPins();
    opens = Timeline{record_.chain().newest().value + 1};
  }
  executor_.Post(
      [opens = std::move(opens), done = std::move(done)]() mutable { done(std::move(opens)); });
}

// --- what is kept for somebody ---

void LocalCoordinator::Start() {
  pin_clock_.Follow(record_.pins());
  node_.OnPins(record_.pins());
}

void LocalCoordinator::AskPins(PinRequest request, PinDone done) {
  PinRecord pins = record_.pins();
  absl::StatusOr<PinReply> reply =
      ChangePins(request, record_.committed(), record_.committed_world(), options_.pins, pins);
  if (!reply.ok()) {
    return executor_.Post(
        [status = reply.status(), done = std::move(done)]() mutable { done(std::move(status)); });
  }
  SetPins(std::move(pins),
          [reply = *std::move(reply), done = std::move(done)](absl::Status status) mutable {
            if (status.ok()) return done(std::move(reply));
            done(absl::Status(status.code(), fmt::format("it holds as long as this unreftd lives, "
                                                         "since it was not written: {}",
                                                         status.message())));
          });
}

// They hold at once; `done` when also the next process of the daemon knows them.
void LocalCoordinator::SetPins(PinRecord pins, absl::AnyInvocable<void(absl::Status)> done) {
  record_.SetPins(std::move(pins), std::move(done));
  pin_clock_.Follow(record_.pins());
  node_.OnPins(record_.pins());
}

void LocalCoordinator::KeepPins() {
  PinRecord pins = record_.pins();
  if (DropPins(pin_clock_.over(), record_.chain(), pins)) SetPins(std::move(pins), [](auto) {});
}

// --- committing and giving up ---

bool LocalCoordinator::IsOfInterest(Version version) const {
  return version.timeline == record_.chain().newest() && version > record_.committed();
}

LocalCoordinator::Pending& LocalCoordinator::PendingOf(Version version) {
  auto [it, is_new] = pending_.try_emplace(version);
  if (is_new) {
    it->second.deadline = executor_.After(options_.version_deadline, [this, version] {
      const std::string why = DescribeUnsealed(version);
      ++deadlines_used_;
      log_.Warn("version {} is given up by its deadline: {}", version, why);
      Fail(version, why);
    });
  }
  return it->second;
}

std::string LocalCoordinator::DescribeUnsealed(Version version) const {
  const Pending& pending = pending_.at(version);
  std::set<Rank> sealed;
  for (const auto& [rank, digests] : pending.sealed) sealed.insert(rank);
  return NotCompletedBy(sealed, pending.world, options_.version_deadline);
}

void LocalCoordinator::CheckRegistrations() {
  executor_.Post(lifetime_.Bind([this] {
    const std::vector<RegisteredTrainer> trainers = node_.Registrations();
    RegistrationCheck check;
    for (const RegisteredTrainer& trainer : trainers) {
      check.layouts[trainer.rank] = trainer.registration->plan.digest();
    }
    check.status = CheckTrainers(trainers);
    node_.OnRegistrationsChecked(check);
  }));
}

absl::Status LocalCoordinator::CheckTrainers(const std::vector<RegisteredTrainer>& trainers) {
  ManifestsByRank manifests;
  for (const RegisteredTrainer& trainer : trainers) {
    if (trainers.size() != trainer.world) return absl::OkStatus();
    manifests[trainer.rank] =
        std::make_shared<const layout::SlotManifest>(ManifestOf(*trainer.registration));
  }
  return layouts_.Check(manifests);
}

void LocalCoordinator::ReportClaimed(Version version, Rank rank) {
  if (!IsOfInterest(version)) return;
  newest_steps_.Note(rank.value, version.step);
  if (IsGivenUp(version)) return Abandon(version, "it was given up before");
  PendingOf(version);
}

void LocalCoordinator::ReportSealed(Version version, Rank rank, uint64_t world,
                                    ReplicaDigests digests) {
  if (!IsOfInterest(version)) return Abandon(version, std::string(kOfNoUse));
  newest_steps_.Note(rank.value, version.step);
  if (IsGivenUp(version)) return Abandon(version, "it was given up before");
  Pending& pending = PendingOf(version);
  pending.world = world;
  pending.sealed[rank] = std::move(digests);
  if (pending.sealed.size() < world) return;
  const ReplicaComparison replicas = CompareReplicas(pending.sealed);
  if (!replicas.disagreement.empty()) {
    Fail(version, replicas.disagreement);
    node_.OnReplicasDisagree(replicas.disagreement);
    return;
  }
  if (!replicas.complete && MustCompareReplicas()) {
    return Fail(version, std::string(kReplicasNotCompared));
  }
  if (absl::Status status = CheckLayouts(version); !status.ok()) {
    return Fail(version, std::string(status.message()));
  }
  if (!pending.failure) Commit(version);
}

void LocalCoordinator::ReportFailed(Version version, Rank rank, const std::string& reason) {
  if (!IsOfInterest(version)) return;
  newest_steps_.Note(rank.value, version.step);
  if (!IsGivenUp(version)) Fail(version, fmt::format("rank {}: {}", rank, reason));
}

void LocalCoordinator::Commit(Version version) {
  record_.SetCommitted(version, pending_.at(version).world);
  (void)CheckFault(faults_, "node.commit");
  Forget(version);
  std::vector<Version> older;
  for (const auto& [candidate, pending] : pending_) {
    if (candidate < version) older.push_back(candidate);
  }
  for (Version candidate : older) Abandon(candidate, OverruledBy(version));
  node_.OnCommitted(version);
}

bool LocalCoordinator::IsGivenUp(Version version) const {
  return version.timeline == record_.chain().newest() && version.step <= given_up_through_;
}

void LocalCoordinator::Fail(Version version, std::string reason) {
  // Whoever names steps that nobody comes near must not fill the memory.
  if (version.step > newest_steps_.Believed()) return Abandon(version, reason);
  Pending& pending = PendingOf(version);
  if (!pending.failure) pending.failure = std::move(reason);
  GiveUpFailed();
}

void LocalCoordinator::GiveUpFailed() {
  std::vector<StepUnderWay> steps;
  for (const auto& [version, pending] : pending_) steps.push_back({version.step, pending.failure});
  // All ranks hear of it at once.
  constexpr uint64_t kLead = 1;
  const std::optional<GivingUp> giving_up = WhatToGiveUp(steps, newest_steps_.Believed(), kLead);
  if (giving_up) given_up_through_ = giving_up->through;
  std::map<Version, std::string> over;
  for (const auto& [version, pending] : pending_) {
    const bool is_one_too_many = pending.failure && pending_.size() - over.size() > kPendingMax;
    if (!IsGivenUp(version) && !is_one_too_many) continue;
    over[version] = pending.failure.value_or(giving_up ? giving_up->reason : "");
  }
  for (const auto& [version, reason] : over) Abandon(version, reason);
  node_.OnCaptureFrom({record_.chain().newest(), Step{given_up_through_.value + 1}});
}

void LocalCoordinator::Abandon(Version version, const std::string& reason) {
  Forget(version);
  node_.OnAbandoned(version, reason);
}

void LocalCoordinator::Forget(Version version) {
  const auto it = pending_.find(version);
  if (it == pending_.end()) return;
  executor_.Cancel(it->second.deadline);
  pending_.erase(it);
}

// Until a version of this timeline was committed nobody knows whether the replicas are equal.
bool LocalCoordinator::MustCompareReplicas() const {
  return options_.replica_check_every != 0 &&
         record_.committed().timeline != record_.chain().newest();
}

}  // namespace unreft::smp
