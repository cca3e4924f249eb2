// Completes a durable copy whose parts are all written: it reads what each rank's record says,
// writes the values beside the tensors, and at last `.metadata`, by which the copy is one.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "durable/cold_store.h"
#include "durable/copy_names.h"
#include "durable/copy_record.h"

namespace unreft::durable {

struct FinishedCopy {
  uint64_t tensors = 0;
  uint64_t values = 0;
  uint64_t bytes = 0;  // of all files
  // Keys of values of a kind that torch.load does not read, which are in the extras of their rank
  // alone, and of tensors without elements whose type a copy does not have.
  std::vector<std::string> left_out;
  // Of a copy in safetensors (weight_finish.h): tensors that are no weights, and whether each is
  // whole in one file, so that there is an index.
  uint64_t tensors_left_out = 0;
  bool has_index = false;
};

// Blocking. DataLoss, naming rank and file, for a part that is not whole; whatever fails, there is
// no `.metadata`.
absl::StatusOr<FinishedCopy> FinishCopy(ColdStore& store, const CopyOrder& order,
                                        const KeyMap& map);

}  // namespace unreft::durable
