// Unreft's C++ API: a thin, header-only layer over the C ABI (c.h), whose conventions hold here
// too. Needs C++17 and libunreft.so, and nothing else.
//
//   auto client = unreft::Client::Open();
//   if (!client) { ... client.error().message ... }
//   auto restored = client->Restore();             // what every rank restores, or fresh
//   client->Read(tensors);                         // only if !restored->fresh
//   client->Register(tensors, extras_bytes);
//   for (...) {
//     forward_and_backward();
//     client->Fence();                             // before anything registered changes
//     optimizer_step();
//     client->Snapshot(step, extras);              // never waits for the daemon
//   }
//
// Nothing here throws of its own accord; allocation may.
#ifndef UNREFT_UNREFT_H_
#define UNREFT_UNREFT_H_

#include <unreft/c.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace unreft {

// Why a call failed: the subject, the number needed and the number found.
struct Failure {
  int code = UNREFT_INTERNAL;  // unreft_code
  std::string message;
};

// A T, or why there is none. Reading the one that is not there throws std::bad_variant_access.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::move(value)) {}            // NOLINT: a result is its value
  Result(Failure failure) : content_(std::move(failure)) {}  // NOLINT: or its failure

  bool ok() const { return content_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& operator*() & { return std::get<0>(content_); }
  T&& operator*() && { return std::get<0>(std::move(content_)); }
  const T& operator*() const& { return std::get<0>(content_); }
  T* operator->() { return &std::get<0>(content_); }
  const T* operator->() const { return &std::get<0>(content_); }
  const Failure& error() const { return std::get<1>(content_); }

 private:
  std::variant<T, Failure> content_;
};

struct Nothing {};
using Done = Result<Nothing>;

// See unreft_open_options; what is not set comes from the environment.
struct OpenOptions {
  std::optional<std::string> socket;
  std::optional<std::string> job;
  std::optional<int64_t> rank;
  std::optional<int64_t> world;
  std::optional<int64_t> attempt;
  std::optional<int64_t> connect_timeout_ms;
  std::optional<int64_t> restore_timeout_ms;
  std::optional<int64_t> fence_timeout_ms;
  std::optional<bool> device_checksum;
  bool any_world = false;  // restore what another number of ranks has saved, too
  // Whether a call that waits goes on; what it throws ends the call as false does.
  std::function<bool(const char* waited_for, double seconds_so_far)> keep_waiting;
};

// See unreft_tensor. A dense tensor that this rank holds alone and whole: `global_shape` is its
// shape, `offset` and `extent` are left empty.
struct Tensor {
  std::string name;
  int32_t dtype = UNREFT_FLOAT32;  // unreft_dtype; a newer store may have types unknown here
  std::vector<uint64_t> global_shape;
  std::vector<uint64_t> offset;  // empty: zeros
  std::vector<uint64_t> extent;  // empty: global_shape
  void* data = nullptr;
  int32_t device_kind = UNREFT_CPU;  // unreft_device_kind
  int32_t device_index = 0;
  uint32_t replica_index = 0;
  uint32_t replica_count = 1;
  bool is_volatile = false;
  std::vector<uint32_t> memory_order;  // dimensions from slowest to fastest; empty: row-major
  // Begin and end of the elements of the box, row-major within it, that lie at `data`; the store
  // describes them as boxes. None: the whole box.
  std::optional<std::array<uint64_t, 2>> range;
  // Restored from a tensor of another global shape, too: the elements that both have.
  bool allow_shape_mismatch = false;
};

// What the store decided; the same on every rank, but for `tensors` and `extras`.
struct Restored {
  bool fresh = true;                        // nothing was ever committed: start from scratch
  uint64_t step = 0;                        // of the version that every rank restores
  uint64_t timeline = 0;                    // of that version
  uint64_t new_timeline = 0;                // opened by this decision
  uint64_t source_world = 0;                // how many ranks saved the version
  std::optional<std::string> durable_copy;  // that it was loaded from; see unreft_decision
  std::vector<Tensor> tensors;
  std::optional<std::string> extras;  // this rank's earlier ones; see unreft_decision
};

struct Snapped {
  bool started = false;
  std::string reason;  // why it was skipped
};

