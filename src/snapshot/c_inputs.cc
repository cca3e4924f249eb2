#include "snapshot/c_inputs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <initializer_list>
#include <string>
#include <thread>

#include "base/segment_store.h"
#include "layout/memory_order.h"
#include "snapshot/dry_run.h"
#include "snapshot/environment.h"

namespace unreft::snapshot {
namespace {

constexpr size_t kTensorsMax = 1 << 24;
constexpr int32_t kDimsMax = 16;
// About 30 years, so that no sum of durations overflows.
constexpr int64_t kTimeoutMaxMs = int64_t{1} << 40;

absl::StatusOr<int64_t> Choose(int64_t given, const char* what,
                               std::initializer_list<const char*> names, int64_t otherwise) {
  if (given == -1) return EnvironmentNumber(names, otherwise);
  if (given >= 0) return given;
  return absl::InvalidArgumentError(fmt::format("{}: needed 0 or more, found {}", what, given));
}

// Slurm has a number for each job, for each srun in it, and for each time that it was queued again.
absl::StatusOr<int64_t> AttemptOfSlurm() {
  constexpr int64_t kSteps = 10000;
  constexpr int64_t kRestarts = 100;
  const absl::StatusOr<int64_t> job = EnvironmentNumber({"SLURM_JOB_ID"}, 0);
  const absl::StatusOr<int64_t> step = EnvironmentNumber({"SLURM_STEP_ID"}, 0);
  const absl::StatusOr<int64_t> restart = EnvironmentNumber({"SLURM_RESTART_COUNT"}, 0);
  for (const auto* number : {&job, &step, &restart}) {
    if (!number->ok()) return number->status();
  }
  constexpr int64_t kJobs = INT64_MAX / (kSteps * kRestarts);
  return ((*job % kJobs) * kSteps + *step % kSteps) * kRestarts + *restart % kRestarts;
}

absl::StatusOr<int64_t> ChooseAttempt(int64_t given) {
  const absl::StatusOr<int64_t> of_slurm = AttemptOfSlurm();
  if (given == -1 && !of_slurm.ok()) return of_slurm;
  return Choose(given, "attempt", {"UNREFT_ATTEMPT", "TORCHELASTIC_RESTART_COUNT"},
                of_slurm.value_or(0));
}

absl::Status CheckTensor(const unreft_tensor& tensor, size_t index) {
  if (tensor.name == nullptr) return MissingArgument(fmt::format("tensor {}: name", index).c_str());
  if (tensor.dims < 0 || tensor.dims > kDimsMax) {
    return absl::InvalidArgumentError(fmt::format("tensor {}: needed 0 to {} dimensions, found {}",
                                                  tensor.name, kDimsMax, tensor.dims));
  }
  if (tensor.dtype < 1 || tensor.dtype > UINT8_MAX) {
    return absl::InvalidArgumentError(
        fmt::format("tensor {}: dtype {} is not known", tensor.name, tensor.dtype));
  }
  const bool shaped =
      tensor.global_shape != nullptr && tensor.offset != nullptr && tensor.extent != nullptr;
  if (tensor.dims > 0 && !shaped) {
    return absl::InvalidArgumentError(
        fmt::format("tensor {}: global_shape, offset or extent is NULL", tensor.name));
  }
  if (tensor.allow_shape_mismatch != 0 && tensor.allow_shape_mismatch != 1) {
    return absl::InvalidArgumentError(
        fmt::format("tensor {}: allow_shape_mismatch: needed 0 or 1, found {}", tensor.name,
                    tensor.allow_shape_mismatch));
  }
  const bool is_empty = tensor.range != nullptr && tensor.range[0] == tensor.range[1];
  if (tensor.data == nullptr && !is_empty) {
    return absl::InvalidArgumentError(fmt::format("tensor {}: data is NULL", tensor.name));
  }
  if (tensor.device_kind != UNREFT_CPU && tensor.device_kind != UNREFT_CUDA) {
    return absl::InvalidArgumentError(fmt::format(
        "tensor {}: needed device kind {} (CPU) or {} (CUDA), found {}", tensor.name,
        static_cast<int>(UNREFT_CPU), static_cast<int>(UNREFT_CUDA), tensor.device_kind));
  }
  if (tensor.device_kind == UNREFT_CUDA && tensor.device_index < 0) {
    return absl::InvalidArgumentError(
        fmt::format("tensor {}: needed a device of 0 or more, found "
                    "{}",
                    tensor.name, tensor.device_index));
  }
  return absl::OkStatus();
}

std::vector<uint64_t> ToVector(const uint64_t* values, int32_t count) {
  return count == 0 ? std::vector<uint64_t>() : std::vector<uint64_t>(values, values + count);
}

BoundTensor ToBound(const unreft_tensor& tensor) {
  return {.spec = {.name = tensor.name,
                   .dtype = static_cast<Dtype>(tensor.dtype),
                   .global_shape = ToVector(tensor.global_shape, tensor.dims),
                   .offset = ToVector(tensor.offset, tensor.dims),
                   .extent = ToVector(tensor.extent, tensor.dims),
                   .replica_index = tensor.replica_index,
                   .replica_count = tensor.replica_count,
                   .is_volatile = tensor.is_volatile != 0,
                   .allow_shape_mismatch = tensor.allow_shape_mismatch != 0},
          .data = static_cast<std::byte*>(tensor.data),
          .cuda_device = tensor.device_kind == UNREFT_CUDA ? tensor.device_index : kHostMemory};
}

// The whole box as one shard, or those that its range comes to.
absl::Status AddTensor(const unreft_tensor& tensor, GivenTensors& given) {
  BoundTensor bound = ToBound(tensor);
  const size_t ordered = tensor.memory_order == nullptr ? 0 : static_cast<size_t>(tensor.dims);
  absl::StatusOr<TensorSpec> spec =
      layout::InMemoryOrder(std::move(bound.spec), {tensor.memory_order, ordered});
  if (!spec.ok()) return spec.status();
  bound.spec = *std::move(spec);
  if (tensor.range == nullptr) {
    given.Add(std::move(bound));
    return absl::OkStatus();
  }
  if (const layout::MemoryOrder order = layout::ToLogical(bound.spec).order; !order.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("tensor {}: a range needs row-major elements, found memory_order [{}]",
                    tensor.name, fmt::join(order, ", ")));
  }
  return given.AddRange(bound, tensor.range[0], tensor.range[1]);
}

}  // namespace

