// ProbedState: what TensorProbes saw of the tensors at one moment, to be compared later; and what
// is said of tensors that were written meanwhile. Plain data and functions, for any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "snapshot/tensor_probes.h"

namespace unreft::snapshot {

using ProbesPtr = std::shared_ptr<const TensorProbes>;

struct ProbedState {
  ProbesPtr probes;
  MemoryPtr memory;
  Step step;                   // whose places were looked at
  std::vector<uint64_t> host;  // digests
};

using ProbedPtr = std::shared_ptr<const ProbedState>;

// Null where no tensor is looked at.
ProbedPtr Probe(const ProbesPtr& probes, const MemoryPtr& memory, Step step);

// Of `count` tensors in host memory from the `first`-th on, those that have other bytes by now at
// the same addresses; `leave_out[i]`, where it is not empty, says that table's tensor i is none.
WrittenTensors FindWritten(const ProbedState& before, size_t first, size_t count,
                           std::span<const uint8_t> leave_out);

// Of all, but for those that lie elsewhere by now: their bytes are the old ones.
WrittenTensors FindWrittenSince(const ProbedState& before, std::span<const ShardMemory> now);

// Why a version is given up whose tensors were written while they were copied.
std::string WrittenWhileCopied(const ProbedState& before, const WrittenTensors& written);
// Why snapshots are skipped where nothing calls a fence.
std::string WrittenWithoutFence(const ProbedState& before, const WrittenTensors& written);

}  // namespace unreft::snapshot
