// What `.metadata` of a durable copy lists: the tensors of all ranks as items of their files, and
// beside them the values that `get_state_dict` names and the extras of each rank. Pure.
#pragma once

#include <absl/status/statusor.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "durable/copy_names.h"
#include "durable/copy_plan.h"
#include "durable/dcp_metadata.h"
#include "durable/plain_value.h"
#include "layout/manifest.h"

namespace unreft::durable {

// One rank's part of a copy.
struct CopiedSlab {
  layout::SlotManifest manifest;
  CopyPlan plan;
  std::string file;
  std::string extras;
};

// By key. DataLoss, naming tensor and numbers, unless the items of each tensor are all of it, each
// element once; InvalidArgument when `map` gives two tensors one key.
absl::StatusOr<std::vector<DcpEntry>> TensorEntries(std::span<const CopiedSlab> slabs,
                                                    const KeyMap& map);

struct ValueEntry {
  CopyName name;
  PlainValue value;
};

// Of the extras of the ranks, in their order: each hyperparameter of a group of an optimizer, of
// the first rank that has the group, and its parameters, of all ranks; what its state has beside
// tensors; and the extras of each rank as they are, as a tensor of bytes, `unreft.rank0.extras`.
// Groups of several optimizers follow each other. Naming the rank: DataLoss for extras that are
// broken, FailedPrecondition for those that a newer release has written.
absl::StatusOr<std::vector<ValueEntry>> ValueEntries(std::span<const CopiedSlab> slabs,
                                                     const KeyMap& map);

}  // namespace unreft::durable
