// Writes what a copy in safetensors has of one rank's slab: its files of weights, each byte once,
// and what describes them. Each block is checked when it is read, as for a DCP copy.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "durable/cold_store.h"
#include "durable/sealed_slab.h"
#include "durable/weight_names.h"
#include "durable/writing_progress.h"

namespace unreft::durable {

// `id`: of the copy. Of a tensor that does not lie in row-major order at most kAtOnceBytesMax
// (row_major.h) are in memory, and as much again.
absl::Status WriteWeights(SlabReader& slab, ColdStore& store, const std::string& id,
                          const WeightNames& names, OnProgress on_progress);

}  // namespace unreft::durable