// RAII over unreft_client. Used by one training thread at a time.
class Client {
 public:
  static Result<Client> Open(const OpenOptions& options = {}) {
    unreft_open_options c;
    unreft_open_options_init(&c);
    if (options.socket) c.socket = options.socket->c_str();
    if (options.job) c.job = options.job->c_str();
    c.rank = options.rank.value_or(c.rank);
    c.world = options.world.value_or(c.world);
    c.attempt = options.attempt.value_or(c.attempt);
    c.connect_timeout_ms = options.connect_timeout_ms.value_or(c.connect_timeout_ms);
    c.restore_timeout_ms = options.restore_timeout_ms.value_or(c.restore_timeout_ms);
    c.fence_timeout_ms = options.fence_timeout_ms.value_or(c.fence_timeout_ms);
    if (options.device_checksum) c.device_checksum = *options.device_checksum ? 1 : 0;
    c.any_world = options.any_world ? 1 : 0;
    auto keep_waiting = std::make_unique<KeepWaiting>(options.keep_waiting);
    if (*keep_waiting) {
      c.keep_waiting = &Client::AskToWait;
      c.keep_waiting_context = keep_waiting.get();
    }
    unreft_client* client = nullptr;
    if (int code = unreft_open(&c, &client)) return LastFailure(code);
    return Client(client, std::move(keep_waiting));
  }

  // With a step: the newest version of that step or an earlier one, or an error that lists what
  // could be restored. All ranks give the same one.
  Result<Restored> Restore(std::optional<uint64_t> at_or_before = std::nullopt) {
    unreft_decision c{};
    c.struct_bytes = sizeof(c);
    c.tensor_bytes = sizeof(unreft_tensor);
    const int code = at_or_before
                         ? unreft_restore_begin_at_or_before(client_.get(), *at_or_before, &c)
                         : unreft_restore_begin(client_.get(), &c);
    if (code != 0) return LastFailure(code);
    Restored restored;
    restored.fresh = c.restored == 0;
    restored.step = c.step;
    restored.timeline = c.timeline;
    restored.new_timeline = c.new_timeline;
    restored.source_world = c.source_world;
    if (c.durable_copy != nullptr) restored.durable_copy = c.durable_copy;
    for (size_t i = 0; i < c.tensor_count; ++i) restored.tensors.push_back(FromC(c.tensors[i]));
    if (c.extras != nullptr)
      restored.extras.emplace(static_cast<const char*>(c.extras), c.extras_bytes);
    return restored;
  }

  // Into the tensors' `data`; on an error their bytes are undefined.
  Done Read(const std::vector<Tensor>& tensors) {
    const CTensors c(tensors);
    return ToDone(unreft_restore_read(client_.get(), c.data(), c.size()));
  }
  // Of one of the ranks that saved the version.
  Result<std::optional<std::string>> RestoreExtras(uint64_t rank) {
    const void* extras = nullptr;
    size_t bytes = 0;
    if (int code = unreft_restore_extras(client_.get(), rank, &extras, &bytes)) {
      return LastFailure(code);
    }
    if (extras == nullptr) return std::optional<std::string>();
    return std::optional<std::string>(std::in_place, static_cast<const char*>(extras), bytes);
  }
  Done EndRestore() { return ToDone(unreft_restore_end(client_.get())); }

  // What lies at the tensors' `data` stays there until the end or the next Register; not if that
  // one refuses its tensors (UNREFT_INVALID_ARGUMENT) or finds no memory: then it may still be
  // captured.
  Done Register(const std::vector<Tensor>& tensors, uint64_t extras_bytes) {
    const CTensors c(tensors);
    return ToDone(unreft_register(client_.get(), c.data(), c.size(), extras_bytes));
  }

  // The `indices[i]`-th tensor of the last Register lies at `data[i]` from now on.
  Done Rebind(const std::vector<uint64_t>& indices, const std::vector<void*>& data) {
    if (indices.size() != data.size()) {
      return Failure{UNREFT_INVALID_ARGUMENT, "rebind: as many indices as addresses are needed"};
    }
    return ToDone(unreft_rebind(client_.get(), indices.data(), data.data(), indices.size()));
  }
  // Waits for no longer than `timeout_ms`; see unreft_register_within.
  Done RegisterWithin(const std::vector<Tensor>& tensors, uint64_t extras_bytes,
                      int64_t timeout_ms) {
    const CTensors c(tensors);
    return ToDone(
        unreft_register_within(client_.get(), c.data(), c.size(), extras_bytes, timeout_ms));
  }

  Result<Snapped> Snapshot(uint64_t step, const std::string& extras = {}, void* stream = nullptr) {
    int32_t outcome = UNREFT_SKIPPED;
    if (int code =
            unreft_snapshot(client_.get(), step, extras.data(), extras.size(), stream, &outcome)) {
      return LastFailure(code);
    }
    if (outcome == UNREFT_STARTED) return Snapped{true, {}};
    return Snapped{false, unreft_error()};
  }
  // Of a step that the program itself took no snapshot of.
  Done SkipSnapshot(uint64_t step, const std::string& reason) {
    return ToDone(unreft_skip_snapshot(client_.get(), step, reason.c_str()));
  }
  Done Fence(void* stream = nullptr) { return ToDone(unreft_fence(client_.get(), stream)); }
  Done SetWriterStreams(const std::vector<void*>& streams) {
    return ToDone(unreft_set_writer_streams(client_.get(), streams.data(), streams.size()));
  }
  // Until a snapshot would start.
  Done WaitReady(int64_t timeout_ms) {
    return ToDone(unreft_wait_ready(client_.get(), timeout_ms));
  }
  Done WaitCommitted(uint64_t step, int64_t timeout_ms) {
    return ToDone(unreft_wait_committed(client_.get(), step, timeout_ms));
  }

