// StoredSlabs: what the slabs of a version hold, as recovery::PlanRestore takes it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "layout/manifest.h"
#include "recovery/restore_planner.h"

namespace unreft::smp {

// May be read on the work pool while nobody adds to it.
class StoredSlabs {
 public:
  // Under the number that the parts of this slab have.
  void Add(uint32_t number, std::shared_ptr<const layout::SlotManifest> manifest) {
    for (const layout::CapturedPart& part : manifest->parts) {
      parts_.push_back({&manifest->tensors[part.tensor], number, part.shard_begin, part.bytes,
                        part.slab_offset});
    }
    manifests_.push_back(std::move(manifest));
  }

  const std::vector<recovery::StoredPart>& parts() const { return parts_; }

 private:
  std::vector<std::shared_ptr<const layout::SlotManifest>> manifests_;  // that the parts point into
  std::vector<recovery::StoredPart> parts_;
};

}  // namespace unreft::smp
