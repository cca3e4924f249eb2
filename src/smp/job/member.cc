#include "smp/job/member.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "layout/manifest.h"
#include "smp/core/pace.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {
namespace {

// A version's entry of a report, made when it is not there yet.
VersionHolding& EntryOf(std::map<Version, VersionHolding>& versions, Version version) {
  VersionHolding& entry = versions[version];
  SetVersion(version, entry);
  return entry;
}

}  // namespace

Member::Member(Seams seams, NodeRecord& record, Node& node, const NodeOptions& options)
    : seams_(seams),
      record_(record),
      node_(node),
      options_(options),
      store_(seams.kv, seams.executor, seams.random, seams.log, options.job, [this] { Follow(); }),
      seat_(seams.kv, seams.executor, seams.log, store_, record, options, seams.transport.address(),
            {.on_presence = [this] { Follow(); },
             .on_leadership = [this] { Follow(); },
             .on_standing = [this](const Standing& standing) { node_.OnStanding(standing); },
             .on_refused = [this](const absl::Status& why) { node_.OnRefused(why); },
             .probe =
                 [this](const std::string& address, absl::AnyInvocable<void(bool)> done) {
                   peers_.Probe(address, options_.presence_ttl, std::move(done));
                 }}),
      refused_(seams.log, store_.state()),
      peers_(seams.transport, store_.state(), options.job, options.node, record.incarnation(),
             [this] { store_.ReadAgain(); }),
      calls_(seams.executor, store_, peers_, options),
      leading_({seams.executor, store_, seat_, peers_, seams.log, seams.faults}, options),
      ever_asked_(seams.executor, store_, record, options) {}

Member::~Member() {
  seams_.executor.Cancel(report_soon_);
  seams_.executor.Cancel(report_later_);
}

void Member::Start(Protection& protection) {
  protection_ = &protection;
  versions_ = std::make_unique<OwnVersions>(record_, store_.state(), node_, protection);
  follower_ = std::make_unique<Follower>(store_.state(), record_, *versions_, node_, protection,
                                         [this] { Report(); });
  Serve();
  store_.Start();
}

// --- what the node's desks say ---

void Member::AskDecision(Attempt attempt, uint64_t world, std::vector<Asker> askers) {
  follower_->Ask({attempt, world, std::move(askers)});
  Report();
}

void Member::ReportClaimed(Version version, Rank rank) {
  if (!versions_->OnClaimed(version, rank)) return;
  protection_->OnClaimed(version);
  Report();
}

void Member::ReportSealed(Version version, Rank rank, uint64_t, ReplicaDigests) {
  if (!versions_->OnSealed(version, rank)) return;
  protection_->OnSealed(version);
  Report();
}

void Member::ReportFailed(Version version, Rank rank, const std::string& reason) {
  if (versions_->OnFailed(version, rank, reason)) Report();
}

// --- what the job has decided ---

void Member::Follow() {
  peers_.Follow();
  seat_.Follow(node_.RanksServed());
  leading_.Follow();
  if (!store_.ready()) return;
  refused_.Follow();
  // What is on its way to an earlier leader is not waited for.
  if (report_to_leader_ != LeaderNow()) report_running_ = false;
  follower_->Follow();
  protection_->OnJobChange();
  ever_asked_.Follow();
  Report();
  leading_.RunRules();
}

meta::HeldKey Member::LeaderNow() const {
  return {store_.state().leader_created, store_.state().leader_value};
}

// --- what this node says ---

void Member::Report() {
  report_wanted_ = true;
  if (report_running_ || report_soon_ != TimerId::kNone || protection_ == nullptr) return;
  // In a turn of its own, and not too soon: what happens until then is told at once.
  const Time now = seams_.executor.Now();
  const Time next = reported_at_ ? *reported_at_ + PaceOf(options_.nodes) : now;
  report_soon_ = seams_.executor.After(std::max(next - now, Duration{}), [this] {
    report_soon_ = TimerId::kNone;
    SendReport();
  });
}

void Member::ReportLater(Duration delay) {
  seams_.executor.Cancel(report_later_);
  report_later_ = seams_.executor.After(delay, [this] {
    report_later_ = TimerId::kNone;
    Report();
  });
}

void Member::SendReport() {
  report_wanted_ = false;
  reported_at_ = seams_.executor.Now();
  seams_.executor.Cancel(std::exchange(report_later_, TimerId::kNone));
  seat_.Follow(node_.RanksServed());
  const meta::JobState& state = store_.state();
  if (!store_.ready() || !state.leader.exists() || !seat_.is_present()) {
    node_.OnObstacle("");  // what a leader said before may be over
    return ReportLater(options_.report_interval);
  }
  report_running_ = true;
  NodeReport report = MakeReport();
  report_sent_ = ++report_number_;
  report.set_number(report_sent_);
  report_to_leader_ = LeaderNow();
  const std::string bytes = report.SerializeAsString();
  peers_.Call(NodeSlot{state.leader.value.slot()}, "report", bytes, options_.call_timeout,
              lifetime_.Bind([this, report = std::move(report)](absl::StatusOr<std::string> reply) {
                if (report.number() != report_sent_) return;
                report_running_ = false;
                const bool is_open = reply.ok() && OnReportReply(report, *reply);
                if (report_wanted_) return Report();
                ReportLater(is_open ? options_.report_interval / 10 : options_.report_interval);
              }));
}

