#include "snapshot/probed_state.h"

#include <fmt/format.h>

#include <algorithm>

namespace unreft::snapshot {
namespace {

constexpr size_t kBatch = 1024;  // tensors at a time

template <typename LeaveOut>
WrittenTensors Find(const ProbedState& before, std::span<const ShardMemory> memory, size_t first,
                    size_t count, LeaveOut leave_out) {
  WrittenTensors written;
  std::vector<uint64_t> found;
  const size_t end = first + count;
  for (size_t at = first; at < end; at += found.size()) {
    found.resize(std::min(kBatch, end - at));
    before.probes->DigestHost(before.step, memory, at, found);
    for (size_t i = 0; i < found.size(); ++i) {
      const uint32_t tensor = before.probes->host_tensor(at + i);
      if (found[i] != before.host[at + i] && !leave_out(tensor)) written.Add(tensor);
    }
  }
  return written;
}

}  // namespace

std::shared_ptr<ProbedState> Probe(const ProbesPtr& probes, const MemoryPtr& memory, Step step,
                                   bool and_device) {
  if (probes == nullptr) return nullptr;
  const size_t on_device = and_device ? probes->device_count() : 0;
  if (probes->host_count() + on_device == 0) return nullptr;
  auto state =
      std::make_shared<ProbedState>(ProbedState{.probes = probes, .memory = memory, .step = step});
  state->host.resize(probes->host_count());
  state->device.resize(on_device);
  probes->DigestHost(step, *memory, 0, state->host);
  return state;
}

WrittenTensors FindWritten(const ProbedState& before, size_t first, size_t count,
                           std::span<const uint8_t> leave_out) {
  return Find(before, *before.memory, first, count,
              [&](uint32_t tensor) { return !leave_out.empty() && leave_out[tensor] != 0; });
}

// Nothing is read where a tensor is no more: its memory may be gone.
WrittenTensors FindWrittenSince(const ProbedState& before, std::span<const ShardMemory> now) {
  return Find(before, now, 0, before.host.size(),
              [&](uint32_t tensor) { return (*before.memory)[tensor].data != now[tensor].data; });
}

WrittenTensors FindWrittenOnDevice(const ProbedState& before, std::span<const uint64_t> found) {
  return FindWrittenOnDeviceSince(before, found, *before.memory);
}

WrittenTensors FindWrittenOnDeviceSince(const ProbedState& before, std::span<const uint64_t> found,
                                        std::span<const ShardMemory> now) {
  WrittenTensors written;
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == before.device[i]) continue;
    const uint32_t tensor = before.probes->device_tensor(i);
    if ((*before.memory)[tensor].data == now[tensor].data) written.Add(tensor);
  }
  return written;
}

std::string WrittenWhileCopied(const ProbedState& before, const WrittenTensors& written) {
  return fmt::format(
      "{} changed while step {} was being copied: written after snapshot() and before fence() (an "
      "in-place operation, an EMA or weight swap, an optimizer without the hook?); call fence() "
      "before that write, or declare {} volatile",
      before.probes->Describe(written), before.step, written.count == 1 ? "the tensor" : "them");
}

std::string WrittenWithoutFence(const ProbedState& before, const WrittenTensors& written) {
  return fmt::format(
      "{} changed since step {} although nothing called fence(): snapshots stay off until fence() "
      "is called before the optimizer's step (ck.fence() in Python)",
      before.probes->Describe(written), before.step);
}

}  // namespace unreft::snapshot
