// WorldLayouts: what all ranks hold, as the leader knows it, and whether that fits together - of
// what they are registered with, before it is captured, and of a version, before it is committed.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <unreft/cluster.pb.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "layout/manifest.h"
#include "smp/core/node_options.h"
#include "smp/job/layout_check.h"
#include "smp/job/peers.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class WorldLayouts {
 public:
  // `on_told` runs when a node has answered what its ranks hold.
  WorldLayouts(Peers& peers, Log& log, const NodeOptions& options,
               absl::AnyInvocable<void()> on_told);

  // A rank, where it is asked for, and the digest of its layout.
  struct RankLayout {
    NodeSlot home;
    uint64_t digest = 0;
  };
  // Of a version; none as long as some rank's has to be asked for.
  std::optional<ManifestsByRank> ManifestsOf(Version version,
                                             const std::map<Rank, RankLayout>& ranks);

  // As LayoutCheck.
  absl::Status Check(const ManifestsByRank& manifests) { return check_.Check(manifests); }

  // A node has told; others than before, perhaps.
  void OnReport(bool registers_anew);
  // What was found of the registrations as they were told last, in the view of that number: that
  // they are being looked at, as long as nothing is.
  ReportReply Found(uint64_t view) const;
  // Whether LookAt may find what it did not find the last time.
  bool HasToLook(uint64_t view) const { return is_told_ && !IsFound(view); }
  // Looks at them. `reports` are those of all nodes that count.
  void LookAt(uint64_t view, const std::vector<std::pair<NodeSlot, const NodeReport*>>& reports);

 private:
  // Layouts change seldom: a rank's manifest is asked for when its digest is new. Those of two
  // digests are kept, of what it is registered with and of a version that is under way.
  static constexpr size_t kPerRank = 2;
  using ManifestPtr = std::shared_ptr<const layout::SlotManifest>;

  bool IsFound(uint64_t view) const { return found_ && found_in_view_ == view; }
  ManifestPtr Find(Rank rank, uint64_t digest) const;
  void Keep(layout::SlotManifest manifest);
  // None as long as some have to be asked for, of which `request` says what.
  std::optional<ManifestsByRank> Collect(const ManifestRequest& request,
                                         const std::map<Rank, RankLayout>& ranks);
  void Ask(NodeSlot slot, const ManifestRequest& request);

  Peers& peers_;
  Log& log_;
  const NodeOptions& options_;
  absl::AnyInvocable<void()> on_told_;
  std::map<Rank, std::deque<ManifestPtr>> manifests_;
  std::set<std::pair<NodeSlot, Version>> asking_;  // no version: of what is registered
  LayoutCheck check_;
  std::optional<ReportReply> found_;
  uint64_t found_in_view_ = 0;
  bool is_told_ = false;  // something, since they were looked at
  Lifetime lifetime_;
};

}  // namespace unreft::smp
