// Capture's tensors: where they lie, and whether somebody wrote them whom no fence let.

#include <utility>

#include "snapshot/capture.h"
#include "snapshot/no_memory.h"

namespace unreft::snapshot {
namespace {

std::string Unsampled(const absl::Status& why) {
  return fmt::format(
      "nothing but fence() keeps the versions of tensors on a device whole, since no samples of "
      "them are compared: {}",
      std::string(why.message()));
}

}  // namespace

void Capture::Bind(const layout::TensorTable& table, std::vector<ShardMemory> memory,
                   std::vector<size_t> tensor_ends) {
  const ProbesPtr probes =
      std::make_shared<const TensorProbes>(table, memory, options_.probe_lines);
  const absl::Status sampled = probes->device_count() == 0
                                   ? absl::OkStatus()
                                   : copier_.ReserveProbes(probes->device_count());
  board_.Edit(
      [&](ClientStatus& status) { status.unsampled = sampled.ok() ? "" : Unsampled(sampled); });
  const MemoryPtr bound = std::make_shared<const std::vector<ShardMemory>>(std::move(memory));
  std::lock_guard lock(mutex_);
  memory_ = bound;
  tensor_ends_ = std::move(tensor_ends);
  probes_ = probes;
  probes_device_ = sampled.ok();
  probed_ = nullptr;  // a program may fill what it has registered
}

void Capture::NoteRestore() {
  std::lock_guard lock(mutex_);
  probed_ = nullptr;
}

// A snapshot under way goes on with what it began with. The shards of a range stay as far apart as
// they are.
absl::Status Capture::Rebind(std::span<const uint64_t> tensors, std::span<std::byte* const> data) {
  std::lock_guard lock(mutex_);
  const size_t count = tensor_ends_.size();
  const auto begin_of = [&](uint64_t tensor) {
    return tensor == 0 ? size_t{0} : tensor_ends_[tensor - 1];
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i] >= count) {
      return count == 0 ? absl::FailedPreconditionError(
                              "no tensors are registered: register them before they are rebound")
                        : absl::OutOfRangeError(fmt::format(
                              "tensor {}: needed one of the {} tensors of the last registration, "
                              "counted from 0",
                              tensors[i], count));
    }
    if (data[i] == nullptr && begin_of(tensors[i]) < tensor_ends_[tensors[i]]) {
      return absl::InvalidArgumentError(fmt::format("tensor {}: data is NULL", tensors[i]));
    }
  }
  auto rebound = std::make_shared<std::vector<ShardMemory>>(*memory_);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t first = begin_of(tensors[i]);
    for (size_t shard = first; shard < tensor_ends_[tensors[i]]; ++shard) {
      (*rebound)[shard].data = data[i] + ((*memory_)[shard].data - (*memory_)[first].data);
    }
  }
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

// The host is not to wait for a device, so what it says of the time since the last snapshot comes
// when this one has begun.
absl::Status Capture::ProbeDevice(const RunPtr& run) {
  if (run->probed == nullptr || run->probed->device.empty()) return absl::OkStatus();
  const size_t count = run->probed->device.size();
  run->device_check.resize(count);
  if (run->since != nullptr && run->since->device_seen && run->since->device.size() == count) {
    run->device_since.resize(count);
    absl::Status status = StartProbe(run, CaptureJob::Kind::kSince);
    if (!status.ok()) return status;
  }
  return StartProbe(run, CaptureJob::Kind::kSeen);
}

absl::Status Capture::StartProbe(const RunPtr& run, CaptureJob::Kind kind) {
  Job job{.run = run, .what = {kind, 0, /*on_device=*/true}};
  {
    std::lock_guard lock(mutex_);
    run->device.Start();
  }
  const absl::Status status = CatchNoMemory([&] {
    copier_.ProbeNow(run->ProbeOpOf(job.what), run->stream,
                     lifetime_.Bind([this, job](const absl::Status& status) mutable {
                       FinishJob(job, status, /*by_executor=*/false);
                     }));
    return absl::OkStatus();
  });
  if (!status.ok()) FinishJob(job, status, /*by_executor=*/false);  // it was not taken
  return status;
}

void Capture::NoteFoundLocked(const Job& job, const absl::Status& status) {
  CaptureRun& run = *job.run;
  switch (job.what.kind) {
    case CaptureJob::Kind::kSeen:
      run.probed->device_seen = status.ok();
      break;
    case CaptureJob::Kind::kSince:
      if (job.written.count == 0 || fenced_) break;
      unfenced_ = WrittenWithoutFence(*run.since, job.written);
      CloseLocked(job.run, unfenced_);
      break;
    case CaptureJob::Kind::kCheck:
      (job.what.on_device ? run.written_on_device : run.written).Add(job.written);
      break;
    default:
      break;
  }
}

}  // namespace unreft::snapshot