absl::Status MissingArgument(const char* what) {
  return absl::InvalidArgumentError(fmt::format("{} is NULL", what));
}

// --- Options ---

absl::StatusOr<ClientIdentity> ToIdentity(const unreft_open_options& options) {
  ClientIdentity identity;
  identity.socket =
      options.socket != nullptr ? options.socket : EnvironmentText({"UNREFT_SOCKET"}, "");
  if (identity.socket.empty() && DryRunDirectory().empty()) {
    return absl::InvalidArgumentError(
        "no socket of a daemon: neither given nor in UNREFT_SOCKET. Start the job by `unreft run "
        "--up`, or its daemon by `eval \"$(unreft up --supervise --print-env)\"`, which sets it");
  }
  identity.job = options.job != nullptr ? options.job : EnvironmentText({"UNREFT_JOB"}, "default");
  if (absl::Status status = CheckJobName(identity.job); !status.ok()) return status;
  absl::StatusOr<int64_t> rank = Choose(options.rank, "rank", {"RANK"}, 0);
  absl::StatusOr<int64_t> world = Choose(options.world, "world", {"WORLD_SIZE"}, 1);
  absl::StatusOr<int64_t> attempt = ChooseAttempt(options.attempt);
  for (const auto* number : {&rank, &world, &attempt}) {
    if (!number->ok()) return number->status();
  }
  if (*rank >= *world) {
    return absl::InvalidArgumentError(
        fmt::format("rank {}: needed one below the world's {} ranks", *rank, *world));
  }
  identity.rank.value = static_cast<uint64_t>(*rank);
  identity.world = static_cast<uint64_t>(*world);
  identity.attempt.value = static_cast<uint64_t>(*attempt);
  return identity;
}

