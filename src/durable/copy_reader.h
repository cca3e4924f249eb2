// CopyReader: what a complete durable copy says of itself, each record checked before it is
// believed: its frame, its CRC in the record of the whole copy, and that it is of this copy. Reads
// our own files alone; `.metadata` is PyTorch's, and only that it is there counts.
//
// Every call blocks, as the store's do. DataLoss, naming file, what was needed and what was found,
// for what is damaged, missing or of another copy; FailedPrecondition for a format that only a
// newer release reads. Thread-compatible.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/copy.pb.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "durable/cold_store.h"
#include "durable/copy_plan.h"
#include "layout/manifest.h"

namespace unreft::durable {

// A rank's slab in the copy: where its items lie in its file, and what their data have to be.
struct SlabItems {
  layout::SlotManifest manifest;
  CopyPlan plan;
  std::string file;
  std::vector<uint32_t> crcs;  // CRC32C of the data of each item of the plan
};

class CopyReader {
 public:
  // `store` has this one copy and outlives the reader. FailedPrecondition when the copy is not
  // complete, has the weights alone, or is no copy of Unreft at all.
  static absl::StatusOr<CopyReader> Open(ColdStore& store);

  ColdStore& store() const { return *store_; }
  const CopyOrder& order() const { return record_.order(); }
  // Ranks, each of which has a slab in the copy.
  uint64_t world() const { return order().world(); }

  // As messages name a file of the copy: "/mnt/ckpt/step-1200/__3_0.distcp".
  std::string PathOf(std::string_view file) const;

  // What the copy says of that rank's slab. InvalidArgument for a rank that is not of the world.
  absl::StatusOr<CopySlab> Describe(Rank rank) const;

  // What Describe has returned, decoded.
  absl::StatusOr<SlabItems> ItemsOf(const CopySlab& slab) const;

  // Both at once, read when they are first asked for and kept as long as this reader: the manifest
  // and the plan of the rank's slab, about a hundred bytes for each of its tensors and items.
  absl::StatusOr<const SlabItems*> KeptItems(Rank rank);

 private:
  CopyReader(ColdStore& store, CopyRecord record) : store_(&store), record_(std::move(record)) {}
  absl::StatusOr<SlabItems> CheckedItems(const CopySlab& slab, Rank rank) const;

  ColdStore* store_;
  CopyRecord record_;
  std::map<Rank, std::unique_ptr<const SlabItems>> kept_;
};

}  // namespace unreft::durable