  // Whether anything was ever committed in this job, as this node's daemon knows it.
  Result<bool> EverCommitted() {
    int32_t answer = 0;
    if (int code = unreft_ever_committed(client_.get(), &answer)) return LastFailure(code);
    return answer != 0;
  }

  // Its strings point into the client until the next call of GetStatus.
  Result<unreft_status> GetStatus() {
    unreft_status status{};
    status.struct_bytes = sizeof(status);
    if (int code = unreft_get_status(client_.get(), &status)) return LastFailure(code);
    return status;
  }

 private:
  struct Closer {
    void operator()(unreft_client* client) const { unreft_close(client); }
  };

  // The C view of tensors; lives no longer than they.
  class CTensors {
   public:
    explicit CTensors(const std::vector<Tensor>& tensors) {
      zeros_.reserve(tensors.size());
      for (const Tensor& tensor : tensors) items_.push_back(ToC(tensor));
    }
    const unreft_tensor* data() const { return items_.data(); }
    size_t size() const { return items_.size(); }

   private:
    unreft_tensor ToC(const Tensor& tensor) {
      const std::vector<uint64_t>& zeros = zeros_.emplace_back(tensor.global_shape.size(), 0);
      unreft_tensor c;
      unreft_tensor_init(&c);
      c.name = tensor.name.c_str();
      c.dtype = tensor.dtype;
      c.dims = static_cast<int32_t>(tensor.global_shape.size());
      c.global_shape = tensor.global_shape.data();
      // An offset or extent of another length than the shape is passed as NULL and so refused.
      c.offset = Checked(tensor.offset.empty() ? zeros : tensor.offset, c.dims);
      c.extent = Checked(tensor.extent.empty() ? tensor.global_shape : tensor.extent, c.dims);
      c.data = tensor.data;
      c.device_kind = tensor.device_kind;
      c.device_index = tensor.device_index;
      c.replica_index = tensor.replica_index;
      c.replica_count = tensor.replica_count;
      c.is_volatile = tensor.is_volatile ? 1 : 0;
      if (tensor.range) c.range = tensor.range->data();
      c.allow_shape_mismatch = tensor.allow_shape_mismatch ? 1 : 0;
      // One of another length leads to a NULL in place of the shape, and so is refused.
      const size_t ordered = tensor.memory_order.size();
      if (ordered > 0) c.memory_order = tensor.memory_order.data();
      if (ordered > 0 && ordered != tensor.global_shape.size()) c.global_shape = nullptr;
      return c;
    }
    static const uint64_t* Checked(const std::vector<uint64_t>& values, int32_t dims) {
      return values.size() == static_cast<size_t>(dims) ? values.data() : nullptr;
    }

    std::vector<unreft_tensor> items_;
    std::vector<std::vector<uint64_t>> zeros_;
  };

  using KeepWaiting = std::function<bool(const char*, double)>;

  Client(unreft_client* client, std::unique_ptr<KeepWaiting> keep_waiting)
      : keep_waiting_(std::move(keep_waiting)), client_(client) {}

  static int32_t AskToWait(void* context, const char* waited_for, double seconds) noexcept {
    try {
      return (*static_cast<KeepWaiting*>(context))(waited_for, seconds) ? 0 : 1;
    } catch (...) {
      return 1;
    }
  }

  static Failure LastFailure(int code) { return {code, unreft_error()}; }
  static Done ToDone(int code) {
    if (code != UNREFT_OK) return LastFailure(code);
    return Nothing{};
  }
  static Tensor FromC(const unreft_tensor& c) {
    Tensor tensor;
    tensor.name = c.name;
    tensor.dtype = c.dtype;
    tensor.global_shape.assign(c.global_shape, c.global_shape + c.dims);
    tensor.offset.assign(c.offset, c.offset + c.dims);
    tensor.extent.assign(c.extent, c.extent + c.dims);
    tensor.replica_index = c.replica_index;
    tensor.replica_count = c.replica_count;
    tensor.is_volatile = c.is_volatile != 0;
    if (c.memory_order != nullptr) {
      tensor.memory_order.assign(c.memory_order, c.memory_order + c.dims);
    }
    return tensor;
  }

  std::unique_ptr<KeepWaiting> keep_waiting_;  // where the client below looks for it
  std::unique_ptr<unreft_client, Closer> client_;
};

}  // namespace unreft

#endif  // UNREFT_UNREFT_H_
