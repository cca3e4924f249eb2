// RestoreTables: the StoredTables of one version, made of the manifests of all its slabs.
//
// They name every tensor, but have the boxes of those alone that plans ask for: ten thousand ranks
// store a thousand times what the ranks of one node restore, and to keep all of it took two thirds
// of the time. Who asks for more than was expected has the manifests read again, for all who wait.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/tensor_spec.h"
#include "layout/manifest_view.h"
#include "recovery/stored_tables.h"
#include "recovery/wanted_boxes.h"

namespace unreft::recovery {

// Filled by one thread, then asked by any number at once.
class RestoreTables {
 public:
  struct Slab {
    uint32_t number = 0;  // the caller's
    std::shared_ptr<const std::string> manifest;
    const layout::ManifestView* view = nullptr;  // of the manifest, while it is added
  };

  // Of that many slabs, or more. What is not wanted is left out, nothing if it is not said.
  explicit RestoreTables(size_t slabs, std::optional<WantedBoxes> wanted = std::nullopt);

  // The slabs of a node are added together (StoredTables::AddSlabs).
  void AddSlabs(std::span<const Slab> slabs);

  // With the boxes of what was asked for until now, and the names of all.
  std::shared_ptr<const StoredTables> Latest() const;
  // With those of the targets too, which are as layout::CheckTensorSpec has them. May read all
  // manifests, and wait for who does: for a pool.
  std::shared_ptr<const StoredTables> For(std::span<const TensorSpec> targets);

 private:
  struct Manifest {
    uint32_t number = 0;  // of its slab
    std::shared_ptr<const std::string> bytes;
  };

  std::shared_ptr<StoredTables> Make(const WantedBoxes& wanted) const;

  const size_t slabs_;
  std::vector<Manifest> manifests_;
  std::mutex making_;         // held by who reads all manifests
  mutable std::mutex mutex_;  // of what follows, once it is filled
  std::optional<WantedBoxes> wanted_;
  std::shared_ptr<StoredTables> tables_;
};

}  // namespace unreft::recovery
