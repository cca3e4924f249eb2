// How the leader decides what is restored (docs/protocol.md, rule 21).
#include <absl/strings/str_join.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "smp/job/cluster_records.h"
#include "smp/job/leader.h"
#include "smp/job/refusals.h"
#include "smp/job/report_checks.h"

namespace unreft::smp {
namespace {

// The decision of the record's round, for who asked.
DecisionRecord& BeginDecision(TimelineRecord& record) {
  DecisionRecord& decision = *record.mutable_decision();
  decision.Clear();
  decision.set_round(record.round());
  decision.set_attempt(record.attempt());
  decision.mutable_asked()->Swap(record.mutable_asked());
  record.clear_asked();
  return decision;
}

constexpr char kAgain[] =
    ", again, since nothing was committed after it; if the ranks refuse it, as of another model, "
    "`unreft fresh-start` gives it up";

bool AreOfSameProcesses(const google::protobuf::RepeatedPtrField<AskingRank>& before,
                        const google::protobuf::RepeatedPtrField<AskingRank>& now) {
  return std::ranges::equal(before, now, [](const AskingRank& a, const AskingRank& b) {
    return a.rank() == b.rank() && a.pid() == b.pid() && a.start_time() == b.start_time();
  });
}

}  // namespace

bool Leader::DecideRestore() {
  return store_.state().timeline.value.closing() ? ContinueRound() : StartRound();
}

// The newest attempt of which ranks ask, as far as their nodes have heard of the last decision.
std::optional<Leader::Asked> Leader::WhoAsks() const {
  std::optional<Asked> asked;
  const uint64_t round = store_.state().timeline.value.decision().round();
  for (const unreft::Member& member : store_.state().view.value.members()) {
    const NodeReport* report = ReportOf(member);
    if (report == nullptr || report->asking().empty() || report->round_applied() < round) continue;
    if (asked && report->attempt() < asked->attempt) continue;
    if (!asked || report->attempt() > asked->attempt) {
      asked = Asked{report->attempt(), report->world(), {}};
    }
    asked->world = std::max(asked->world, report->world());
    for (const AskingRank& asking : report->asking()) asked->ranks[asking.rank()] = asking;
  }
  return asked;
}

void Leader::SetAskDeadline(bool wanted) {
  if (!wanted) {
    executor_.Cancel(std::exchange(ask_deadline_, TimerId::kNone));
    ask_overdue_ = false;
    return;
  }
  if (ask_deadline_ != TimerId::kNone || ask_overdue_) return;
  ask_deadline_ = executor_.After(options_.restore_wait, [this] {
    ask_deadline_ = TimerId::kNone;
    ask_overdue_ = true;
    RunRules();
  });
}

bool Leader::StartRound() {
  const std::optional<Asked> asked = WhoAsks();
  if (!asked || asked->attempt != ask_deadline_attempt_) SetAskDeadline(false);
  if (!asked) return false;
  ask_deadline_attempt_ = asked->attempt;
  SetAskDeadline(true);
  TimelineRecord record = store_.state().timeline.value;
  record.set_round(record.round() + 1);
  record.set_attempt(asked->attempt);
  record.set_world(asked->world);
  record.clear_asked();
  for (const auto& [rank, asking] : asked->ranks) *record.add_asked() = asking;
  if (asked->ranks.size() >= asked->world) {
    SetAskDeadline(false);
    record.set_closing(true);
    return Write({.timeline = std::move(record)});
  }
  if (!ask_overdue_) return false;
  SetAskDeadline(false);
  std::set<Rank> ranks;
  for (const auto& [rank, asking] : asked->ranks) ranks.insert(Rank{rank});
  return FailRound(std::move(record), RanksMissing(Attempt{asked->attempt}, asked->world, ranks,
                                                   options_.restore_wait));
}

bool Leader::FailRound(TimelineRecord record, const absl::Status& status) {
  record.set_closing(false);
  DecisionRecord& decision = BeginDecision(record);
  decision.set_kind(static_cast<uint32_t>(DecisionKind::kFailed));
  decision.set_status_code(static_cast<uint32_t>(status.code()));
  decision.set_status_message(std::string(status.message()));
  return Write({.timeline = std::move(record)}, "leader.decision");
}

recovery::Holdings Leader::ClosedHoldings() const {
  recovery::Holdings holdings;
  for (const unreft::Member& member : store_.state().view.value.members()) {
    if (member.lost()) continue;
    const NodeReport* report = ReportOf(member);
    if (report == nullptr) continue;
    for (const VersionHolding& version : report->versions()) {
      holdings[VersionOf(version)][NodeSlot{member.slot()}] = HoldingOf(version);
    }
  }
  return holdings;
}

// Under which the version is encoded as far as the records say.
std::vector<recovery::CodedGroup> Leader::RecordedGroupsOf(Version version) const {
  const CommitRecord& commit = store_.state().commit.value;
  if (commit.world() != 0 && VersionOf(commit) == version) return CodedGroupsOf(commit.groups());
  return CodedGroupsOf(store_.state().view.value.groups());
}

bool Leader::ContinueRound() {
  const meta::JobState& state = store_.state();
  const TimelineRecord& record = state.timeline.value;
  if (verified_round_ != record.round()) {
    verified_round_ = record.round();
    verified_.clear();
    verifying_.clear();
    round_manifests_.clear();
    misfits_.clear();
    last_problem_.clear();
  }
  for (const unreft::Member& member : state.view.value.members()) {
    if (member.lost()) continue;
    const NodeReport* report = ReportOf(member);
    if (report == nullptr || report->round_closed() != record.round()) return true;  // to come
  }
  const recovery::Holdings holdings = ClosedHoldings();
  const recovery::TimelineChain chain = ChainOf(record);
  for (auto it = holdings.rbegin(); it != holdings.rend(); ++it) {
    const Version version = it->first;
    if (!chain.IsLive(version) || IsGivenUp(version) || misfits_.contains(version)) continue;
    if (rejected_.contains(version)) continue;
    const auto restorable =
        recovery::FindHolders(version, it->second, RecordedGroupsOf(version), nullptr);
    if (!restorable) continue;
    if (restorable->world != record.world()) {
      return FailRound(record, OtherWorld(version, restorable->world, Attempt{record.attempt()},
                                          record.world()));
    }
    // A version that was not committed has not been checked as a whole yet.
    const bool is_committed = version == VersionOf(state.commit.value);
    if (!VerifyEverywhere(version, !is_committed)) return true;  // the answers run the rules again
    if (!is_committed) {
      absl::Status status = layouts_.Check(round_manifests_[version]);
      if (!status.ok()) {
        log_.Warn("version {} is no candidate: {}", version, status.message());
        misfits_.insert(version);
        continue;
      }
    }
    return EndRound(*restorable);
  }
  if (state.commit.value.world() == 0) return EndRoundFresh();
  const std::string missing =
      recovery::DescribeUnrestorable(holdings, CodedGroupsOf(state.view.value.groups()), chain);
  return FailRound(
      record, Unrecoverable(VersionOf(state.commit.value), state.commit.value.world(), "the nodes'",
                            {missing, DescribeLost(), DescribeUnguarded(), last_problem_}));
}

// After a loss was made good in part: an attempt that comes later may find what this one does not.
std::string Leader::DescribeUnguarded() const {
  const meta::JobState& state = store_.state();
  const Version version = VersionOf(state.commit.value);
  const DecisionRecord& last = state.timeline.value.decision();
  const bool is_restored = last.kind() == static_cast<uint32_t>(DecisionKind::kRestored) &&
                           DecisionOf(last).version == version;
  if (!is_restored || options_.parity_chunks == 0) return "";
  const std::map<NodeSlot, recovery::NodeHolding> held = HeldOf(version);
  std::vector<uint64_t> slots;
  for (const unreft::Member& member : state.view.value.members()) {
    const auto it = held.find(NodeSlot{member.slot()});
    const bool is_guarded = it != held.end() && it->second.guarded;
    if (!member.lost() && !is_guarded) slots.push_back(member.slot());
  }
  if (slots.empty()) return "";
  return fmt::format(
      "node {} may still be making its share of version {} anew: start again before giving it up",
      absl::StrJoin(slots, ", "), version);
}

// What a lost node holds is not counted; it may only be away.
std::string Leader::DescribeLost() const {
  std::vector<uint64_t> lost;
  for (const unreft::Member& member : store_.state().view.value.members()) {
    if (member.lost()) lost.push_back(member.slot());
  }
  if (lost.empty()) return "";
  return fmt::format("without node {}, lost: whatever comes back with its memory counts again",
                     absl::StrJoin(lost, ", "));
}

// Whether every node that holds something of the version has read it again in this round.
bool Leader::VerifyEverywhere(Version version, bool want_manifests) {
  bool all = true;
  for (const unreft::Member& member : store_.state().view.value.members()) {
    const NodeReport* report = member.lost() ? nullptr : ReportOf(member);
    if (report == nullptr) continue;
    const bool holds =
        std::any_of(report->versions().begin(), report->versions().end(),
                    [&](const VersionHolding& holding) { return VersionOf(holding) == version; });
    const Life life = LifeOf(NodeSlot{member.slot()}, *report);
    if (!holds || verified_.contains({version, life})) continue;
    all = false;
    if (!verifying_.contains({version, life})) Verify(life, version, want_manifests);
  }
  return all;
}

Leader::Life Leader::LifeOf(NodeSlot slot, const NodeReport& report) {
  return {slot, report.incarnation(), report.session()};
}

void Leader::Verify(const Life& life, Version version, bool want_manifests) {
  verifying_.insert({version, life});
  VerifyRequest request;
  request.set_session(life.session);
  request.set_incarnation(life.incarnation);
  request.set_round(verified_round_);
  request.set_want_manifests(want_manifests);
  SetVersion(version, request);
  peers_.Ask<VerifyReply>(life.slot, "verify", request, options_.verify_timeout,
                          lifetime_.Bind([this, life, version, round = verified_round_](
                                             absl::StatusOr<VerifyReply> reply) {
                            if (round != verified_round_) return;
                            verifying_.erase({version, life});
                            absl::Status wrong =
                                reply.ok() ? CheckHoldings(reply->versions()) : absl::OkStatus();
                            if (!wrong.ok()) reply = std::move(wrong);
                            if (!reply.ok()) {
                              // Asked again by the rules, unless the node is lost by then.
                              log_.WarnEvery("verify", kWarnEvery, executor_.Now(),
                                             "node {} did not verify version {}: {}", life.slot,
                                             version, reply.status().message());
                              executor_.After(options_.report_interval / 4,
                                              lifetime_.Bind([this] { RunRules(); }));
                              return;
                            }
                            OnVerified(life, version, *std::move(reply));
                            RunRules();
                          }));
}

void Leader::OnVerified(const Life& life, Version version, VerifyReply reply) {
  const NodeSlot slot = life.slot;
  const NodeReport* report = board_.Of(slot);
  if (report == nullptr || LifeOf(slot, *report) != life) return;
  verified_.insert({version, life});
  if (!reply.problem().empty()) {
    const std::string problem = CleanText(reply.problem(), kTextBytesMax);
    last_problem_ = fmt::format("node {}: {}", slot, problem);
    log_.Error("version {} on node {}: {}", version, slot, problem);
  }
  for (const std::string& bytes : reply.manifests()) {
    absl::StatusOr<layout::SlotManifest> manifest = layout::DecodeManifest(bytes);
    if (!manifest.ok()) {
      log_.Error("node {}: {}", slot, manifest.status().message());
      continue;
    }
    const Rank rank = manifest->rank;
    round_manifests_[version][rank] =
        std::make_shared<const layout::SlotManifest>(*std::move(manifest));
  }
  // A report of before it may be on its way still, and one of after it have come.
  if (reply.report_number() != 0 && reply.report_number() < report->number()) return;
  board_.TakeVersions(slot, reply.versions(), std::max(report->number(), reply.report_number()));
}

bool Leader::CaptureBegan() const {
  const TimelineRecord& record = store_.state().timeline.value;
  const uint64_t newest =
      record.chain().empty() ? 0 : record.chain(record.chain_size() - 1).timeline();
  for (const unreft::Member& member : store_.state().view.value.members()) {
    // What is not known may have begun.
    const NodeReport* report = member.lost() ? nullptr : ReportOf(member);
    if (report == nullptr) return true;
    if (report->newest_timeline() == newest && report->capture_began()) return true;
  }
  return false;
}

// Until a capture begins in a timeline, the same decision for the same processes opens no other.
// For others it does: somebody who was told of that one may live on.
void Leader::OpenTimeline(TimelineRecord& record, Version parent) const {
  const recovery::TimelineChain chain = ChainOf(record);
  const DecisionRecord& last = record.decision();
  const bool again =
      last.timeline() == chain.newest().value && AreOfSameProcesses(last.asked(), record.asked());
  if (again && chain.ParentOf(chain.newest()) == parent && !CaptureBegan()) return;
  OpenNext(record, parent);
}

bool Leader::EndRound(const recovery::Restorable& restorable) {
  const meta::JobState& state = store_.state();
  TimelineRecord record = state.timeline.value;
  const DecisionRecord& last = state.timeline.value.decision();
  const bool is_again = last.kind() == static_cast<uint32_t>(DecisionKind::kRestored) &&
                        DecisionOf(last).version == restorable.version;
  OpenTimeline(record, restorable.version);
  record.set_closing(false);
  DecisionRecord& decision = BeginDecision(record);
  decision.set_kind(static_cast<uint32_t>(DecisionKind::kRestored));
  decision.set_timeline(record.chain(record.chain_size() - 1).timeline());
  decision.set_version_timeline(restorable.version.timeline.value);
  decision.set_version_step(restorable.version.step.value);
  SetHolders(restorable.holders, *decision.mutable_holders());
  CommitRecord commit;
  SetVersion(restorable.version, commit);
  commit.set_world(restorable.world);
  commit.set_view(state.view.value.number());
  SetGroups(restorable.groups, *commit.mutable_groups());
  SetHolders(restorable.holders, *commit.mutable_holders());
  Announce(LogLevel::kInfo,
           fmt::format("decision {}: version {} for attempt {} opens timeline {}{}", record.round(),
                       restorable.version, record.attempt(), decision.timeline(),
                       is_again ? kAgain : ""));
  return Write({.timeline = std::move(record), .commit = std::move(commit)}, "leader.decision");
}

bool Leader::EndRoundFresh() {
  TimelineRecord record = store_.state().timeline.value;
  OpenTimeline(record, Version{});
  record.set_closing(false);
  DecisionRecord& decision = BeginDecision(record);
  decision.set_kind(static_cast<uint32_t>(DecisionKind::kFresh));
  decision.set_timeline(record.chain(record.chain_size() - 1).timeline());
  return Write({.timeline = std::move(record)}, "leader.decision");
}

}  // namespace unreft::smp
