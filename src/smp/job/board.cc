#include "smp/job/board.h"

#include <absl/hash/hash.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>

#include "smp/job/cluster_records.h"
#include "smp/job/newest_steps.h"
#include "smp/job/report_checks.h"

namespace unreft::smp {
namespace {

// Whether both say the same of a version, as far as it is tallied.
bool AreTalliedAlike(const VersionHolding& a, const VersionHolding& b) {
  return VersionOf(a) == VersionOf(b) && a.failure() == b.failure() &&
         std::ranges::equal(a.sealed(), b.sealed(), [](const SealedRank& x, const SealedRank& y) {
           return x.rank() == y.rank() && x.world() == y.world();
         });
}

size_t HashOfRanks(const NodeReport& report) {
  size_t hash = HashOfLife(report);
  for (const RegisteredRank& rank : report.registered()) {
    hash = absl::HashOf(hash, rank.rank(), rank.world(), rank.attempt(), rank.layout_digest());
  }
  return hash;
}

bool AreOfOneLife(const NodeReport& a, const NodeReport& b) {
  return a.session() == b.session() && a.incarnation() == b.incarnation();
}

template <typename Counts>
void CountDown(Counts& counts, const typename Counts::key_type& key) {
  const auto it = counts.find(key);
  if (--it->second == 0) counts.erase(it);
}

}  // namespace

size_t HashOfLife(const NodeReport& report) {
  return absl::HashOf(report.session(), std::string_view(report.incarnation()));
}

// A slab counts where its node is a member: there are no more ranks than all nodes have sealed, and
// no smaller world than all of them name.
bool Tally::MayBeWhole() const {
  if (worlds.empty()) return false;
  return worlds.size() > 1 || sealed.size() >= worlds.begin()->first;
}

Board::Held::Held(const VersionHolding& holding, std::optional<size_t> hash)
    : version(VersionOf(holding)), hash(hash) {
  for (const SealedRank& rank : holding.sealed()) sealed.push_back(Rank{rank.rank()});
}

absl::Status Board::Take(NodeSlot slot, ReportParts& report) {
  const auto known = nodes_.find(slot);
  const std::vector<Held> before = {};
  const std::vector<Held>& held = known == nodes_.end() ? before : known->second.held;
  std::vector<bool> stays(held.size());
  Versions& fresh = *report.rest.mutable_versions();
  std::vector<Held> held_afresh;
  std::vector<Version> named;
  for (const std::string_view encoded : report.versions) {
    const size_t hash = absl::HashOf(encoded);
    const auto same = std::ranges::find(held, std::optional(hash), &Held::hash);
    const auto index = static_cast<size_t>(same - held.begin());
    if (same != held.end() && !stays[index]) {
      stays[index] = true;
      named.push_back(same->version);
      continue;
    }
    VersionHolding& holding = *fresh.Add();
    if (!holding.ParseFromArray(encoded.data(), static_cast<int>(encoded.size()))) {
      return absl::InvalidArgumentError(
          fmt::format("what it says of a version, in {} bytes, cannot be read", encoded.size()));
    }
    if (absl::Status status = CheckHolding(holding); !status.ok()) return status;
    held_afresh.emplace_back(holding, hash);
    named.push_back(held_afresh.back().version);
  }
  if (absl::Status status = CheckNamedOnce(std::move(named)); !status.ok()) return status;

  Node& node = nodes_[slot];
  if (node.report == nullptr) node.report = &reports_[slot];
  Replace(slot, node, stays, std::move(held_afresh), fresh);
  const bool is_of_one_life = AreOfOneLife(*node.report, report.rest);
  fresh.Swap(node.report->mutable_versions());
  std::swap(*node.report, report.rest);
  // What it holds counts, or counts no more.
  if (!is_of_one_life) {
    for (const auto& [version, groups] : to_look_at_) LookAgain(slot, version);
  }
  node.ranks = HashOfRanks(*node.report);
  node.passed = Step{};
  for (const RegisteredRank& rank : node.report->registered()) {
    node.passed = std::max(node.passed, Step{rank.passed_step()});
  }
  NotePassed(slot, node);
  NoteStep(node);
  return absl::OkStatus();
}

void Board::TakeVersions(NodeSlot slot, Versions versions, uint64_t number) {
  Node& node = nodes_.at(slot);
  std::vector<Held> held;
  for (const VersionHolding& holding : versions) held.emplace_back(holding, std::nullopt);
  Replace(slot, node, std::vector<bool>(node.held.size()), std::move(held), versions);
  node.report->set_number(number);
  NotePassed(slot, node);
  NoteStep(node);
}

void Board::Replace(NodeSlot slot, Node& node, const std::vector<bool>& stays,
                    std::vector<Held> held, Versions& fresh) {
  Versions& versions = *node.report->mutable_versions();
  std::vector<bool> is_tallied(held.size());  // of what is fresh
  for (size_t i = 0; i < stays.size(); ++i) {
    if (stays[i]) continue;
    const VersionHolding& gone = versions[static_cast<int>(i)];
    const auto alike = std::ranges::find_if(
        fresh, [&](const VersionHolding& other) { return AreTalliedAlike(gone, other); });
    LookAgain(slot, node.held[i].version);
    if (alike == fresh.end()) {
      Remove(slot, gone);
    } else {
      is_tallied[static_cast<size_t>(alike - fresh.begin())] = true;
    }
  }
  for (size_t i = 0; i < held.size(); ++i) {
    if (!is_tallied[i]) Add(slot, fresh[static_cast<int>(i)]);
    LookAgain(slot, held[i].version);
  }

  // From the end, where all that comes after a place is in its own.
  size_t next = 0;
  for (size_t i = stays.size(); i-- > 0;) {
    if (stays[i]) continue;
    const int place = static_cast<int>(i);
    if (next < held.size()) {
      versions[place].Swap(&fresh[static_cast<int>(next)]);
      node.held[i] = std::move(held[next++]);
    } else {
      versions.SwapElements(place, versions.size() - 1);
      versions.RemoveLast();
      std::swap(node.held[i], node.held.back());
      node.held.pop_back();
    }
  }
  for (; next < held.size(); ++next) {
    versions.Add()->Swap(&fresh[static_cast<int>(next)]);
    node.held.push_back(std::move(held[next]));
  }
}

bool Board::HasSameRanks(NodeSlot slot, const NodeReport& report) const {
  const auto node = nodes_.find(slot);
  return node != nodes_.end() && node->second.ranks == HashOfRanks(report);
}

const NodeReport* Board::Of(NodeSlot slot) const {
  const auto node = nodes_.find(slot);
  return node == nodes_.end() ? nullptr : node->second.report;
}

std::optional<PassedRank> Board::FindPassed(const Node& node, Version version) {
  if (node.passed < version.step || node.report->newest_timeline() != version.timeline.value) {
    return std::nullopt;
  }
  const auto held = std::ranges::find(node.held, version, &Held::version);
  for (const RegisteredRank& rank : node.report->registered()) {
    if (!rank.has_passed_step() || rank.passed_step() < version.step.value) continue;
    const bool is_sealed = held != node.held.end() &&
                           std::ranges::find(held->sealed, Rank{rank.rank()}) != held->sealed.end();
    const bool is_under_way =
        std::ranges::find(rank.capturing(), version.step.value) != rank.capturing().end();
    if (!is_sealed && !is_under_way) return PassedRank{Rank{rank.rank()}, Step{rank.passed_step()}};
  }
  return std::nullopt;
}

void Board::NotePassed(NodeSlot slot, const Node& node, Version version, Tally& tally) {
  if (const auto passed = FindPassed(node, version)) {
    tally.passed[slot] = *passed;
  } else {
    tally.passed.erase(slot);
  }
}

void Board::NotePassed(NodeSlot slot, const Node& node) {
  for (auto& [version, tally] : versions_) NotePassed(slot, node, version, tally);
}

void Board::Add(NodeSlot slot, const VersionHolding& holding) {
  const Version version = VersionOf(holding);
  const auto [it, is_new] = versions_.try_emplace(version);
  Tally& tally = it->second;
  ++tally.nodes;
  if (!holding.failure().empty()) tally.failures[slot] = holding.failure();
  for (const SealedRank& rank : holding.sealed()) {
    ++tally.sealed[Rank{rank.rank()}];
    ++tally.worlds[rank.world()];
  }
  if (!is_new) return;
  for (const auto& [other, node] : nodes_) NotePassed(other, node, version, tally);
}

void Board::Remove(NodeSlot slot, const VersionHolding& holding) {
  const auto it = versions_.find(VersionOf(holding));
  Tally& tally = it->second;
  --tally.nodes;
  tally.failures.erase(slot);
  for (const SealedRank& rank : holding.sealed()) {
    CountDown(tally.sealed, Rank{rank.rank()});
    CountDown(tally.worlds, rank.world());
  }
  if (tally.nodes != 0) return;
  to_look_at_.erase(it->first);
  versions_.erase(it);
}

void Board::NoteStep(Node& node) {
  std::optional<Step> named;
  const auto note = [&](Step step) { named = std::max(named, std::optional(step)); };
  if (node.report->newest_timeline() == steps_of_.value) note(Step{node.report->newest_step()});
  for (const Held& held : node.held) {
    if (held.version.timeline == steps_of_) note(held.version.step);
  }
  if (node.named == named) return;
  if (node.named) CountDown(step_counts_, *node.named);
  if (named) ++step_counts_[*named];
  node.named = named;
}

Step Board::NewestStep(Timeline timeline) {
  if (steps_of_ != timeline) {
    steps_of_ = timeline;
    step_counts_.clear();
    for (auto& [slot, node] : nodes_) {
      node.named.reset();
      NoteStep(node);
    }
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

Board::ToLookAt::ToLookAt(size_t groups) : groups_(groups), is_in_(groups, true) {
  std::iota(groups_.begin(), groups_.end(), size_t{0});
}

void Board::ToLookAt::Add(size_t group) {
  if (is_in_[group]) return;
  is_in_[group] = true;
  groups_.push_back(group);
}

void Board::ToLookAt::PopNext() {
  is_in_[next()] = false;
  groups_.pop_back();
}

Board::ToLookAt& Board::GroupsToLookAt(Version version) const {
  return to_look_at_.try_emplace(version, groups_.size()).first->second;
}

void Board::LookAgain(NodeSlot slot, Version version) {
  const auto group = group_of_.find(slot);
  const auto groups = to_look_at_.find(version);
  if (group != group_of_.end() && groups != to_look_at_.end()) groups->second.Add(group->second);
}

bool Board::AreGroupsProtected(Version version, const meta::JobState& records,
                               const RollCall& roll) const {
  Follow(records);
  ToLookAt& groups = GroupsToLookAt(version);
  while (!groups.empty()) {
    const GroupOfView& next = groups_[groups.next()];
    std::map<NodeSlot, recovery::NodeHolding> held;
    for (const size_t place : next.members) {
      const auto& [member, slot, report] = roll.members()[place];
      const VersionHolding* holding = report == nullptr ? nullptr : FindHolding(*report, version);
      if (holding != nullptr) held[slot] = HoldingOf(*holding);
    }
    if (!recovery::IsProtected(next.group, held, next.memories)) return false;
    groups.PopNext();
  }
  return true;
}

}  // namespace unreft::smp
