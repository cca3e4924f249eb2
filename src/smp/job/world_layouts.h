// WorldLayouts: what all ranks hold, as the leader knows it, and whether that fits together - of
// what they are registered with, before it is captured, and of a version, before it is committed.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <unreft/cluster.pb.h>

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "smp/core/node_options.h"
#include "smp/job/layout_check.h"
#include "smp/job/manifest_cache.h"
#include "smp/job/peers.h"
#include "smp/job/roll_call.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class WorldLayouts {
 public:
  // `on_told` runs when a node has answered what its ranks hold.
  WorldLayouts(Executor& executor, Peers& peers, Log& log, const NodeOptions& options,
               absl::AnyInvocable<void()> on_told);

  // In which view they are looked at, and of which attempt: the one that the decision in force was
  // made for; none is looked at before there is one.
  struct Key {
    uint64_t view = 0;
    std::optional<uint64_t> attempt;
    friend bool operator==(const Key&, const Key&) = default;
  };

  const ManifestCache& manifests() const { return manifests_; }
  const LayoutCheck& check() const { return check_; }
  // Asks that node for those of its ranks that have sealed the version.
  void Ask(NodeSlot slot, Version version);

  // A node has told; others than before, perhaps.
  void OnReport(bool registers_anew);
  // What was found of the registrations as they were told last: that they are being looked at, as
  // long as nothing is.
  ReportReply Found(const Key& key) const;
  // Whether LookAt may find what it did not find the last time.
  bool HasToLook(const Key& key) const { return is_told_ && !IsFound(key); }
  // Looks at them. `reports` are those of all nodes that count.
  void LookAt(const Key& key, const std::vector<RollCall::Told>& reports);

 private:
  bool IsFound(const Key& key) const { return found_ && found_for_ == key; }
  void Ask(NodeSlot slot, const ManifestRequest& request);

  Executor& executor_;
  Peers& peers_;
  Log& log_;
  const NodeOptions& options_;
  absl::AnyInvocable<void()> on_told_;
  ManifestCache manifests_;
  std::set<std::pair<NodeSlot, Version>> asking_;  // no version: of what is registered
  LayoutCheck check_;
  std::optional<ReportReply> found_;
  Key found_for_;
  bool is_told_ = false;  // something, since they were looked at
  Lifetime lifetime_;
};

}  // namespace unreft::smp
