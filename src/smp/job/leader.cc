#include "smp/job/leader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "smp/core/pace.h"
#include "smp/job/cluster_records.h"
#include "smp/job/job_settings.h"
#include "smp/job/refusals.h"
#include "smp/job/report_checks.h"

namespace unreft::smp {
namespace {

constexpr uint64_t kRefusedMax = 4;

// Whether both are of one process, and name the same registrations.
bool HaveSameRanks(const NodeReport& a, const NodeReport& b) {
  return a.session() == b.session() && a.incarnation() == b.incarnation() &&
         std::ranges::equal(a.registered(), b.registered(), [](const auto& x, const auto& y) {
           return x.rank() == y.rank() && x.world() == y.world() && x.attempt() == y.attempt() &&
                  x.layout_digest() == y.layout_digest();
         });
}

}  // namespace

Leader::Leader(Executor& executor, meta::JobStore& store, Peers& peers, Log& log,
               const NodeOptions& options, meta::HeldKey leadership, FaultPoints* faults)
    : executor_(executor),
      store_(store),
      peers_(peers),
      log_(log),
      options_(options),
      leadership_(std::move(leadership)),
      faults_(faults),
      pin_clock_(executor, [this] { RunRules(); }),
      standstill_(log),
      layouts_(peers, log, options, [this] { RunRules(); }) {}

Leader::~Leader() {
  RefusePins();
  executor_.Cancel(rules_timer_);
  executor_.Cancel(ask_deadline_);
  executor_.Cancel(give_up_timer_);
  for (auto& [slot, timer] : absences_) executor_.Cancel(timer);
  for (auto& [version, pending] : pending_) executor_.Cancel(pending.deadline);
}

absl::StatusOr<ReportReply> Leader::OnReport(NodeSlot from, NodeReport report) {
  if (absl::Status status = CheckReport(report); !status.ok()) {
    log_.WarnEvery("report", kWarnEvery, executor_.Now(), "the report of node {} is not taken: {}",
                   from, status.message());
    return status;
  }
  const auto present = store_.state().present.find(from);
  if (present == store_.state().present.end() ||
      present->second.incarnation() != report.incarnation() ||
      present->second.session() != report.session()) {
    // If that goes on it is we who have missed something.
    if (++refused_[from] % kRefusedMax == 0) store_.ReadAgain();
    return absl::FailedPreconditionError(fmt::format(
        "the leader does not see this life of node {} (session {})", from, report.session()));
  }
  refused_.erase(from);
  const NodeReport* newest = board_.Of(from);
  const bool is_late = newest != nullptr && newest->session() == report.session() &&
                       newest->incarnation() == report.incarnation() &&
                       newest->number() >= report.number();
  if (!is_late) {
    const bool registers_anew = newest == nullptr || !HaveSameRanks(*newest, report);
    layouts_.OnReport(registers_anew);
    board_.Take(from, std::move(report));
    // The fastest rank may be of whoever tells last.
    const bool have_all_told = board_.reports().size() >= store_.state().present.size();
    if (have_all_told) pace_.Note(NewestStep(), executor_.Now());
    RunRules();
  }
  ReportReply reply = layouts_.Found(store_.state().view.value.number());
  reply.set_obstacle(standstill_.obstacle());
  return reply;
}

void Leader::RunRules() {
  if (rules_timer_ != TimerId::kNone) return;
  const Time now = executor_.Now();
  const Time next = ran_rules_at_ ? *ran_rules_at_ + PaceOf(options_.nodes) : now;
  if (next <= now) return RunRulesNow();
  rules_timer_ = executor_.After(next - now, [this] {
    rules_timer_ = TimerId::kNone;
    RunRulesNow();
  });
}

void Leader::RunRulesNow() {
  ran_rules_at_ = executor_.Now();
  if (writing_ || !store_.ready()) return;
  // A daemon that is started otherwise than the job may lead until it has found that out.
  const meta::Stored<SettingsRecord>& settings = store_.state().settings;
  if (settings.exists() && !DifferencesFrom(settings.value, options_).empty()) return;
  CheckRegistrations();
  StartNext();
  WatchCommits();
}

void Leader::StartNext() {
  if (KeepView()) return;
  if (!store_.state().view.exists()) return;
  if (SeedRecords()) return;
  if (KeepPins()) return;
  if (DecideRestore()) return;
  if (store_.state().timeline.value.closing()) return;
  if (GiveUpFailed()) return;
  CommitNewest();
}

bool Leader::Write(meta::JobChange change, const char* fault_point) {
  writing_ = true;
  store_.Write(leadership_, std::move(change),
               lifetime_.Bind([this, fault_point](absl::Status status) {
                 // After a failure the watch brings what is there now, and the rules run again.
                 writing_ = false;
                 if (status.ok()) announced_.clear();
                 write_failure_ = absl::IsAborted(status) ? absl::OkStatus() : status;
                 if (!status.ok()) {
                   log_.WarnEvery("write", kWarnEvery, executor_.Now(),
                                  "leader: a record was not written: {}", status.message());
                 }
                 if (status.ok() && fault_point != nullptr) (void)CheckFault(faults_, fault_point);
                 executor_.After(status.ok() ? Duration{} : options_.report_interval / 10,
                                 lifetime_.Bind([this] { RunRules(); }));
               }));
  return true;
}

void Leader::Announce(LogLevel level, const std::string& line) {
  if (!announced_.insert(line).second) return;
  level == LogLevel::kWarn ? log_.Warn("{}", line) : log_.Info("{}", line);
}

const NodeReport* Leader::ReportOf(const unreft::Member& member) const {
  const NodeSlot slot{member.slot()};
  const NodeReport* report = board_.Of(slot);
  if (report == nullptr || report->incarnation() != member.incarnation()) return nullptr;
  const auto present = store_.state().present.find(slot);
  // A report of an earlier process of the same memory says nothing about this one.
  if (present == store_.state().present.end() ||
      present->second.incarnation() != member.incarnation() ||
      present->second.session() != report->session()) {
    return nullptr;
  }
  return report;
}

// A store that was lost or rolled back knows less than the nodes remember (docs/protocol.md, rule
// 3): what they know is written again, once all of them that live have told, before anything is
// decided on it.
bool Leader::SeedRecords() {
  const meta::JobState& state = store_.state();
  TimelineRecord timeline = state.timeline.value;
  CommitRecord commit = state.commit.value;
  const auto newest_of = [](const auto& chain) {
    return chain.empty() ? uint64_t{0} : chain.rbegin()->timeline();
  };
  bool behind = false;
  std::vector<const NodeReport*> reports;
  for (const unreft::Member& member : state.view.value.members()) {
    if (member.lost()) continue;
    reports.push_back(ReportOf(member));
    // Once it is known that nothing is lost, nobody is waited for.
    if (reports.back() == nullptr) return seeded_ != state.store_id;
    if (newest_of(reports.back()->chain()) <= newest_of(timeline.chain())) continue;
    *timeline.mutable_chain() = reports.back()->chain();
    commit.Clear();  // it is of before that decision
    behind = true;
  }
  for (const NodeReport* report : reports) {
    const uint64_t round = std::max(report->round_applied(), report->round_closed());
    const bool is_decided = timeline.closing() && report->round_applied() >= timeline.round();
    if (round > timeline.round() || is_decided) {
      timeline.set_round(round);
      timeline.set_closing(false);
      behind = true;
    }
    const Version committed{Timeline{report->committed_timeline()}, Step{report->committed_step()}};
    // Who has not heard of the newest decision yet may know a commit from which it steps back.
    const bool is_current = report->newest_timeline() == newest_of(timeline.chain());
    // A fresh start is a commit of nothing, on a timeline of its own.
    if (is_current && committed > VersionOf(commit)) {
      commit.Clear();
      SetVersion(committed, commit);
      commit.set_world(report->committed_world());
      commit.set_view(state.view.value.number());
      const std::vector<recovery::CodedGroup> recorded = CodedGroupsOf(state.view.value.groups());
      SetGroups(recovery::EncodedGroups(HeldOf(committed), recorded), *commit.mutable_groups());
      behind = true;
    }
  }
  if (!behind) {
    if (SeedCaptureMode(reports)) return true;
    seeded_ = state.store_id;
    return false;
  }
  timeline.clear_decision();  // whoever follows a later one has not missed it
  timeline.clear_asked();
  log_.WarnEvery(
      "store behind", kWarnEvery, executor_.Now(),
      "the meta store has lost records: timeline {} and the commit of version {} are written "
      "again from what the nodes remember",
      newest_of(timeline.chain()), VersionOf(commit));
  return Write({.timeline = std::move(timeline), .commit = std::move(commit)});
}

// Else some ranks would capture all they hold and others a part of it, which fit no version.
bool Leader::SeedCaptureMode(const std::vector<const NodeReport*>& reports) {
  AbandonRecord record = store_.state().abandoned.value;
  const auto captures_all = [](const NodeReport* report) { return report->captures_all(); };
  if (record.full_capture_from_timeline() != 0 || std::ranges::none_of(reports, captures_all)) {
    return false;
  }
  record.set_full_capture_from_timeline(1);
  record.set_disagreement("replicas were found to differ, as the nodes remember");
  log_.WarnEvery("capture mode behind", kWarnEvery, executor_.Now(),
                 "the meta store has lost that replicas differ: it is written again from what the "
                 "nodes remember");
  return Write({.abandoned = std::move(record)});
}

void Leader::DeclareFreshStart(NodeSlot from, bool force, FreshStartDone done) {
  const meta::JobState& state = store_.state();
  if (writing_ || !store_.ready() || state.timeline.value.closing()) {
    return done(absl::UnavailableError("the leader is busy with a decision; try again"));
  }
  // Older than what the nodes remember it would be undone by that.
  if (!state.view.exists() || seeded_ != state.store_id) {
    return done(absl::UnavailableError(
        "it is not known yet what the nodes remember: not all of them have told the leader; try "
        "again"));
  }
  uint64_t ranks = 0;
  for (const unreft::Member& member : state.view.value.members()) {
    const NodeReport* report = ReportOf(member);
    if (report != nullptr) ranks += report->ranks();
  }
  if (ranks > 0 && !force) return done(FreshStartUnderRanks(ranks));
  TimelineRecord timeline = state.timeline.value;
  // On a timeline of its own no earlier version is a candidate any more.
  CommitRecord commit;
  commit.set_timeline(OpenNext(timeline, Version{}).value);
  log_.Warn("{}", FreshStartDeclared(from, VersionOf(state.commit.value), ranks));
  const Timeline opens{commit.timeline() + 1};
  writing_ = true;
  store_.Write(leadership_, {.timeline = std::move(timeline), .commit = std::move(commit)},
               [this, alive = lifetime_.token(), opens,
                done = std::move(done)](const absl::Status& status) mutable {
                 if (!alive.expired()) writing_ = false;
                 if (!status.ok()) return done(status);
                 done(opens);
               });
}

// What fits no version is found out at the registration, before it is captured.
void Leader::CheckRegistrations() {
  const ViewRecord& view = store_.state().view.value;
  if (!layouts_.HasToLook(view.number())) return;
  std::vector<std::pair<NodeSlot, const NodeReport*>> reports;
  for (const unreft::Member& member : view.members()) {
    const NodeReport* report = member.lost() ? nullptr : ReportOf(member);
    if (report != nullptr) reports.emplace_back(NodeSlot{member.slot()}, report);
  }
  layouts_.LookAt(view.number(), reports);
}

// --- being asked ---

ExposureReply Leader::Exposure() const {
  const CommitRecord& commit = store_.state().commit.value;
  const Version committed = VersionOf(commit);
  std::map<NodeSlot, recovery::NodeHolding> held;
  bool all_reported = true;
  for (const unreft::Member& member : store_.state().view.value.members()) {
    const NodeReport* report = member.lost() ? nullptr : ReportOf(member);
    all_reported &= member.lost() || report != nullptr;
    if (report == nullptr) continue;
    for (const VersionHolding& version : report->versions()) {
      if (VersionOf(version) == committed) held[NodeSlot{member.slot()}] = HoldingOf(version);
    }
  }
  ExposureReply reply;
  SetVersion(committed, reply);
  reply.set_world(commit.world());
  const auto& groups = commit.world() != 0 ? commit.groups() : store_.state().view.value.groups();
  const std::vector<recovery::CodedGroup> coded = CodedGroupsOf(groups);
  for (size_t i = 0; i < coded.size(); ++i) {
    GroupExposure& exposure = *reply.add_groups();
    *exposure.mutable_group() = groups[static_cast<int>(i)];
    exposure.set_stands(recovery::LossesTolerated(coded[i], held));
  }
  reply.set_restorable_known(all_reported);
  if (commit.world() == 0) return reply;
  // What is newer than the committed version is read as a whole before it is restored.
  const recovery::Holdings holdings = ClosedHoldings();
  const recovery::TimelineChain chain = ChainOf(store_.state().timeline.value);
  for (auto it = holdings.rbegin(); it != holdings.rend(); ++it) {
    const Version version = it->first;
    if (version > committed || !chain.IsLive(version) || IsGivenUp(version)) continue;
    const auto found =
        recovery::FindHolders(version, it->second, RecordedGroupsOf(version), nullptr);
    if (!found) continue;
    reply.set_restorable_timeline(version.timeline.value);
    reply.set_restorable_step(version.step.value);
    reply.set_restorable_world(found->world);
    break;
  }
  return reply;
}

}  // namespace unreft::smp
