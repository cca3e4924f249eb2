// WeightPlan: the files of safetensors that have a rank's weights. A pure function of the slab's
// manifest and of the names, so that who writes the files and who completes the copy agree without
// a word.
//
// A file has one entry of a name, and an entry is a box. Where a rank has several boxes of a
// tensor, as a part that is cut in the middle of rows is divided into, the second is in a second
// file, and so on.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "durable/copy_plan.h"
#include "durable/weight_names.h"
#include "layout/box.h"
#include "layout/manifest.h"

namespace unreft::durable {

struct WeightEntry {
  std::string key;
  CopiedBox from;   // where its bytes are in the slab
  layout::Box box;  // its place in the logical tensor
};

struct WeightFile {
  std::string name;
  std::vector<WeightEntry> entries;  // as their data follow each other
  std::string header;                // all bytes before them
  uint64_t bytes = 0;                // header included
};

struct WeightPlan {
  std::vector<WeightFile> files;
  uint64_t bytes = 0;  // of all files
};

// DataLoss for a manifest that contradicts itself; InvalidArgument, naming the tensor, for one that
// the format or this code cannot put into row-major order (row_major.h).
absl::StatusOr<WeightPlan> PlanWeights(const layout::SlotManifest& manifest,
                                       const WeightNames& names);

}  // namespace unreft::durable
