#include "smp/job/fresh_start.h"

#include <fmt/format.h>

#include <utility>

#include "base/format.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {
namespace {

absl::Status UnderRanks(uint64_t ranks) {
  return absl::FailedPreconditionError(
      fmt::format("ranks that are connected: needed 0, found {}: what is committed would be given "
                  "up, and nothing that they capture would be committed until they are started "
                  "again. End the job first; --force does it all the same",
                  ranks));
}

std::string Declared(NodeSlot from, Version committed, uint64_t ranks) {
  std::string line = fmt::format(
      "a fresh start is declared by an order to node {}: what was committed up to {} is given up",
      from, committed);
  if (ranks > 0) {
    line += fmt::format(
        ". {} ranks are connected (--force): nothing that they capture is committed until they are "
        "started again",
        ranks);
  }
  return line;
}

}  // namespace

absl::StatusOr<FreshStart> OrderFreshStart(NodeSlot from, bool force, Timeline declared,
                                           const meta::JobState& records, const RollCall& roll) {
  // Older than what the nodes have kept it would be undone by that.
  if (!records.IsSeeded()) {
    return absl::UnavailableError(
        "it is not known yet what the nodes have kept: not all of them have told the leader; try "
        "again");
  }
  uint64_t ranks = 0;
  for (const RollCall::Entry& entry : roll.members()) {
    if (entry.report != nullptr) ranks += entry.report->ranks();
  }
  if (ranks > 0 && !force) return UnderRanks(ranks);
  TimelineRecord timeline = records.timeline.value;
  OpenTimeline(declared, Version{}, timeline);
  timeline.clear_rewind();
  CommitRecord commit;
  commit.set_timeline(declared.value);
  FreshStart order;
  order.change.timeline = std::move(timeline);
  order.change.commit = std::move(commit);
  EndFirstEpoch(records, order.change);
  order.said = Declared(from, VersionOf(records.commit.value), ranks);
  return order;
}

bool WasGivenUp(const meta::JobState& records) {
  const CommitRecord& commit = records.commit.value;
  return commit.world() == 0 && commit.timeline() != 0;
}

}  // namespace unreft::smp
