#include "smp/job/board.h"

#include <algorithm>

#include "smp/job/cluster_records.h"
#include "smp/job/newest_steps.h"

namespace unreft::smp {
namespace {

std::optional<PassedRank> FindPassed(const NodeReport& report, Version version) {
  if (report.newest_timeline() != version.timeline.value) return std::nullopt;
  const VersionHolding* held = FindHolding(report, version);
  for (const RegisteredRank& rank : report.registered()) {
    if (!rank.has_passed_step() || rank.passed_step() < version.step.value) continue;
    const bool is_sealed =
        held != nullptr && std::ranges::any_of(held->sealed(), [&](const SealedRank& sealed) {
          return sealed.rank() == rank.rank();
        });
    const bool is_under_way =
        std::ranges::find(rank.capturing(), version.step.value) != rank.capturing().end();
    if (!is_sealed && !is_under_way) return PassedRank{Rank{rank.rank()}, Step{rank.passed_step()}};
  }
  return std::nullopt;
}

void NotePassed(NodeSlot slot, const NodeReport& report, Version version, Tally& tally) {
  if (const auto passed = FindPassed(report, version)) {
    tally.passed[slot] = *passed;
  } else {
    tally.passed.erase(slot);
  }
}

// Whether both say the same of a version, as far as it is tallied.
bool AreTalliedAlike(const VersionHolding& a, const VersionHolding& b) {
  return VersionOf(a) == VersionOf(b) && a.failure() == b.failure() &&
         std::ranges::equal(a.sealed(), b.sealed(), [](const SealedRank& x, const SealedRank& y) {
           return x.rank() == y.rank() && x.world() == y.world();
         });
}

// Those that `other` does not say the same of.
std::vector<const VersionHolding*> OthersThan(const Board::Versions& other,
                                              const Board::Versions& versions) {
  std::vector<const VersionHolding*> others;
  for (const VersionHolding& holding : versions) {
    const bool is_same = std::ranges::any_of(
        other, [&](const VersionHolding& same) { return AreTalliedAlike(holding, same); });
    if (!is_same) others.push_back(&holding);
  }
  return others;
}

template <typename Counts>
void CountDown(Counts& counts, const typename Counts::key_type& key) {
  const auto it = counts.find(key);
  if (--it->second == 0) counts.erase(it);
}

}  // namespace

// A slab counts where its node is a member: there are no more ranks than all nodes have sealed, and
// no smaller world than all of them name.
bool Tally::MayBeWhole() const {
  if (worlds.empty()) return false;
  return worlds.size() > 1 || sealed.size() >= worlds.begin()->first;
}

NodeReport Board::Take(NodeSlot slot, NodeReport report) {
  NodeReport& newest = reports_[slot];
  std::swap(newest, report);
  Retally(slot, report.versions(), newest);
  return report;
}

void Board::TakeVersions(NodeSlot slot, Versions versions, uint64_t number) {
  NodeReport& newest = reports_.at(slot);
  newest.mutable_versions()->Swap(&versions);
  newest.set_number(number);
  Retally(slot, versions, newest);
}

void Board::Retally(NodeSlot slot, const Versions& before, const NodeReport& newest) {
  // Most of what a node holds is what it held before.
  for (const VersionHolding* gone : OthersThan(newest.versions(), before)) Remove(slot, *gone);
  for (const VersionHolding* fresh : OthersThan(before, newest.versions())) Add(slot, *fresh);
  for (auto& [version, tally] : versions_) NotePassed(slot, newest, version, tally);
  NoteStep(slot, newest);
  // Also of what it holds no more, or what counts now that it did not before.
  if (const auto group = group_of_.find(slot); group != group_of_.end()) {
    for (auto& [version, groups] : to_look_at_) groups.insert(group->second);
  }
}

const NodeReport* Board::Of(NodeSlot slot) const {
  const auto it = reports_.find(slot);
  return it == reports_.end() ? nullptr : &it->second;
}

void Board::Add(NodeSlot slot, const VersionHolding& holding) {
  const Version version = VersionOf(holding);
  const auto [it, is_new] = versions_.try_emplace(version);
  Tally& tally = it->second;
  tally.nodes.insert(slot);
  if (!holding.failure().empty()) tally.failures[slot] = holding.failure();
  for (const SealedRank& rank : holding.sealed()) {
    ++tally.sealed[Rank{rank.rank()}];
    ++tally.worlds[rank.world()];
  }
  if (!is_new) return;
  for (const auto& [other, report] : reports_) NotePassed(other, report, version, tally);
}

void Board::Remove(NodeSlot slot, const VersionHolding& holding) {
  const auto it = versions_.find(VersionOf(holding));
  if (it == versions_.end()) return;
  Tally& tally = it->second;
  tally.nodes.erase(slot);
  tally.failures.erase(slot);
  for (const SealedRank& rank : holding.sealed()) {
    CountDown(tally.sealed, Rank{rank.rank()});
    CountDown(tally.worlds, rank.world());
  }
  if (!tally.nodes.empty() || !tally.sealed.empty()) return;
  to_look_at_.erase(it->first);
  versions_.erase(it);
}

void Board::NoteStep(NodeSlot slot, const NodeReport& report) {
  std::optional<Step> named;
  const auto note = [&](uint64_t step) { named = std::max(named, std::optional(Step{step})); };
  if (report.newest_timeline() == steps_of_.value) note(report.newest_step());
  for (const VersionHolding& holding : report.versions()) {
    if (holding.timeline() == steps_of_.value) note(holding.step());
  }
  std::optional<Step>& noted = steps_[slot];
  if (noted == named) return;
  if (noted) CountDown(step_counts_, *noted);
  if (named) ++step_counts_[*named];
  noted = named;
}

Step Board::NewestStep(Timeline timeline) {
  if (steps_of_ != timeline) {
    steps_of_ = timeline;
    steps_.clear();
    step_counts_.clear();
    for (const auto& [slot, report] : reports_) NoteStep(slot, report);
  }
  return BelievedOf(step_counts_);
}

void Board::Follow(const meta::JobState& records) const {
  const Followed now{records.store_id, records.revision, records.view.modified};
  if (followed_ == now) return;
  followed_ = now;
  groups_.clear();
  group_of_.clear();
  to_look_at_.clear();
  const ViewRecord& view = records.view.value;
  for (const ec::Group& group : GroupsOf(view.groups())) {
    for (const NodeSlot slot : group.slots) group_of_[slot] = groups_.size();
    groups_.push_back({group, {}, {}});
  }
  for (size_t place = 0; place < static_cast<size_t>(view.members_size()); ++place) {
    const ViewMember& member = view.members(static_cast<int>(place));
    const NodeSlot slot{member.slot()};
    const auto group = group_of_.find(slot);
    if (group == group_of_.end() || member.lost()) continue;
    groups_[group->second].members.push_back(place);
    groups_[group->second].memories[slot] = member.incarnation();
  }
}

Board::ToLookAt& Board::GroupsToLookAt(Version version) const {
  const auto [it, is_new] = to_look_at_.try_emplace(version);
  if (!is_new) return it->second;
  for (size_t i = 0; i < groups_.size(); ++i) it->second.insert(i);
  return it->second;
}

bool Board::AreGroupsProtected(Version version, const meta::JobState& records,
                               const RollCall& roll) const {
  Follow(records);
  ToLookAt& groups = GroupsToLookAt(version);
  while (!groups.empty()) {
    const GroupOfView& next = groups_[*groups.begin()];
    std::map<NodeSlot, recovery::NodeHolding> held;
    for (const size_t place : next.members) {
      const auto& [member, slot, report] = roll.members()[place];
      const VersionHolding* holding = report == nullptr ? nullptr : FindHolding(*report, version);
      if (holding != nullptr) held[slot] = HoldingOf(*holding);
    }
    if (!recovery::IsProtected(next.group, held, next.memories)) return false;
    groups.erase(groups.begin());
  }
  return true;
}

}  // namespace unreft::smp
