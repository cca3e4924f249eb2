#include "tests/sim/cluster/cluster_observer.h"

#include <algorithm>

#include "base/format.h"
#include "smp/cluster_records.h"

namespace unreft::sim {
namespace {

// Every so many commits all losses are decoded.
constexpr uint64_t kDeepEvery = 16;

}  // namespace

void ClusterObserver::AfterEvent(DaemonProcess& daemon) {
  if (daemon.node() == nullptr) return;
  const NodeSlot slot = daemon.node()->state().options.node;
  const meta::JobState& job = daemon.node()->member()->job();
  const meta::Revision newest =
      std::max({job.view.modified, job.timeline.modified, job.commit.modified});
  if (newest == seen_[slot]) return;
  seen_[slot] = newest;
  Look(slot, job);
}

void ClusterObserver::Look(NodeSlot slot, const meta::JobState& job) {
  if (job.view.exists()) OnView(slot, job.view);
  if (job.timeline.exists() && !job.timeline.value.closing()) OnDecision(slot, job.timeline.value);
  if (job.commit.exists()) OnCommit(job);
}

void ClusterObserver::OnView(NodeSlot slot, const meta::Stored<ViewRecord>& view) {
  const uint64_t number = view.value.number();
  const auto [it, is_new] = view_numbers_.try_emplace(number, view.value.SerializeAsString());
  if (!is_new) {
    if (it->second != view.value.SerializeAsString()) {
      world_.trace.Fail("node {} reads another view {} than others", slot, number);
    }
    return;
  }
  world_.trace.Add("view {}", number);
  ++views_;
}

void ClusterObserver::OnDecision(NodeSlot slot, const TimelineRecord& record) {
  const DecisionRecord& decision = record.decision();
  const auto [it, is_new] = rounds_.try_emplace(decision.round(), decision.SerializeAsString());
  if (!is_new) {
    if (it->second != decision.SerializeAsString()) {
      world_.trace.Fail("node {} reads another decision {} than others", slot, decision.round());
    }
    return;
  }
  if (std::next(it) != rounds_.end()) return;  // it was told late
  const smp::JobDecision job = smp::DecisionOf(decision);
  if (job.kind == DecisionKind::kFailed) {
    world_.trace.Add("decision {} of attempt {} fails: {}", decision.round(), job.attempt,
                     job.status.ToString());
    return;
  }
  ++decisions_;
  decided_ = job.version;
  // What it names is checked below; the newest whole version may be one that was given up.
  const std::optional<Version> whole =
      job.kind == DecisionKind::kRestored ? std::optional(job.version) : std::nullopt;
  if (whole) CheckHolders(decision);
  world_.history.OnDecided(job.timeline, job.version, whole, world_.trace.now());
  // It may have been written just before.
  if (whole && !destroyed_.empty()) world_.history.OnDamaged(job.version, world_.trace.now());
  destroyed_.clear();
  is_protected_ = false;
}

void ClusterObserver::CheckHolders(const DecisionRecord& decision) {
  const smp::JobDecision job = smp::DecisionOf(decision);
  for (const recovery::SlabHolder& holder : job.holders) {
    if (holder.lost) ++slabs_lost_;
    if (holder.lost || destroyed_.contains(holder.slot)) continue;
    for (const Rank rank : holder.ranks) {
      if (machines_.at(holder.slot)->observer.Holds(job.version, rank)) continue;
      world_.trace.Fail("decision {}: node {} is to have rank {} of {}, and has not",
                        decision.round(), holder.slot, rank, job.version);
    }
  }
}

void ClusterObserver::OnCommit(const meta::JobState& job) {
  if (job.commit.modified <= newest_commit_) return;
  newest_commit_ = job.commit.modified;
  const CommitRecord& commit = job.commit.value;
  const Version version = smp::VersionOf(commit);
  if (decided_ == version) return;  // what was decided counts as committed; its guards may come
  world_.history.OnCommitted(version, commit.world());
  if (!destroyed_.empty()) return;  // it was protected when it was written
  is_protected_ = true;
  const bool deep = commits_checked_++ % kDeepEvery == 0;
  for (const Group& group : commit.groups()) {
    absl::Status status = CheckGroup(machines_, group, version, deep);
    if (!status.ok()) {
      world_.trace.Fail("committed, but not protected: {}", status.message());
    }
  }
}

}  // namespace unreft::sim
