#include "tests/sim/cluster/cluster_observer.h"

#include <absl/strings/match.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "smp/job/formation.h"
#include "smp/job/recorded.h"
#include "smp/job/rewind.h"

namespace unreft::sim {
namespace {

constexpr Duration kProveEvery = std::chrono::milliseconds(2);
constexpr Duration kGuardedFor = std::chrono::milliseconds(10);

}  // namespace

ClusterObserver::ClusterObserver(World& world, std::vector<Machine*> places, uint64_t nodes)
    : world_(world), places_(std::move(places)) {
  for (uint64_t slot = 0; slot < nodes; ++slot) machines_[NodeSlot{slot}] = places_.at(slot);
}

bool ClusterObserver::IsLeftOut(NodeSlot slot) const { return smp::IsLeftOut(view_, slot); }

bool ClusterObserver::IsLost(NodeSlot slot) const {
  return std::ranges::any_of(view_.members(), [&](const ViewMember& member) {
    return member.slot() == slot.value && member.lost();
  });
}

std::optional<NodeSlot> ClusterObserver::SlotOf(const Machine& machine) const {
  for (const auto& [slot, of] : machines_) {
    if (of == &machine) return slot;
  }
  return std::nullopt;
}

void ClusterObserver::AfterEvent(DaemonProcess& daemon) {
  if (daemon.node() == nullptr) return;
  const NodeSlot slot = daemon.node()->state().options.node;
  const smp::NodeRecord& record = *daemon.node()->state().record;
  const RandomId id = record.incarnation();
  const std::string incarnation(id.begin(), id.end());
  Remember(slot, daemon.machine(), record);
  machines_seen_[incarnation] = &daemon.machine();
  if (machines_[slot] == &daemon.machine()) memory_of_[slot] = incarnation;
  if (world_.trace.now() >= prove_next_) {
    prove_next_ = world_.trace.now() + kProveEvery;
    ProveDecided();
  }
  const meta::JobState& job = daemon.node()->member()->job();
  const std::pair newest(job.store_id, std::max({job.view.modified, job.timeline.modified,
                                                 job.commit.modified, job.abandoned.modified}));
  if (newest == std::exchange(seen_[&daemon.machine()], newest)) return;
  Look(slot, job, IsStale(daemon.machine(), job));
}

// Who has not heard that the store went back follows what is written since, and has the view of
// before all the same, until it reads all again: under another id, unless the store kept its own.
bool ClusterObserver::IsStale(const Machine& machine, const meta::JobState& job) {
  const auto view = views_read_[&machine] = {job.store_id, job.view.value.SerializeAsString()};
  // What a daemon tells itself of who is which node it tells nobody else.
  if (world_.bug == PlantedBug::kForgetsName && !store_lives_.Knows("view", job.view)) return true;
  const auto stale = stale_views_.find(&machine);
  if (stale != stale_views_.end() && stale->second != view) stale_views_.erase(stale);
  return stale_views_.contains(&machine);
}

// What a memory has heard of it knows as long as it lives, whatever its daemons hear later.
void ClusterObserver::Remember(NodeSlot slot, const Machine& machine,
                               const smp::NodeRecord& record) {
  const Known known(record.chain().newest(), record.committed());
  Known& before = memories_[record.incarnation()];
  if (known < before) {
    world_.trace.Fail("node {} knows of timeline {} and commit {}, and of {} and {} before", slot,
                      known.first, known.second, before.first, before.second);
  }
  before = known;
  if (machines_[slot] == &machine) remembered_[slot] = known;
}

void ClusterObserver::Look(NodeSlot slot, const meta::JobState& job, bool is_stale) {
  // Where nodes are now a store does not say that is no more, and that somebody sees who is cut
  // off.
  if (job.view.exists() && !is_stale && !is_over_(job.store_id)) OnView(slot, job.view);
  abandoned_.Add(job.abandoned.value);
  const TimelineRecord& timeline = job.timeline.value;
  const uint64_t life = store_lives_.Of("timeline", job.timeline);
  bool is_new = false;
  if (job.timeline.exists() && timeline.closing()) {
    is_new = stores_[life].closing.try_emplace(timeline.round(), world_.trace.now()).second;
    if (const std::optional<Version> ordered = smp::OrderedVersion(timeline)) {
      stores_[life].ordered[timeline.round()] = *ordered;
    }
  } else if (job.timeline.exists()) {
    // One that failed may be read together with the one before, that did not.
    OnDecision(slot, timeline.in_force(), life);
    OnDecision(slot, timeline.decision(), life);
  }
  if (job.view.exists() && job.timeline.exists() && !is_stale) {
    formed_[smp::NewestTimeline(timeline)] = job.view.value.groups();
  }
  if (job.commit.exists()) OnCommit(job, is_stale);
  const std::optional<Version> committed = world_.history.committed();
  const Duration now = world_.trace.now();
  if (is_new && committed) had_at_closing_[{*committed, now}] = IsThere(*committed, now);
}

// A later version that every node could read, as far as it was closed, and that
// nobody gave up, is the one to be restored (docs/protocol.md, rule 21).
void ClusterObserver::CheckPassedOver(Version decided, std::optional<Step> at_or_before,
                                      Duration closed) {
  std::map<Version, std::set<Rank>> held;
  for (const ViewMember& member : view_.members()) {
    const NodeSlot slot{member.slot()};
    const auto memory = memory_of_.find(slot);
    if (memory == memory_of_.end() || memory->second != member.incarnation()) continue;
    for (const auto& [version, rank] : machines_.at(slot)->observer.Slabs()) {
      if (at_or_before && version.step > *at_or_before) continue;
      if (version > decided && !GoneSince(version, closed, closed).contains(slot)) {
        held[version].insert(rank);
      }
    }
  }
  for (const auto& [version, ranks] : held) {
    if (ranks.size() != world_.history.WorldOf(version)) continue;
    if (!world_.history.IsLive(version) || abandoned_.Has(version)) continue;
    if (rotted_.contains(version) || world_.history.IsAstray(version)) continue;
    world_.trace.Fail("{} is decided, and {} was whole on nodes that took part", decided, version);
  }
}

void ClusterObserver::OnView(NodeSlot slot, const meta::Stored<ViewRecord>& view) {
  const uint64_t number = view.value.number();
  auto& views = stores_[store_lives_.Of("view", view)].views;
  const auto [it, is_new] = views.try_emplace(number, view.value.SerializeAsString());
  if (!is_new) {
    if (it->second != view.value.SerializeAsString()) {
      world_.trace.Fail("node {} reads another view {} than others", slot, number);
    }
    // A store that went back may come to the same view again.
    if (number <= view_.number()) return;
  }
  world_.trace.Add("view {}", number);
  if (const auto before = views.find(number - 1); before != views.end()) {
    ViewRecord record;
    record.ParseFromString(before->second);
    CheckNewMemories(record, view.value);
  }
  for (const ViewMember& member : view.value.members()) named_.insert(member.incarnation());
  for (int i = 0; i < std::min(view_.members_size(), view.value.members_size()); ++i) {
    if (view_.members(i).incarnation() == view.value.members(i).incarnation()) continue;
    replaced_[NodeSlot{view_.members(i).slot()}] = world_.trace.now();
  }
  // Until now, that is.
  for (const ViewMember& member : view_.members()) {
    if (member.lost()) lost_[NodeSlot{member.slot()}] = world_.trace.now();
  }
  view_ = view.value;
  ++views_;
  FollowPlaces();
}

// What no view has named yet has a slot only once the memory before it is lost; a spare may have it
// in the view that says so.
void ClusterObserver::CheckNewMemories(const ViewRecord& before, const ViewRecord& now) const {
  for (int i = 0; i < std::min(before.members_size(), now.members_size()); ++i) {
    const ViewMember& member = now.members(i);
    const bool is_new = member.incarnation() != before.members(i).incarnation();
    if (!is_new || named_.contains(member.incarnation())) continue;
    // Until that view. Its node may have begun before another read it, and a daemon that was out
    // may have come back as a spare of the same place.
    const bool was_spare =
        smp::PlaceOf(member) != member.slot() || !machines_seen_.contains(member.incarnation());
    if (before.members(i).lost() || was_spare) continue;
    world_.trace.Fail("node {} has an empty memory by view {}, and the one before was not lost",
                      member.slot(), now.number());
  }
}

// A spare has a lost node's slot, or the node has it back; the other's memory is of no use.
void ClusterObserver::FollowPlaces() {
  for (const ViewMember& member : view_.members()) {
    const NodeSlot slot{member.slot()};
    // A second daemon of a node has its number and a memory of its own.
    const auto seen = machines_seen_.find(member.incarnation());
    Machine* machine = seen != machines_seen_.end()
                           ? seen->second
                           : places_.at(member.has_place() ? member.place() : member.slot());
    const bool is_other =
        std::exchange(named_now_[slot], member.incarnation()) != member.incarnation();
    if (machines_[slot] == machine) {
      if (is_other) renewed_.push_back(machine);
      continue;
    }
    world_.trace.Add("node {} is on machine {}", slot, machine->slot);
    machines_[slot] = machine;
    ++(machine->slot == slot ? returns_ : takeovers_);
    OnDestroyed(slot);
  }
}

void ClusterObserver::OnDestroyed(NodeSlot slot) {
  ProveDecided();
  destroyed_[slot] = world_.trace.now();
  remembered_.erase(slot);
  memory_of_.erase(slot);
  is_protected_ = false;
}

// What was decided and never committed is guarded after the decision, at no moment that any record
// tells.
void ClusterObserver::ProveDecided() {
  const std::optional<Version> version = decided_;
  if (is_protected_ || !version || version != world_.history.committed()) return;
  const auto is_lost = [](const ViewMember& member) { return member.lost(); };
  if (std::ranges::any_of(view_.members(), is_lost)) return;
  const uint64_t world = world_.history.WorldOf(*version).value_or(0);
  for (uint64_t rank = 0; rank < world; ++rank) {
    const auto holds = [&](const auto& entry) {
      return entry.second->observer.Holds(*version, Rank{rank});
    };
    if (std::ranges::none_of(machines_, holds)) return;
  }
  for (const Group& group : GroupsOf(*version)) {
    if (IsIdle(*version, group, world)) continue;
    if (!CheckGroup(machines_, group, *version, false).ok()) {
      return guarded_since_.reset();
    }
  }
  // What was complete in memory when the decision came, and no daemon knew, is made anew.
  if (!guarded_since_) guarded_since_ = world_.trace.now();
  if (world_.trace.now() < *guarded_since_ + kGuardedFor) return;
  proven_[*version] = world_.trace.now();
  standing_ = {*version, true};
  is_protected_ = true;
  ++guarded_anew_;
  if (is_rebuilt_) ++losses_made_good_;
}

void ClusterObserver::OnDecision(NodeSlot slot, const DecisionRecord& decision, uint64_t life) {
  if (decision.round() == 0) return;  // none yet in this store
  auto& rounds = stores_[life].rounds;
  const auto [it, is_new] = rounds.try_emplace(decision.round(), decision.SerializeAsString());
  if (!is_new) {
    if (it->second != decision.SerializeAsString()) {
      world_.trace.Fail("node {} reads another decision {} than others", slot, decision.round());
    }
    return;
  }
  const smp::JobDecision job = smp::DecisionOf(decision);
  if (std::next(it) != rounds.end() || life < decided_in_) {  // it was told late
    if (absl::IsDataLoss(job.status)) world_.history.OnLost(job.attempt, true);
    return;
  }
  if (!decisions_seen_.insert(it->second).second) return;
  decided_in_ = life;
  const std::optional<Version> ordered = OrderedIn(decision.round(), life);
  const std::optional<Step> at_or_before = smp::AskedAtOrBefore(decision.asked());
  const bool is_step_wanted = ordered || at_or_before;
  if (job.kind == DecisionKind::kFailed) return OnFailure(job, decision, is_step_wanted);
  if (ordered && job.version != *ordered) {
    world_.trace.Fail("decision {}: {} is to be restored, and an operator has ordered {}",
                      decision.round(), job.version, *ordered);
  }
  if (at_or_before && job.version.step > *at_or_before) {
    world_.trace.Fail("decision {}: {} is to be restored, and the ranks ask for step {} or before",
                      decision.round(), job.version, *at_or_before);
  }
  ++decisions_;
  decided_ = job.version;
  const std::optional<Version> copy = NewestCopy(at_or_before);
  if (!decision.copy().empty()) {
    ++copies_restored_;
    if (copy && job.version < *copy) {
      world_.trace.Fail("decision {}: {} is restored out of {}, and the newest copy is {}",
                        decision.round(), job.version, decision.copy(), *copy);
    }
    if (shelf_ == nullptr || !shelf_->HasWritten(job.version)) {
      world_.trace.Fail("decision {}: {} is restored out of {}, and no copy of it was written",
                        decision.round(), job.version, decision.copy());
    }
  } else if (job.kind == DecisionKind::kFresh && copy) {
    world_.trace.Fail("decision {}: the job begins anew, and there is a copy of {}",
                      decision.round(), *copy);
  }
  // What it names is checked below; the newest whole version may be one that was given up.
  const std::optional<Version> whole =
      job.kind == DecisionKind::kRestored ? std::optional(job.version) : std::nullopt;
  guarded_since_.reset();
  const Duration closed = ClosedAt(decision.round());
  const uint64_t lost_before = slabs_lost_;
  if (whole) CheckHolders(decision, closed);
  is_rebuilt_ = slabs_lost_ > lost_before;
  if (whole && world_.history.WorldOf(*whole) != job.asked.size()) ++reshapes_;
  if (whole && !world_.history.IsLive(*whole)) {
    world_.trace.Fail("decision {}: {} is of a timeline that is dead", decision.round(), *whole);
  }
  const std::optional<Version> committed = world_.history.committed();
  if (!ordered) CheckPassedOver(job.version, at_or_before, closed);
  const bool is_wanted = ordered || (at_or_before && committed && committed->step > *at_or_before);
  const bool excused =
      committed && job.version < *committed && (is_wanted || IsExcused(*committed, closed));
  world_.history.OnDecided(job.timeline, job.version, whole, world_.trace.now(), excused);
  standing_ = whole ? std::optional(Standing{*whole, false}) : std::nullopt;
  // What is gone is yet to be made anew, and guards of versions older than what is committed may
  // have been given to others.
  const bool steps_back = committed && job.version < *committed;
  if (whole && (steps_back || HasAny(*whole, GoneSince(*whole, SafeAt(*whole), closed)))) {
    proven_.erase(*whole);
    verified_[*whole] = closed;
  }
  is_protected_ = false;
}

std::optional<Version> ClusterObserver::NewestCopy(std::optional<Step> at_or_before) const {
  if (shelf_ == nullptr) return std::nullopt;
  std::optional<Version> newest;
  for (const auto& [version, name] : shelf_->copies()) {
    if (at_or_before && version.step > *at_or_before) continue;
    if (world_.history.IsLive(version)) newest = version;
  }
  return newest;
}

// When the round was first seen to close its timeline. A store that went back meanwhile was not
// closed later for that.
Duration ClusterObserver::ClosedAt(uint64_t round) const {
  Duration closed = world_.trace.now();
  for (const auto& [id, seen] : stores_) {
    const auto before = seen.closing.find(round);
    if (before != seen.closing.end()) closed = std::min(closed, before->second);
  }
  return closed;
}

std::optional<Version> ClusterObserver::OrderedIn(uint64_t round, uint64_t life) const {
  const auto seen = stores_.find(life);
  if (seen == stores_.end()) return std::nullopt;
  const auto ordered = seen->second.ordered.find(round);
  return ordered == seen->second.ordered.end() ? std::nullopt : std::optional(ordered->second);
}

void ClusterObserver::OnFailure(const smp::JobDecision& job, const DecisionRecord& decision,
                                bool is_step_wanted) {
  world_.trace.Add("decision {} of attempt {} fails: {}", decision.round(), job.attempt,
                   job.status.ToString());
  ++failures_;
  const bool is_refused =
      absl::IsFailedPrecondition(job.status) || absl::IsInvalidArgument(job.status);
  // What to do then the message says, and it is done.
  const bool may_be_tried_again = absl::StrContains(job.status.message(), "are of several runs") &&
                                  shelf_ != nullptr && shelf_->LeaveOneRun();
  if (is_refused && !is_step_wanted && !may_be_tried_again) {
    world_.trace.Fail("attempt {} of {} ranks is refused: {}", job.attempt, job.asked.size(),
                      job.status.ToString());
  }
  if (!absl::IsDataLoss(job.status)) return;
  const std::optional<Version> copy = NewestCopy(std::nullopt);
  const bool is_lost = absl::StrContains(job.status.message(), "unrecoverable");
  if (copy && is_lost && !is_step_wanted) {
    world_.trace.Fail("decision {} fails, and there is a copy of {}", decision.round(), *copy);
  }
  const std::optional<Version> committed = world_.history.committed();
  const Duration closed = ClosedAt(decision.round());
  world_.history.OnLost(job.attempt, committed && IsExcused(*committed, closed));
}

// Whether no node that can be asked has heard of it: those who had were destroyed or are lost.
bool ClusterObserver::IsForgotten(Version committed) const {
  return std::ranges::none_of(remembered_, [&](const auto& entry) {
    const auto is_lost = [&](const ViewMember& member) {
      return member.lost() && member.slot() == entry.first.value;
    };
    return entry.second.second >= committed && std::ranges::none_of(view_.members(), is_lost);
  });
}

void ClusterObserver::OnFlipped(NodeSlot slot, Version version) {
  rotted_[version][slot] = world_.trace.now();
}

// From when on what is lost of the version counts: all of it was there then.
Duration ClusterObserver::SafeAt(Version version) const {
  if (const auto proven = proven_.find(version); proven != proven_.end()) return proven->second;
  const auto verified = verified_.find(version);
  if (verified != verified_.end()) return verified->second;
  return world_.history.BegunAt(version).value_or(Duration{});
}

// Who has lost what it had of the version since then, or is lost, or was so after `closed`.
std::set<NodeSlot> ClusterObserver::GoneSince(Version version, Duration since,
                                              Duration closed) const {
  std::set<NodeSlot> gone;
  const auto add = [&gone](const Times& times, Duration from) {
    for (const auto& [slot, when] : times) {
      if (when >= from) gone.insert(slot);
    }
  };
  add(destroyed_, since);
  add(replaced_, since);
  if (const auto rotted = rotted_.find(version); rotted != rotted_.end()) {
    add(rotted->second, since);
  }
  add(lost_, closed);
  for (const ViewMember& member : view_.members()) {
    if (member.lost()) gone.insert(NodeSlot{member.slot()});
  }
  return gone;
}

// That it is encoded in.
const ClusterObserver::Groups& ClusterObserver::GroupsOf(Version version) const {
  if (const auto known = encoded_in_.find(version); known != encoded_in_.end()) {
    return known->second;
  }
  const auto formed = formed_.find(version.timeline);
  return formed == formed_.end() ? view_.groups() : formed->second;
}

// Whether one of those is in its groups.
bool ClusterObserver::HasAny(Version version, const std::set<NodeSlot>& gone) const {
  return std::ranges::any_of(GroupsOf(version), [&](const Group& group) {
    return std::ranges::any_of(group.slots(),
                               [&](uint64_t slot) { return gone.contains(NodeSlot{slot}); });
  });
}

// Whether more members of some group are gone than it has parities.
bool ClusterObserver::IsBeyondBudget(Version version, Duration closed) const {
  const std::set<NodeSlot> gone = GoneSince(version, SafeAt(version), closed);
  // What was decided and not committed before is whole, but nobody may have guarded it yet.
  if (HasAny(version, gone) && !proven_.contains(version)) return true;
  return std::ranges::any_of(GroupsOf(version), [&](const Group& group) {
    const auto is_gone = [&](uint64_t slot) { return gone.contains(NodeSlot{slot}); };
    return std::ranges::count_if(group.slots(), is_gone) + group.k() > group.slots().size();
  });
}

// Whether all of it can be had. Who came back since `closed` was not asked, and what has rotted in
// any bit says little.
bool ClusterObserver::IsThere(Version version, Duration closed) const {
  std::set<NodeSlot> gone = GoneSince(version, closed, closed);
  if (const auto rotted = rotted_.find(version); rotted != rotted_.end()) {
    for (const auto& [slot, when] : rotted->second) gone.insert(slot);
  }
  const uint64_t world = world_.history.WorldOf(version).value_or(0);
  return CanBeHad(machines_, view_, GroupsOf(version), gone, version, world);
}

// Whether a decision that was begun at `closed` may restore less than was committed.
bool ClusterObserver::IsExcused(Version committed, Duration closed) {
  if (!IsBeyondBudget(committed, closed)) return false;
  if (IsForgotten(committed)) return true;
  // So many losses, and yet all may be there. What was made anew meanwhile was not asked for.
  const auto before = had_at_closing_.find({committed, closed});
  if (before != had_at_closing_.end() && !before->second) return true;
  if (!IsThere(committed, closed)) return true;
  world_.trace.Fail("{} was committed and is given up, and can be had from what is left",
                    committed);
  return false;
}

// `closed`: what rots from then on may be found too late.
void ClusterObserver::CheckHolders(const DecisionRecord& decision, Duration closed) {
  const smp::JobDecision job = smp::DecisionOf(decision);
  const auto found = rotted_.find(job.version);
  const Times rotted = found == rotted_.end() ? Times() : found->second;
  const auto is_destroyed = [&](NodeSlot slot) {
    const auto destroyed = destroyed_.find(slot);
    return destroyed != destroyed_.end() && destroyed->second >= closed;
  };
  std::set<Rank> ranks;
  for (const recovery::SlabHolder& holder : job.holders) {
    ranks.insert(holder.ranks.begin(), holder.ranks.end());
    const auto rot = rotted.find(holder.slot);
    if (holder.lost) ++slabs_lost_;
    if (holder.lost && rot != rotted.end()) ++slabs_rotted_;
    if (holder.lost || is_destroyed(holder.slot)) continue;
    if (rot != rotted.end() && rot->second >= closed) continue;
    for (const Rank rank : holder.ranks) {
      if (machines_.at(holder.slot)->observer.Holds(job.version, rank)) continue;
      world_.trace.Fail("decision {}: node {} is to have rank {} of {}, and has not",
                        decision.round(), holder.slot, rank, job.version);
    }
  }
  if (ranks.size() == world_.history.WorldOf(job.version)) return;
  world_.trace.Fail("decision {}: {} is of {} ranks, and {} have holders", decision.round(),
                    job.version, world_.history.WorldOf(job.version).value_or(0), ranks.size());
}

}  // namespace unreft::sim
