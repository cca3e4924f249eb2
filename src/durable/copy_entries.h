// What `.metadata` of a durable copy lists: the tensors of all ranks as items of their files, and
// beside them the values that `get_state_dict` names and the extras of each rank. Pure.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/tensor_spec.h"
#include "durable/copy_names.h"
#include "durable/copy_plan.h"
#include "durable/dcp_extras.h"
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
  DcpExtras saved;  // what they are, if they are such
};

// Puts together what all ranks have of each tensor.
class EntryTable {
 public:
  // The entry of a logical tensor that the rank stored, for its boxes to be added to; it stays
  // where it is. DataLoss when a rank before it stored the tensor with another type or shape;
  // InvalidArgument when a tensor of another name has the key.
  absl::StatusOr<DcpEntry*> EntryOf(const TensorSpec& logical, CopyName name, Rank rank);

  // By key. DataLoss, naming tensor and numbers, unless the boxes of each tensor are all of it,
  // each element once.
  absl::StatusOr<std::vector<DcpEntry>> Whole() &&;

 private:
  std::map<std::string, std::pair<std::string, DcpEntry>> entries_;  // by key; with the stored name
};

// What an EntryTable makes of the items of all, and of what has no elements and was saved by
// `unreft.dcp`.
absl::StatusOr<std::vector<DcpEntry>> TensorEntries(std::span<const CopiedSlab> slabs,
                                                    const KeyMap& map);

struct ValueEntry {
  CopyName name;
  PlainValue value;
  std::optional<std::string> serialised;  // as a save planner has done it, in place of `value`
};

// Of the extras of the ranks, in their order: each hyperparameter of a group of an optimizer, of
// the first rank that has the group, and its parameters, of all ranks; what its state has beside
// tensors; and the extras of each rank as they are, as a tensor of bytes, `unreft.rank0.extras`.
// Groups of several optimizers follow each other. Then the values that `unreft.dcp` saved, as they
// were serialised. Naming the rank: DataLoss for extras that are broken, or lack a value that rank
// 0 says is there; FailedPrecondition for those that a newer release has written.
absl::StatusOr<std::vector<ValueEntry>> ValueEntries(std::span<const CopiedSlab> slabs,
                                                     const KeyMap& map);

}  // namespace unreft::durable
