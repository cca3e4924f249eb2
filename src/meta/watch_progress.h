// WatchProgress: from where one watch is told, and whether the store that it meets is the one that
// was read. Pure; the same for etcd's client and the fake.
//
// A store is asked for its cluster id and revision before the watch is opened, by a read that sees
// every acknowledged change: what a follower of a cluster says of itself may be behind.
#pragma once

#include <absl/status/status.h>
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "meta/kv.h"

namespace unreft::meta {

class WatchProgress {
 public:
  // `cluster_id` 0: any store will do, the first one is kept to. `start` 0: from the store's next
  // revision on.
  WatchProgress(uint64_t cluster_id, Revision start)
      : cluster_id_(cluster_id), next_(start), seen_{start.value == 0 ? 0 : start.value - 1} {}

  // From which revision to watch there; 0 before the first meeting of a watch from now on.
  Revision next() const { return next_; }

  // Once. DataLoss, naming both: another store, or one that is older than what was seen.
  absl::Status Meet(uint64_t cluster_id, Revision revision) {
    if (cluster_id_ == 0) cluster_id_ = cluster_id;
    if (cluster_id != cluster_id_) {
      return absl::DataLossError(fmt::format(
          "the meta store is another one: cluster {:x} at revision {}, was cluster {:x} at {}",
          cluster_id, revision, cluster_id_, seen_));
    }
    if (revision < seen_) {
      return absl::DataLossError(
          fmt::format("the meta store went back: cluster {:x} at revision {}, was at {}",
                      cluster_id, revision, seen_));
    }
    if (next_.value == 0) next_ = {revision.value + 1};
    return absl::OkStatus();
  }

  // `events`, in order, cut by revision; what was delivered already is left out.
  std::vector<std::vector<WatchEvent>> Deliver(std::vector<WatchEvent> events) {
    std::vector<std::vector<WatchEvent>> cut;
    Revision last;
    for (WatchEvent& event : events) {
      const Revision revision = event.kv.mod_revision;
      if (revision < next_) continue;
      if (cut.empty() || revision != last) cut.emplace_back();
      last = revision;
      cut.back().push_back(std::move(event));
    }
    if (!cut.empty()) next_ = {last.value + 1};
    return cut;
  }

 private:
  uint64_t cluster_id_;
  Revision next_;
  const Revision seen_;  // the newest revision that the store is known to have had
};

}  // namespace unreft::meta
