#include "smp/job/own_versions.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <set>
#include <vector>

#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "smp/job/pins.h"
#include "smp/job/refusals.h"

namespace unreft::smp {
namespace {

// Versions under way on this node. While the meta store is away nothing tells which are over.
constexpr size_t kUnderWayMax = 16;

}  // namespace

bool OwnVersions::IsOfInterest(Version version) const {
  return version.timeline == record_.chain().newest() && version > record_.committed();
}

bool OwnVersions::IsAbandoned(Version version) const {
  return smp::IsAbandoned(job_.abandoned.value, version);
}

bool OwnVersions::OnClaimed(Version version, Rank rank) {
  if (!IsOfInterest(version)) return false;
  newest_steps_.Note(rank.value, version.step);
  return Begin(version);
}

bool OwnVersions::OnSealed(Version version, Rank rank) {
  if (!IsOfInterest(version)) {
    Abandon(version, std::string(kOfNoUse));
    return false;
  }
  newest_steps_.Note(rank.value, version.step);
  return Begin(version);
}

bool OwnVersions::OnFailed(Version version, Rank rank, const std::string& reason) {
  if (!IsOfInterest(version)) return false;
  newest_steps_.Note(rank.value, version.step);
  if (IsAbandoned(version)) return false;
  MakeRoomFor(version);
  std::string& failure = failures_[version];
  if (failure.empty()) failure = fmt::format("rank {}: {}", rank, reason);
  return true;
}

bool OwnVersions::Begin(Version version) {
  if (IsAbandoned(version)) {
    Abandon(version, job_.abandoned.value.reason());
    return false;
  }
  MakeRoomFor(version);
  failures_.try_emplace(version);
  return true;
}

void OwnVersions::MakeRoomFor(Version version) {
  while (failures_.size() >= kUnderWayMax && !failures_.contains(version)) {
    // One that has failed can be of no use any more; what is whole may still be committed. The
    // oldest that failed is what the job has to give up before all others: others may hold memory
    // for it. Of one that is newer the leader hears all the same that the ranks have passed it by.
    const auto failed = std::ranges::find_if(
        std::views::reverse(failures_), [](const auto& entry) { return !entry.second.empty(); });
    const Version over = failed == failures_.rend() ? failures_.begin()->first : failed->first;
    Abandon(over, std::string(failures_.at(over)));
  }
}

void OwnVersions::Abandon(Version version, const std::string& reason) {
  failures_.erase(version);
  node_.OnAbandoned(version, reason);
  protection_.Drop(version);
}

void OwnVersions::OnTimeline(Step begun) {
  failures_.clear();
  newest_steps_ = NewestSteps(begun);
}

void OwnVersions::OnCommitted(Version version) {
  std::vector<Version> older;
  for (const auto& [candidate, failure] : failures_) {
    if (candidate < version) older.push_back(candidate);
  }
  failures_.erase(version);
  for (const Version candidate : older) {
    // What is pinned was committed, and this node has not read it before a newer one was.
    if (IsPinned(job_.pins.value, candidate)) {
      failures_.erase(candidate);
    } else {
      Abandon(candidate, OverruledBy(version));
    }
  }
}

void OwnVersions::OnAbandoned() {
  // What this process adopted nobody has reported to it.
  std::set<Version> abandoned;
  for (const HeldSlab& held : node_.Inventory()) abandoned.insert(held.slab.version);
  for (const auto& [version, failure] : failures_) abandoned.insert(version);
  std::erase_if(abandoned, [this](Version version) { return !IsAbandoned(version); });
  for (const Version version : abandoned) Abandon(version, job_.abandoned.value.reason());
}

}  // namespace unreft::smp