absl::StatusOr<Duration> ToDuration(int64_t ms, const char* what) {
  if (ms >= 0 && ms <= kTimeoutMaxMs) return std::chrono::milliseconds(ms);
  return absl::InvalidArgumentError(
      fmt::format("{}: needed 0 to {} ms, found {}", what, kTimeoutMaxMs, ms));
}

absl::StatusOr<ClientOptions> ToOptions(const unreft_open_options& given) {
  absl::StatusOr<Duration> connect = ToDuration(given.connect_timeout_ms, "connect_timeout_ms");
  absl::StatusOr<Duration> restore = ToDuration(given.restore_timeout_ms, "restore_timeout_ms");
  absl::StatusOr<Duration> fence = ToDuration(given.fence_timeout_ms, "fence_timeout_ms");
  for (const auto* timeout : {&connect, &restore, &fence}) {
    if (!timeout->ok()) return timeout->status();
  }
  absl::StatusOr<int64_t> checksum =
      Choose(given.device_checksum, "device_checksum", {"UNREFT_DEVICE_CHECKSUM"}, 0);
  if (!checksum.ok()) return checksum.status();
  if (*checksum > 1) {
    return absl::InvalidArgumentError(
        fmt::format("device_checksum: needed 0 or 1, found {}", *checksum));
  }
  if (given.any_world != 0 && given.any_world != 1) {
    return absl::InvalidArgumentError(
        fmt::format("any_world: needed 0 or 1, found {}", given.any_world));
  }
  ClientOptions options;
  options.any_world = given.any_world == 1;
  options.capture.device_checksum = *checksum == 1;
  options.connect_timeout = *connect;
  options.restore_timeout = *restore;
  options.capture.fence_timeout = *fence;
  const uint32_t cores = std::max(1U, std::thread::hardware_concurrency());
  options.device_restore_threads = std::min(options.device_restore_threads, cores);
  return options;
}

KeepWaiting ToKeepWaiting(const unreft_open_options& given) {
  if (given.keep_waiting == nullptr) return nullptr;
  return [ask = given.keep_waiting, context = given.keep_waiting_context](
             const std::string& waited_for, Duration so_far) {
    return ask(context, waited_for.c_str(), std::chrono::duration<double>(so_far).count()) == 0;
  };
}

// --- Tensors ---

absl::StatusOr<GivenTensors> ToTensors(const unreft_tensor* tensors, size_t count) {
  if (count > kTensorsMax) {
    return absl::InvalidArgumentError(fmt::format("{} tensors, {} at most", count, kTensorsMax));
  }
  if (count > 0 && tensors == nullptr) return MissingArgument("tensors");
  GivenTensors given_tensors;
  given_tensors.shards.reserve(count);
  const auto* at = reinterpret_cast<const std::byte*>(tensors);
  for (size_t i = 0; i < count; ++i) {
    const auto* given = reinterpret_cast<const unreft_tensor*>(at);
    absl::Status status = CheckStruct(given, kFirstTensorBytes, "tensor");
    if (status.ok() && given->struct_bytes != tensors->struct_bytes) {
      status = absl::InvalidArgumentError(
          fmt::format("tensor {}: needed struct_bytes of {} as in the first, found {}", i,
                      tensors->struct_bytes, given->struct_bytes));
    }
    unreft_tensor tensor{};
    if (status.ok()) {
      const size_t known = std::min(given->struct_bytes, sizeof(tensor));
      std::memcpy(static_cast<void*>(&tensor), given, known);
      status = CheckTensor(tensor, i);
    }
    if (status.ok()) status = AddTensor(tensor, given_tensors);
    if (!status.ok()) return status;
    at += tensors->struct_bytes;
  }
  return given_tensors;
}

}  // namespace unreft::snapshot
