// What is committed, and whether it is protected then.
#include <algorithm>
#include <utility>

#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "tests/sim/cluster/cluster_observer.h"

namespace unreft::sim {
namespace {

// Every so many commits all losses are decoded.
constexpr uint64_t kDeepEvery = 16;

}  // namespace

bool ClusterObserver::IsHeld(Version version, Rank rank, const CommitRecord& commit) const {
  return std::ranges::any_of(commit.groups(), [&](const Group& group) {
    return std::ranges::any_of(group.slots(), [&](uint64_t slot) {
      return machines_.at(NodeSlot{slot})->observer.Holds(version, rank);
    });
  });
}

// Whether none of its members has any rank: there is nothing to protect.
bool ClusterObserver::IsIdle(Version version, const Group& group, uint64_t world) const {
  return std::ranges::none_of(group.slots(), [&](uint64_t slot) {
    for (uint64_t rank = 0; rank < world; ++rank) {
      if (machines_.at(NodeSlot{slot})->observer.Holds(version, Rank{rank})) return true;
    }
    return false;
  });
}

// What a store had lost comes again, once what was committed since is forgotten.
void ClusterObserver::OnFreshStart(Version opened) {
  standing_.reset();
  // Opened by a job that knows of no other timeline, and there is nobody who could.
  const bool is_forgotten = std::ranges::all_of(remembered_, [&](const auto& entry) {
    const auto& [timeline, committed] = entry.second;
    return timeline <= opened.timeline;
  });
  if (is_forgotten && opened.timeline < world_.history.newest_timeline()) {
    world_.history.OnAllForgotten();
    fresh_starts_.clear();
  }
  if (fresh_starts_.insert(opened.timeline).second) {
    return world_.history.OnFreshStart(opened.timeline);
  }
  const std::optional<Version> before = world_.history.committed();
  if (!before || *before < opened) return;
  if (IsForgotten(*before)) return world_.history.OnForgotten(*before);
  world_.trace.Fail("the fresh start of timeline {} gives up {}, which was committed after it",
                    opened.timeline, *before);
}

void ClusterObserver::OnCommit(const meta::JobState& job, bool is_stale) {
  StoreSeen& store = stores_[store_lives_.Of("commit", job.commit)];
  if (job.commit.modified <= store.newest_commit) return;
  store.newest_commit = job.commit.modified;
  const CommitRecord& commit = job.commit.value;
  if (!commits_seen_.insert(commit.SerializeAsString()).second) return;
  const Version version = smp::VersionOf(commit);
  if (commit.world() == 0) {
    // What was committed is given up by order; or there never was anything.
    if (version != Version{}) OnFreshStart(version);
    return;
  }
  encoded_in_[version] = commit.groups();
  if (standing_ && standing_->version != version) standing_.reset();
  // What was decided counts as committed; its guards may come. What a store had lost comes again.
  if (decided_ == version || world_.history.committed() == version) return;
  if (std::exchange(is_store_new_, false)) {
    const std::optional<Version> before = world_.history.committed();
    if (before && version < *before && IsForgotten(*before)) world_.history.OnForgotten(*before);
  }
  world_.history.OnCommitted(version, commit.world());
  if (const auto ranks = world_.history.WorldOf(version); ranks != commit.world()) {
    world_.trace.Fail("{} was committed of {} ranks, {} captured it", version, commit.world(),
                      ranks.value_or(0));
  }
  // A store that went back may have gone on with an earlier view than was seen.
  const bool is_its_view = !is_stale && job.view.value.number() == commit.view();
  CheckCommit(version, commit, is_its_view ? job.view.value : view_);
}

// Members of whose memories nothing is to be expected of a version that is committed now.
std::set<NodeSlot> ClusterObserver::HitBefore(Version version, const CommitRecord& commit,
                                              const ViewRecord& view) const {
  const Duration begun = world_.history.BegunAt(version).value_or(Duration{});
  const auto rotted = rotted_.find(version);
  std::set<NodeSlot> hit;
  for (const ViewMember& member : view.members()) {
    const NodeSlot slot{member.slot()};
    const bool is_in = std::ranges::any_of(commit.groups(), [&](const Group& group) {
      return std::ranges::find(group.slots(), slot.value) != group.slots().end();
    });
    if (!is_in) continue;
    const auto is_since = [&](const Times& times) {
      const auto it = times.find(slot);
      return it != times.end() && it->second >= begun;
    };
    // Until the view has the new memory the leader knows of none that could have a guard.
    const auto memory = memory_of_.find(slot);
    const bool is_unnamed = destroyed_.contains(slot) &&
                            (memory == memory_of_.end() || memory->second != member.incarnation());
    const bool has_rotted = rotted != rotted_.end() && rotted->second.contains(slot);
    if (member.lost() || is_unnamed || has_rotted || is_since(destroyed_) || is_since(replaced_) ||
        is_since(lost_)) {
      hit.insert(slot);
    }
  }
  return hit;
}

// It was protected when it was written, as far as the memories of the members allowed.
void ClusterObserver::CheckCommit(Version version, const CommitRecord& commit,
                                  const ViewRecord& view) {
  const std::set<NodeSlot> hit = HitBefore(version, commit, view);
  const bool deep = hit.empty() && commits_checked_++ % kDeepEvery == 0;
  for (uint64_t rank = 0; hit.empty() && rank < commit.world(); ++rank) {
    if (IsHeld(version, Rank{rank}, commit)) continue;
    world_.trace.Fail("committed {}, and nobody has rank {}", version, rank);
  }
  for (const Holder& holder : commit.holders()) {
    const NodeSlot slot{holder.slot()};
    if (hit.contains(slot)) continue;
    for (const uint64_t rank : holder.ranks()) {
      if (machines_.at(slot)->observer.Holds(version, Rank{rank})) continue;
      world_.trace.Fail("committed {}, and node {} has not its rank {}", version, slot, rank);
    }
  }
  for (const Group& group : commit.groups()) {
    if (IsIdle(version, group, commit.world())) continue;
    const auto is_hit = [&](uint64_t slot) { return hit.contains(NodeSlot{slot}); };
    const absl::Status status = std::ranges::any_of(group.slots(), is_hit)
                                    ? CheckRest(machines_, group, version, hit)
                                    : CheckGroup(machines_, group, version, deep);
    if (!status.ok()) {
      world_.trace.Fail("committed, but not protected: {}", status.message());
    }
  }
  if (!hit.empty()) {
    ++commits_checked_in_part_;
    return;
  }
  is_protected_ = true;
  proven_[version] = world_.trace.now();
  standing_ = {version, true};
}

}  // namespace unreft::sim
