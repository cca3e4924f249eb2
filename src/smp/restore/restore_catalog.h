// RestoreCatalog: everything about the slabs of a restored version but their data: manifests, CRC
// tables, extras, and where each slab is; and, of all of them together, what is stored of each
// tensor.
//
// Each holder is asked, this node itself as well, and of a lost one those members of its group that
// keep its description; asking goes on until all have answered or the decision is superseded.
#pragma once

#include <absl/functional/any_invocable.h>
#include <unreft/cluster.pb.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/lifetime.h"
#include "layout/manifest_view.h"
#include "recovery/restorable.h"
#include "recovery/restore_tables.h"
#include "recovery/wanted_boxes.h"
#include "smp/desk/node_state.h"
#include "smp/job/peers.h"

namespace unreft::smp {

struct CatalogSlab {
  NodeSlot home;
  bool lost = false;  // its memory is gone: to be decoded
  NodeSlot described_by;  // another than its home if that did not answer, or has not got it
  layout::SlotManifest head;    // its manifest without what it says of tensors
  std::shared_ptr<const SlabDescription> description;  // checked against its CRCs
  std::vector<uint32_t> crcs;  // of its blocks

  // As it lies in the description.
  std::shared_ptr<const std::string> manifest_bytes() const {
    return {description, &description->manifest()};
  }
  // All of it. Decoded when somebody asks: in a large job that are few of all slabs.
  const std::shared_ptr<const layout::SlotManifest>& manifest() const;

 private:
  mutable std::shared_ptr<const layout::SlotManifest> manifest_;
};

// What its rank's slots need, as far as a slab shows it: the same as when the rank registered,
// unless its extras are of another size now.
SlotNeeds SlotNeedsOf(const CatalogSlab& slab, const NodeOptions& options);

// Writes all that describes the slab into the regions of the slot that it is decoded into, which
// are large enough; what the seal is to say, but for generation and version.
SlotSeal FillDescription(const CatalogSlab& slab, SlotView& view);

// Single-threaded on the node's executor.
class RestoreCatalog {
 public:
  // Plans are expected to ask for what is `wanted`, for anything if that is not said. `on_ready`
  // runs in a turn of its own, at most once; `peers` and `job` outlive this.
  RestoreCatalog(NodeState& state, Peers& peers, const meta::JobRecords& job,
                 const JobDecision& decision, std::optional<recovery::WantedBoxes> wanted,
                 absl::AnyInvocable<void()> on_ready);

  bool ready() const { return missing_ == 0; }
  Version version() const { return version_; }
  // By rank; complete once it is ready.
  const std::map<Rank, CatalogSlab>& slabs() const { return slabs_; }
  const CatalogSlab* Find(Rank rank) const;
  // What all slabs hold, under the numbers of their ranks. Nothing is added once it is ready, so
  // that the work pool may ask it, and may go on when this is gone.
  const std::shared_ptr<recovery::RestoreTables>& tables() const { return tables_; }
  // Once it is ready: the record of the guard that the slot would have, of its group's slabs where
  // they are now: the same slabs for all members. None if there is nothing to guard.
  std::optional<GuardRecord> DescribeGroup(NodeSlot slot) const;
  // The most that the descriptions of these slabs take in a guard's record.
  uint64_t DescriptionBytesOf(const MemberSlab& member) const;

 private:
  void Ask(recovery::SlabHolder holder, size_t attempt);
  // Who may know about the holder's slabs, in the order of asking.
  std::vector<NodeSlot> Knowing(const recovery::SlabHolder& holder) const;
  absl::Status Take(const recovery::SlabHolder& holder, NodeSlot asked, const MetaReply& reply);
  absl::StatusOr<CatalogSlab> SlabOf(const SlabDescription& description,
                                     layout::ManifestView& view) const;

  NodeState& state_;
  Peers& peers_;
  const meta::JobRecords& job_;
  const Version version_;
  absl::AnyInvocable<void()> on_ready_;
  std::map<Rank, CatalogSlab> slabs_;
  std::shared_ptr<recovery::RestoreTables> tables_;
  std::vector<layout::ManifestView> views_;  // of the slabs that are taken
  size_t missing_ = 0;                       // holders
  Lifetime lifetime_;
};

}  // namespace unreft::smp
