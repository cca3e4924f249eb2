// Capture's tensors: where they lie, and whether somebody wrote them whom no fence let.

#include <utility>

#include "snapshot/capture.h"

namespace unreft::snapshot {

void Capture::Bind(const layout::TensorTable& table, std::vector<ShardMemory> memory) {
  const ProbesPtr probes =
      std::make_shared<const TensorProbes>(table, memory, options_.probe_lines);
  const MemoryPtr bound = std::make_shared<const std::vector<ShardMemory>>(std::move(memory));
  std::lock_guard lock(mutex_);
  memory_ = bound;
  probes_ = probes;
  probed_ = nullptr;  // a program may fill what it has registered
}

void Capture::NoteRegistration() {
  std::lock_guard lock(mutex_);
  probed_ = nullptr;
  fenced_ = false;
}

void Capture::NoteRestore() {
  std::lock_guard lock(mutex_);
  probed_ = nullptr;
}

// A snapshot under way goes on with what it began with.
absl::Status Capture::Rebind(std::span<const uint64_t> tensors, std::span<std::byte* const> data) {
  std::lock_guard lock(mutex_);
  const size_t count = memory_->size();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i] >= count) {
      return count == 0 ? absl::FailedPreconditionError(
                              "no tensors are registered: register them before they are rebound")
                        : absl::OutOfRangeError(fmt::format(
                              "tensor {}: needed one of the {} tensors of the last registration, "
                              "counted from 0",
                              tensors[i], count));
    }
    if (data[i] == nullptr) {
      return absl::InvalidArgumentError(fmt::format("tensor {}: data is NULL", tensors[i]));
    }
  }
  auto rebound = std::make_shared<std::vector<ShardMemory>>(*memory_);
  for (size_t i = 0; i < tensors.size(); ++i) (*rebound)[tensors[i]].data = data[i];
  memory_ = std::move(rebound);
  return absl::OkStatus();
}

// What is to be said if the tensors have changed since they were last looked at and nothing called
// a fence, so that they may change while they are copied. Empty if they have not.
std::string Capture::WhyUnfenced(Step step) {
  ProbedPtr before;
  MemoryPtr memory;
  {
    std::lock_guard lock(mutex_);
    if (fenced_ || probed_ == nullptr) return {};
    if (!CheckLocked(step).ok() || !WhySkipLocked(step).empty()) return {};
    before = probed_;
    memory = memory_;
  }
  const WrittenTensors written = FindWrittenSince(*before, *memory);
  return written.count == 0 ? std::string() : WrittenWithoutFence(*before, written);
}

}  // namespace unreft::snapshot
