// Completes a copy in safetensors whose parts are all written: it checks what each rank's record
// says, writes the index where each tensor is whole in one file, and at last removes the file that
// says that the copy is not complete.
#pragma once

#include <absl/status/statusor.h>
#include <unreft/copy.pb.h>

#include "durable/cold_store.h"
#include "durable/copy_finish.h"
#include "durable/weight_names.h"

namespace unreft::durable {

// Blocking. DataLoss, naming rank and file, for a part that is not whole, and naming the tensor for
// one that is not; InvalidArgument when two tensors have one key. Whatever fails, the copy stays
// incomplete.
absl::StatusOr<FinishedCopy> FinishWeights(ColdStore& store, const CopyOrder& order,
                                           const WeightNames& names);

}  // namespace unreft::durable
