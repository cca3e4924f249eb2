// CopyPlan: which boxes of a rank's slab become items of a durable copy, and where they lie in the
// rank's file. A pure function of the slab's manifest, so that who writes the file, who lists it
// in `.metadata` and who reads it back agree without a word.
//
//   slab   | part 0         |pad| part 1 |        a part: a range of a shard's bytes
//   file   | head box tail | head box tail | ...  an item: a box as an archive that torch.load
//   reads
//
// A part is divided into boxes, since a reader of the copy knows boxes alone, and a box of more
// than kItemBytesMax is divided once more, since such a reader loads whole items.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <vector>

#include "durable/torch_archive.h"
#include "layout/box.h"
#include "layout/manifest.h"

namespace unreft::durable {

inline constexpr uint64_t kItemBytesMax = uint64_t{256} << 20;
inline constexpr uint64_t kItemBytesMin = 1024;  // of what another has written

// A part of what a rank captured.
struct CopiedBox {
  uint32_t tensor = 0;       // index in the manifest
  layout::Box box;           // of that tensor, in the order of its dimensions in memory
  uint64_t slab_offset = 0;  // where its bytes are in the slab
  uint64_t bytes = 0;        // of the box
};

struct CopyItem : CopiedBox {
  uint64_t at = 0;  // where its archive is in the file
  uint64_t archive_bytes = 0;
};

struct CopyPlan {
  std::vector<CopyItem> items;  // in the order of the slab and of the file
  uint64_t file_bytes = 0;
};

// Whether what the rank captured of that tensor is in its file: where every replica has captured
// all of it (CaptureMode::kFull), the first replica's alone is copied.
bool IsCopied(const layout::SlotManifest& manifest, const TensorSpec& spec);

// The parts that are copied, in the order of the slab, as boxes of `bytes_max` at most, which is
// one element at least; no more of them than that needs when it is UINT64_MAX. DataLoss, naming
// rank and tensor, for a manifest that contradicts itself.
absl::StatusOr<std::vector<CopiedBox>> CopiedBoxes(const layout::SlotManifest& manifest,
                                                   uint64_t bytes_max);

// Of the boxes that are copied, each an item.
absl::StatusOr<CopyPlan> PlanCopy(const layout::SlotManifest& manifest,
                                  uint64_t item_bytes_max = kItemBytesMax);

// The logical tensor of an item: a permuted one has its own sizes, and strides that say how its
// bytes lie.
ArchiveTensor ArchiveOf(const TensorSpec& stored, const layout::Box& box);

// The item's place in the logical tensor.
layout::Box LogicalBoxOf(const TensorSpec& stored, const layout::Box& box);

}  // namespace unreft::durable
