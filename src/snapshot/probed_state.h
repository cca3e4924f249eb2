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
  // Of tensors on a device: it writes them later, and they count once `device_seen`. Empty where
  // no device is looked at.
  std::vector<uint64_t> device;
  bool device_seen = false;
};

using ProbedPtr = std::shared_ptr<const ProbedState>;

// Looks at tensors in host memory, and makes room for what a device will see if `and_device`. Null
// where no tensor is looked at.
std::shared_ptr<ProbedState> Probe(const ProbesPtr& probes, const MemoryPtr& memory, Step step,
                                   bool and_device);

// Of `count` tensors in host memory from the `first`-th on, those that have other bytes by now at
// the same addresses; `leave_out[i]`, where it is not empty, says that table's tensor i is none.
WrittenTensors FindWritten(const ProbedState& before, size_t first, size_t count,
                           std::span<const uint8_t> leave_out);

// Of all, but for those that lie elsewhere by now: their bytes are the old ones.
WrittenTensors FindWrittenSince(const ProbedState& before, std::span<const ShardMemory> now);

// The same of tensors on a device, whose digests are `found` by now: of all, and of those that lie
// where they lay.
WrittenTensors FindWrittenOnDevice(const ProbedState& before, std::span<const uint64_t> found);
WrittenTensors FindWrittenOnDeviceSince(const ProbedState& before, std::span<const uint64_t> found,
                                        std::span<const ShardMemory> now);

// Why a version is given up whose tensors were written while they were copied.
std::string WrittenWhileCopied(const ProbedState& before, const WrittenTensors& written);
// Why snapshots are skipped where nothing calls a fence.
std::string WrittenWithoutFence(const ProbedState& before, const WrittenTensors& written);

}  // namespace unreft::snapshot
