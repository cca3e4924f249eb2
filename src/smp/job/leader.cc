#include "smp/job/leader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "smp/core/pace.h"
#include "smp/job/attempts.h"
#include "smp/job/cluster_records.h"
#include "smp/job/commit_rules.h"
#include "smp/job/exposure.h"
#include "smp/job/job_settings.h"
#include "smp/job/next_move.h"
#include "smp/job/obstacles.h"
#include "smp/job/recorded.h"
#include "smp/job/refusals.h"
#include "smp/job/report_checks.h"
#include "smp/job/seed_rule.h"
#include "smp/job/view_rules.h"

namespace unreft::smp {
namespace {

constexpr uint64_t kRefusedMax = 4;

// What the registrations are looked at for.
WorldLayouts::Key KeyOf(const ViewRecord& view, const DecisionRecord* in_force) {
  WorldLayouts::Key key{.view = view.number()};
  if (in_force != nullptr) key.attempt = in_force->attempt();
  return key;
}

}  // namespace

Leader::Leader(Executor& executor, meta::JobStore& store, Peers& peers, Random& random, Log& log,
               const NodeOptions& options, meta::HeldKey leadership, DurableCopies* copies,
               FaultPoints* faults)
    : executor_(executor),
      store_(store),
      peers_(peers),
      random_(random),
      log_(log),
      options_(options),
      leadership_(std::move(leadership)),
      copies_(copies),
      faults_(faults),
      absences_(options.lost_grace),
      round_copies_(copies != nullptr),
      pin_clock_(executor, [this] { RunRules(); }),
      pin_requests_(executor),
      standstill_(log),
      layouts_(executor, peers, log, options, [this] { RunRules(); }) {}

Leader::~Leader() {
  executor_.Cancel(rules_timer_);
  executor_.Cancel(wake_);
  EndCopies();
  EndOrders();
}

absl::StatusOr<ReportReply> Leader::OnReport(NodeSlot from, std::string_view encoded) {
  ForgetReportsOfAnotherStore();
  if (!CutReport(encoded, report_)) {
    return absl::InvalidArgumentError(
        fmt::format("the report of node {} of {} bytes is of no use", from, encoded.size()));
  }
  const NodeReport& report = report_.rest;
  const auto checked = [&](absl::Status status) {
    if (status.ok()) return status;
    log_.WarnEvery("report", kWarnEvery, executor_.Now(), "the report of node {} is not taken: {}",
                   from, status.message());
    return status;
  };
  if (absl::Status status = checked(CheckReport(report)); !status.ok()) return status;
  if (!IsOfPresentLife(from, report)) {
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
    const bool registers_anew = !board_.HasSameRanks(from, report);
    if (absl::Status status = checked(board_.Take(from, report_)); !status.ok()) return status;
    layouts_.OnReport(registers_anew);
    // The fastest rank may be of whoever tells last.
    const bool have_all_told = board_.reports().size() >= store_.state().present.size();
    const Timeline newest_timeline = NewestTimeline(store_.state().timeline.value);
    if (have_all_told) pace_.Note(board_.NewestStep(newest_timeline), executor_.Now());
    RunRules();
  }
  const meta::JobState& records = store_.state();
  ReportReply reply =
      layouts_.Found(KeyOf(records.view.value, DecisionInForce(records.timeline.value)));
  reply.set_obstacle(standstill_.obstacle());
  reply.set_over_round(over_round_);
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
  CarryOutOrders();
  if (writing_ || !store_.ready()) return;
  // A daemon that is started otherwise than the job may lead until it has found that out.
  const meta::Stored<SettingsRecord>& settings = store_.state().settings;
  if (settings.exists() && !DifferencesFrom(settings.value, options_).empty()) return;
  ForgetReportsOfAnotherStore();
  const RollCall roll = CallRoll();
  const DecisionRecord* in_force = DecisionInForce(store_.state().timeline.value);
  over_round_ = in_force != nullptr && IsOver(*in_force, roll) ? in_force->round() : 0;
  CheckRegistrations(roll, in_force);
  Move move;
  do {
    Follow(roll);
    move = NextMove(FactsOf(roll));
  } while (Do(std::move(move)));
  WatchCommits(FactsOf(roll));
}

// Who has told before it knew that the store is another one may keep newer records than it said.
void Leader::ForgetReportsOfAnotherStore() {
  const std::string& now = store_.state().store_id;
  if (std::exchange(store_id_, now) == now) return;
  board_ = {};
  compared_lives_.clear();
  seed_notes_ = {.since = executor_.Now()};
}

// The records of all who are present do not fit into a processor's caches; their revisions do.
bool Leader::IsOfPresentLife(NodeSlot slot, const NodeReport& report) {
  const auto& modified = store_.state().present_modified;
  const auto now = modified.find(slot);
  if (now == modified.end()) return false;
  const ComparedLife life{now->second, HashOfLife(report)};
  ComparedLife& compared = compared_lives_[slot];
  if (compared == life) return true;
  const PresenceRecord* const present = store_.state().PresenceOf(slot);
  if (present == nullptr || present->session() != report.session() ||
      present->incarnation() != report.incarnation()) {
    return false;
  }
  compared = life;
  return true;
}

RollCall Leader::CallRoll() const {
  const meta::JobState& records = store_.state();
  return {records.view.value, records.present, board_.reports()};
}

Timeline Leader::NextTimeline() {
  return unreft::NextTimeline(NewestTimeline(store_.state().timeline.value),
                              static_cast<uint32_t>(random_.Next()));
}

Facts Leader::FactsOf(const RollCall& roll) {
  const meta::JobState& records = store_.state();
  return {.records = records,
          .options = options_,
          .board = board_,
          .roll = roll,
          .now = executor_.Now(),
          .newest_step = board_.NewestStep(NewestTimeline(records.timeline.value)),
          .next_timeline = NextTimeline(),
          .absences = absences_,
          .kept = kept_ && !IsOfAnotherJob(*kept_) ? &*kept_ : nullptr,
          .seed = seed_notes_,
          .pins = {.over = pin_clock_.over(), .asked = pin_requests_.first()},
          .asked_since = asked_since_,
          .reading = reading_,
          .copies = round_copies_,
          .versions = versions_,
          .abandoning = abandoning_,
          .pace = pace_,
          .manifests = layouts_.manifests(),
          .layouts = layouts_.check()};
}

void Leader::Follow(const RollCall& roll) {
  const meta::JobState& records = store_.state();
  const TimelineRecord& timeline = records.timeline.value;
  const Time now = executor_.Now();
  // While the store is behind what the nodes have kept, by what they have.
  const bool is_behind =
      !records.IsSeeded() && kept_ && !IsOfAnotherJob(*kept_) && IsBehind(records, kept_->stamp);
  const ViewRecord& view = is_behind ? kept_->records.view.value : records.view.value;
  const bool may_begin = records.present.size() >= options_.NodesMin();
  if (view.members_size() > 0 || may_begin || !IsOfNewJob(board_.reports())) {
    absences_.Follow(records, view, options_.nodes, now);
  } else {
    absences_.Forget();
  }
  pin_clock_.Follow(records.pins.value);
  if (timeline.closing()) {
    reading_.Follow(timeline.round());
    round_copies_.Follow(timeline.round());
  } else {
    EndCopies();
  }
  if (!records.IsSeeded() || timeline.closing()) return asked_since_.clear();
  FollowAsking(roll);
  FollowVersions(FactsOf(roll));
  if (AreAllRanksThere(roll)) {
    abandoning_.ranks_away_since.reset();
  } else if (!abandoning_.ranks_away_since) {
    abandoning_.ranks_away_since = now;
  }
}

void Leader::FollowAsking(const RollCall& roll) {
  std::map<uint64_t, Time> since;
  for (const Asked& asked : WhoAsk(store_.state(), roll)) {
    const auto before = asked_since_.find(asked.attempt);
    since[asked.attempt] = before == asked_since_.end() ? executor_.Now() : before->second;
  }
  asked_since_ = std::move(since);
}

// A last net: what a version waits for is in the reports, and is not waited for by a clock.
void Leader::FollowVersions(const Facts& facts) {
  const AbandonRecord& abandoned = facts.records.abandoned.value;
  std::set<Version> under_way = VersionsUnderWay(facts);
  std::erase_if(versions_.rejected,
                [&](const auto& entry) { return !under_way.contains(entry.first); });
  std::erase_if(under_way, [&](Version version) { return IsAbandoned(abandoned, version); });
  std::erase_if(versions_.since,
                [&](const auto& entry) { return !under_way.contains(entry.first); });
  std::erase_if(versions_.overdue, [&](Version version) { return !under_way.contains(version); });
  for (const Version version : under_way) {
    const Time since = versions_.since.try_emplace(version, facts.now).first->second;
    if (facts.now - since < options_.version_deadline) continue;
    if (!versions_.overdue.insert(version).second) continue;
    ++deadlines_used_;
    log_.Warn("version {} is given up by its deadline: {}", version,
              NotCompletedInTime(facts, version));
  }
}

bool Leader::Do(Move move) {
  const bool has_found = move.HasFound();
  WakeAt(move.wake);
  for (const Line& line : move.say) Announce(line.level, line.text);
  for (const ReadingQuestion& question : move.ask_reading) AskReading(question);
  for (const auto& [slot, version] : move.ask_manifests) layouts_.Ask(slot, version);
  if (move.search_copies) SearchCopies();
  if (move.load_copy) LoadCopy(*std::move(move.load_copy));
  if (move.ask_kept) AskKept(*move.ask_kept);
  versions_.rejected.merge(std::move(move.rejected));
  if (move.misfit) reading_.NoteMisfit(*move.misfit);
  if (move.abandons) {
    abandoning_.last = executor_.Now();
    ++abandoning_.in_vain;
  }
  if (move.commits) abandoning_.in_vain = 0;
  if (move.pin_answer) {
    AnswerPin(*std::move(move.pin_answer), std::move(move.write));
  } else if (move.write) {
    Write(*std::move(move.write), move.fault_point);
  }
  return has_found && !writing_;
}

void Leader::WakeAt(std::optional<Time> time) {
  if (std::exchange(wakes_at_, time) == time) return;
  executor_.Cancel(std::exchange(wake_, TimerId::kNone));
  if (!time) return;
  wake_ = executor_.After(*time - executor_.Now(), [this] {
    wake_ = TimerId::kNone;
    wakes_at_.reset();
    RunRules();
  });
}

void Leader::Write(meta::JobChange change, const char* fault_point) {
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
}

void Leader::Announce(LogLevel level, const std::string& line) {
  if (!announced_.insert(line).second) return;
  level == LogLevel::kWarn ? log_.Warn("{}", line) : log_.Info("{}", line);
}

// --- registrations ---

// What fits no version is found out at the registration, before it is captured.
void Leader::CheckRegistrations(const RollCall& roll, const DecisionRecord* in_force) {
  const WorldLayouts::Key key = KeyOf(store_.state().view.value, in_force);
  if (layouts_.HasToLook(key)) layouts_.LookAt(key, roll.told());
}

// --- a store that has forgotten ---

bool Leader::IsOfAnotherJob(const meta::RecordCopy& copy) const {
  return meta::IsOfAnotherJob(store_.state().timeline.value, copy.records.timeline.value);
}

void Leader::AskKept(const Keeper& keeper) {
  if (std::exchange(asking_kept_, true)) return;
  peers_.AskInPagesAt<KeptReply>(
      keeper.slot, keeper.address, "kept", KeptRequest(), options_.call_timeout,
      lifetime_.Bind([this, keeper](const absl::StatusOr<KeptReply>& reply) {
        asking_kept_ = false;
        OnKept(keeper, reply);
      }));
}

void Leader::OnKept(const Keeper& keeper, const absl::StatusOr<KeptReply>& reply) {
  absl::StatusOr<meta::RecordCopy> copy =
      reply.ok() ? meta::DecodeCopy(std::as_bytes(std::span(reply->copy()))) : reply.status();
  if (copy.ok() && copy->stamp < keeper.stamp) {
    copy = absl::DataLossError(fmt::format(
        "it is of epoch {}, sequence {}, needed {}, {} as it has said", copy->stamp.epoch,
        copy->stamp.sequence, keeper.stamp.epoch, keeper.stamp.sequence));
  }
  if (copy.ok() && IsOfAnotherJob(*copy)) {
    log_.Error(
        "node {} at {} has kept records of another job of this name than those of the meta store: "
        "they are left out",
        keeper.slot, keeper.address);
    seed_notes_.strange.insert(keeper.address);
    return RunRules();
  }
  if (copy.ok()) {
    seed_notes_.deaf.erase(keeper.address);
    if (!kept_ || kept_->stamp < copy->stamp) kept_ = *std::move(copy);
    return RunRules();
  }
  seed_notes_.deaf.insert(keeper.address);
  log_.WarnEvery("kept", kWarnEvery, executor_.Now(),
                 "node {} at {} does not give the copy of the job's records that it has: {}",
                 keeper.slot, keeper.address, copy.status().message());
  // Asked again by the rules.
  executor_.After(options_.report_interval / 4, lifetime_.Bind([this] { RunRules(); }));
}

// --- deciding ---

void Leader::AskReading(const ReadingQuestion& question) {
  const auto& [life, version, want_manifests] = question;
  reading_.Begin(life, version);
  VerifyRequest request;
  request.set_session(life.session);
  request.set_incarnation(life.incarnation);
  request.set_round(reading_.round());
  request.set_want_manifests(want_manifests);
  SetVersion(version, request);
  peers_.AskInPages<VerifyReply>(
      life.slot, "verify", request, options_.verify_timeout,
      lifetime_.Bind([this, life = life, version = version,
                      round = reading_.round()](absl::StatusOr<VerifyReply> reply) {
        if (round != reading_.round()) return;
        absl::Status wrong = reply.ok() ? CheckHoldings(reply->versions()) : absl::OkStatus();
        if (!wrong.ok()) reply = std::move(wrong);
        if (!reply.ok()) {
          reading_.Fail(life, version);
          // Asked again by the rules, unless the node is lost by then.
          log_.WarnEvery("verify", kWarnEvery, executor_.Now(),
                         "node {} did not verify version {}: {}", life.slot, version,
                         reply.status().message());
          executor_.After(options_.report_interval / 4, lifetime_.Bind([this] { RunRules(); }));
          return;
        }
        OnRead(life, version, *std::move(reply));
        RunRules();
      }));
}

void Leader::OnRead(const RoundReading::Life& life, Version version, VerifyReply reply) {
  const NodeSlot slot = life.slot;
  const NodeReport* report = board_.Of(slot);
  if (report == nullptr || RoundReading::LifeOf(slot, *report) != life) {
    return reading_.Fail(life, version);
  }
  reading_.End(life, version);
  if (!reply.problem().empty()) {
    const std::string problem = CleanText(reply.problem(), kTextBytesMax);
    reading_.NoteProblem(fmt::format("node {}: {}", slot, problem));
    log_.Error("version {} on node {}: {}", version, slot, problem);
  }
  for (const std::string& bytes : reply.manifests()) {
    absl::StatusOr<layout::SlotManifest> manifest = layout::DecodeManifest(bytes);
    if (!manifest.ok()) {
      log_.Error("node {}: {}", slot, manifest.status().message());
      continue;
    }
    reading_.Keep(version, *std::move(manifest));
  }
  // A report of before it may be on its way still, and one of after it have come.
  if (reply.report_number() != 0 && reply.report_number() < report->number()) return;
  board_.TakeVersions(slot, std::move(*reply.mutable_versions()),
                      std::max(report->number(), reply.report_number()));
}

void Leader::SearchCopies() {
  round_copies_.OnSearching();
  log_.Info("nothing can be restored from memory: the job's durable copies are looked for");
  copies_->Search(lifetime_.Bind(
      [this, round = round_copies_.round()](absl::StatusOr<std::vector<DurableCopy>> found) {
        if (round != round_copies_.round()) return;
        round_copies_.OnFound(std::move(found));
        RunRules();
      }));
}

void Leader::LoadCopy(CopyLoad load) {
  round_copies_.OnLoading(load.copy);
  log_.Info("the durable copy {} of version {} is loaded by {} nodes",
            CleanText(load.copy.directory, kTextBytesMax), load.copy.version(), load.homes.size());
  copies_->Load(load.copy, std::move(load.homes),
                lifetime_.Bind([this, round = round_copies_.round()](const absl::Status& status) {
                  if (round != round_copies_.round()) return;
                  if (!status.ok())
                    log_.Error("a durable copy is not loaded: {}", status.message());
                  round_copies_.OnLoaded(status, executor_.Now());
                  RunRules();
                }));
}

// The round is over, or another leads it.
void Leader::EndCopies() {
  if (!round_copies_.IsUnderWay()) return;
  if (copies_ != nullptr) copies_->Cancel();
  round_copies_.Follow(0);
}

// --- being asked ---

void Leader::WatchCommits(const Facts& facts) {
  const TimelineRecord& timeline = facts.records.timeline.value;
  if (timeline.chain().empty() || timeline.closing()) return;
  const CommitRecord& commit = facts.records.commit.value;
  const Timeline newest = NewestTimeline(timeline);
  const uint64_t from = CaptureFrom(facts.records.abandoned.value, newest).value;
  standstill_.Look({.timeline = newest,
                    .committed = VersionOf(commit),
                    .has_committed = commit.world() != 0,
                    .reached = facts.newest_step,
                    .abandoned_through = Step{from == 0 ? 0 : from - 1}},
                   facts.now, [&] { return DescribeObstacles(facts, write_failure_); });
}

ExposureReply Leader::Exposure() const { return ExposureOf(store_.state(), CallRoll()); }

}  // namespace unreft::smp