bool Member::OnReportReply(const NodeReport& report, const std::string& bytes) {
  ReportReply reply;
  if (!reply.ParseFromString(bytes)) {
    seams_.log.WarnEvery("report", std::chrono::seconds(10), seams_.executor.Now(),
                         "the leader's answer to a report, of {} bytes, is of no use",
                         bytes.size());
    return false;
  }
  node_.OnObstacle(CleanText(reply.obstacle(), kTextBytesMax));
  const auto state = static_cast<RegistrationState>(reply.registrations());
  if (state == RegistrationState::kLooking) return true;
  RegistrationCheck check;
  for (const RegisteredRank& rank : report.registered()) {
    check.layouts[Rank{rank.rank()}] = rank.layout_digest();
  }
  if (state == RegistrationState::kMisfit) {
    check.status = absl::FailedPreconditionError(CleanText(reply.misfit(), kTextBytesMax));
  }
  node_.OnRegistrationsChecked(check);
  return state == RegistrationState::kMisfit;
}

NodeReport Member::MakeReport() const {
  NodeReport report;
  report.set_session(record_.session().value);
  report.set_incarnation(AsBytes(record_.incarnation()));
  report.set_round_applied(follower_->round_applied());
  report.set_round_closed(follower_->round_closed());
  report.set_newest_timeline(record_.chain().newest().value);
  report.set_capture_began(record_.capture_began());
  for (const recovery::TimelineOrigin& origin : record_.chain().origins()) {
    TimelineEntry& entry = *report.add_chain();
    entry.set_timeline(origin.timeline.value);
    entry.set_parent_timeline(origin.parent.timeline.value);
    entry.set_parent_step(origin.parent.step.value);
  }
  report.set_committed_timeline(record_.committed().timeline.value);
  report.set_committed_step(record_.committed().step.value);
  report.set_committed_world(record_.committed_world());
  report.set_view(record_.view());
  report.set_captures_all(record_.captures_all());
  report.set_newest_step(versions_->newest_step().value);
  std::map<Version, VersionHolding> versions;
  for (const HeldSlab& held : node_.Inventory()) {
    SealedRank& sealed = *EntryOf(versions, held.slab.version).add_sealed();
    sealed.set_rank(held.slab.rank.value);
    sealed.set_world(held.slab.world);
    sealed.set_layout_digest(held.manifest->layout_digest);
    sealed.set_capture_mode(static_cast<uint32_t>(held.manifest->capture_mode));
    // Of what is committed they were compared.
    if (held.slab.version > record_.committed()) SetDigests(DigestsOf(*held.manifest), sealed);
  }
  for (const GuardHeld& guard : protection_->Held()) {
    VersionHolding& entry = EntryOf(versions, guard.version);
    entry.set_guarded(guard.complete);
    entry.set_coding(guard.coding);
    entry.set_data_chunks(guard.data_chunks);
    for (const auto& [slot, incarnation] : guard.encoded) {
      EncodedMember& member = *entry.add_encoded();
      member.set_slot(slot.value);
      member.set_incarnation(incarnation);
    }
    for (const ReplicaHeld& replica : guard.replicas) {
      ReplicaHolding& next = *entry.add_replicas();
      next.set_slot(replica.of.value);
      for (const Rank rank : replica.ranks) next.add_ranks(rank.value);
      next.set_world(replica.world);
    }
  }
  for (const RegisteredTrainer& trainer : node_.Registrations()) {
    RegisteredRank& registered = *report.add_registered();
    registered.set_rank(trainer.rank.value);
    registered.set_world(trainer.world);
    registered.set_attempt(trainer.attempt.value);
    registered.set_layout_digest(trainer.registration->plan.digest());
    if (trainer.passed) registered.set_passed_step(trainer.passed->value);
    for (const Step step : trainer.capturing) registered.add_capturing(step.value);
  }
  report.set_ranks(node_.RanksServed());
  for (const auto& [version, failure] : versions_->failures()) {
    EntryOf(versions, version).set_failure(failure);
  }
  for (auto& [version, why] : protection_->Failures()) EntryOf(versions, version).set_failure(why);
  for (const RottenSlab& slab : node_.RottenSlabs()) {
    if (!versions_->MayBeCommitted(slab.version)) continue;
    EntryOf(versions, slab.version)
        .set_failure(fmt::format("rank {}: {}", slab.rank, slab.problem));
  }
  for (auto& [version, entry] : versions) *report.add_versions() = std::move(entry);
  if (const auto& waiting = follower_->asking()) {
    report.set_attempt(waiting->attempt.value);
    report.set_world(waiting->world);
    for (const Asker& asker : waiting->askers) {
      AskingRank& asking = *report.add_asking();
      asking.set_rank(asker.rank.value);
      asking.set_pid(asker.life.pid);
      asking.set_start_time(asker.life.start_time);
      asking.set_request(asker.request);
    }
  }
  return report;
}

}  // namespace unreft::smp
