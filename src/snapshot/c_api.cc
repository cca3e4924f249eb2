// The C ABI (unreft/c.h) over snapshot::Client: checks what comes in, and lets nothing be thrown.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/version.h"
#include "layout/memory_order.h"
#include "snapshot/c_inputs.h"
#include "snapshot/c_status.h"
#include "snapshot/client.h"
#include "snapshot/dry_run.h"
#include "snapshot/environment.h"
#include "snapshot/open_rank.h"
#include "unreft/c.h"

namespace unreft::snapshot {
namespace {

constexpr size_t kWritersMax = 64;

thread_local std::string last_error;  // of the calling thread, see convention 1

// The process that has clients open, and how many: how a forked child knows itself. The only state
// of the process.
std::atomic<pid_t> owner_pid{0};
std::atomic<int64_t> clients_open{0};

bool Forked() { return clients_open.load() > 0 && owner_pid.load() != getpid(); }

int Fail(const absl::Status& status) {
  last_error = std::string(status.message());
  return status.raw_code();
}

int Done(const absl::Status& status) { return status.ok() ? UNREFT_OK : Fail(status); }

// The border: runs `body`, which returns a Status, in this process only.
template <typename Body>
int Border(Body body) {
  try {
    if (Forked()) {
      last_error = "this is a forked child of the process that opened the client";
      return UNREFT_FORKED;
    }
    return Done(body());
  } catch (const std::bad_alloc&) {
    return UNREFT_RESOURCE_EXHAUSTED;  // the message would need memory
  } catch (const std::exception& error) {
    return Fail(absl::InternalError(error.what()));
  } catch (...) {
    return Fail(absl::InternalError("an unknown exception"));
  }
}

// Writes as much of `from` as the caller's struct has room for.
template <typename Struct>
void Fill(Struct* to, Struct from) {
  from.struct_bytes = to->struct_bytes;
  std::memcpy(to, &from, std::min(to->struct_bytes, sizeof(Struct)));
}

}  // namespace
}  // namespace unreft::snapshot

// What the caller holds: the client, and what was handed out of it.
struct unreft_client {
  std::unique_ptr<unreft::snapshot::OpenRank> rank;  // longer than the client
  // One of the two.
  std::unique_ptr<unreft::snapshot::Client> client;
  std::unique_ptr<unreft::snapshot::DryRun> dry_run;
  unreft::snapshot::Restored restored;
  unreft::snapshot::StoredExtras extras;              // of a rank that was asked for
  std::vector<unreft::layout::LogicalTensor> stored;  // of `restored`
  // As handed out: each an unreft_tensor, so far apart as the caller's header says.
  std::vector<std::byte> stored_tensors;
  unreft::snapshot::CStatus status;
};

namespace unreft::snapshot {
namespace {

unreft_tensor ToC(const layout::LogicalTensor& logical) {
  const TensorSpec& spec = logical.spec;
  unreft_tensor tensor;
  unreft_tensor_init(&tensor);
  tensor.name = spec.name.c_str();
  tensor.dtype = static_cast<int32_t>(spec.dtype);
  tensor.dims = static_cast<int32_t>(spec.global_shape.size());
  tensor.global_shape = spec.global_shape.data();
  tensor.offset = spec.offset.data();
  tensor.extent = spec.extent.data();
  tensor.replica_index = spec.replica_index;
  tensor.replica_count = spec.replica_count;
  tensor.is_volatile = spec.is_volatile ? 1 : 0;
  if (!logical.order.empty()) tensor.memory_order = logical.order.data();
  return tensor;
}

// How far apart the caller takes the decision's tensors to be.
absl::StatusOr<size_t> TensorBytes(const unreft_decision& decision) {
  constexpr size_t kEnd = offsetof(unreft_decision, tensor_bytes) + sizeof(decision.tensor_bytes);
  const bool says = decision.struct_bytes >= kEnd && decision.tensor_bytes != 0;
  if (!says) return kFirstTensorBytes;
  const size_t bytes = decision.tensor_bytes;
  if (bytes >= kFirstTensorBytes && bytes <= size_t{1} << 16 && bytes % alignof(unreft_tensor) == 0)
    return bytes;
  return absl::InvalidArgumentError(
      fmt::format("decision: needed tensor_bytes of sizeof(unreft_tensor), found {}", bytes));
}

void HandOutExtras(const StoredExtras& stored, const void** extras, size_t* bytes) {
  static constexpr std::byte kNothing{};
  *extras = nullptr;
  *bytes = 0;
  if (!stored) return;
  // NULL means that there were none, so extras of no bytes need a place too.
  *extras = stored->empty() ? &kNothing : stored->data();
  *bytes = stored->size();
}

void HandOut(unreft_client& client, size_t tensor_bytes, unreft_decision* decision) {
  Restored& restored = client.restored;
  client.stored.clear();
  for (TensorSpec& spec : restored.tensors) {
    client.stored.push_back(layout::ToLogical(std::move(spec)));
  }
  restored.tensors.clear();
  client.stored_tensors.assign(client.stored.size() * tensor_bytes, std::byte{0});
  for (size_t i = 0; i < client.stored.size(); ++i) {
    unreft_tensor tensor = ToC(client.stored[i]);
    tensor.struct_bytes = tensor_bytes;
    std::memcpy(client.stored_tensors.data() + i * tensor_bytes, &tensor,
                std::min(tensor_bytes, sizeof(tensor)));
  }
  unreft_decision out{};
  out.restored = restored.fresh ? 0 : 1;
  out.step = restored.version.step.value;
  out.timeline = restored.version.timeline.value;
  out.new_timeline = restored.timeline.value;
  out.tensors = reinterpret_cast<const unreft_tensor*>(client.stored_tensors.data());
  out.tensor_count = client.stored.size();
  out.tensor_bytes = tensor_bytes;
  out.source_world = restored.source_world;
  if (!restored.durable_copy.empty()) out.durable_copy = restored.durable_copy.c_str();
  HandOutExtras(restored.extras, &out.extras, &out.extras_bytes);
  Fill(decision, out);
}

absl::Status OpenClient(const unreft_open_options* options, unreft_client** out) {
  if (out == nullptr) return MissingArgument("client");
  *out = nullptr;
  unreft_open_options given;
  unreft_open_options_init(&given);
  if (options != nullptr) {
    if (absl::Status status = CheckStruct(options, kFirstOptionsBytes, "options"); !status.ok()) {
      return status;
    }
    std::memcpy(static_cast<void*>(&given), options,
                std::min(options->struct_bytes, sizeof(given)));
  }
  absl::StatusOr<ClientIdentity> identity = ToIdentity(given);
  if (!identity.ok()) return identity.status();
  absl::StatusOr<ClientOptions> client_options = ToOptions(given);
  if (!client_options.ok()) return client_options.status();
  absl::StatusOr<std::unique_ptr<OpenRank>> rank = OpenRank::Claim(*identity);
  if (!rank.ok()) return rank.status();
  auto handle = std::make_unique<unreft_client>();
  handle->rank = *std::move(rank);
  if (!DryRunDirectory().empty()) {
    auto dry_run = DryRun::Begin(*identity, client_options->any_world);
    if (!dry_run.ok()) return dry_run.status();
    handle->dry_run = *std::move(dry_run);
  } else {
    auto client = Client::Open(*identity, *client_options, ToKeepWaiting(given));
    if (!client.ok()) return client.status();
    handle->client = *std::move(client);
  }
  if (clients_open.fetch_add(1) == 0) owner_pid = getpid();
  *out = handle.release();
  return absl::OkStatus();
}

// Of what needs a daemon.
absl::Status CheckLive(const unreft_client* client) {
  if (client == nullptr) return MissingArgument("client");
  return client->dry_run != nullptr ? client->dry_run->Ended() : absl::OkStatus();
}

bool IsDry(const unreft_client* client) { return client != nullptr && client->dry_run != nullptr; }

absl::Status Register(unreft_client* client, const unreft_tensor* tensors, size_t count,
                      uint64_t extras_bytes, std::optional<Duration> timeout) {
  if (client == nullptr) return MissingArgument("client");
  auto given = ToTensors(tensors, count);
  if (!given.ok()) return given.status();
  if (IsDry(client)) return client->dry_run->Write(*given);
  return client->client->Register(*std::move(given), extras_bytes, timeout);
}

absl::Status TakeSnapshot(unreft_client* client, Step step, std::span<const std::byte> extras,
                          void* stream, int32_t* outcome) {
  absl::StatusOr<SnapshotResult> result = client->client->Snapshot(step, extras, stream);
  if (!result.ok()) return result.status();
  last_error = result->reason;
  if (outcome != nullptr) *outcome = static_cast<int32_t>(result->outcome);
  return absl::OkStatus();
}

}  // namespace
}  // namespace unreft::snapshot

using unreft::snapshot::Border;
using unreft::snapshot::CheckLive;
using unreft::snapshot::CheckStruct;
using unreft::snapshot::Fill;
using unreft::snapshot::HandOut;
using unreft::snapshot::IsDry;
using unreft::snapshot::MissingArgument;
using unreft::snapshot::ToTensors;

extern "C" {

const char* unreft_version(void) { return unreft::SoftwareVersion(); }

const char* unreft_error(void) { return unreft::snapshot::last_error.c_str(); }

void unreft_open_options_init_sized(unreft_open_options* options, size_t struct_bytes) {
  if (options == nullptr) return;
  unreft_open_options defaults{};
  defaults.struct_bytes = struct_bytes;
  defaults.rank = defaults.world = defaults.attempt = -1;
  defaults.connect_timeout_ms = 10000;
  defaults.restore_timeout_ms = 300000;
  defaults.fence_timeout_ms = 60000;
  defaults.device_checksum = -1;
  std::memset(static_cast<void*>(options), 0, struct_bytes);
  std::memcpy(static_cast<void*>(options), &defaults, std::min(struct_bytes, sizeof(defaults)));
}

// What callers link that were compiled before the one above.
#undef unreft_open_options_init
UNREFT_API void unreft_open_options_init(unreft_open_options* options) {
  unreft_open_options_init_sized(options, unreft::snapshot::kFirstOptionsBytes);
}

void unreft_tensor_init_sized(unreft_tensor* tensor, size_t struct_bytes) {
  if (tensor == nullptr) return;
  unreft_tensor defaults{};
  defaults.struct_bytes = struct_bytes;
  defaults.device_kind = UNREFT_CPU;
  defaults.replica_count = 1;
  std::memset(static_cast<void*>(tensor), 0, struct_bytes);
  std::memcpy(static_cast<void*>(tensor), &defaults, std::min(struct_bytes, sizeof(defaults)));
}

// What callers link that were compiled before the one above.
#undef unreft_tensor_init
UNREFT_API void unreft_tensor_init(unreft_tensor* tensor) {
  unreft_tensor_init_sized(tensor, unreft::snapshot::kFirstTensorBytes);
}

int unreft_open(const unreft_open_options* options, unreft_client** client) {
  return Border([&] {
    static std::once_flag warned;
    std::call_once(warned, unreft::snapshot::WarnOfMistypedVariables);
    return unreft::snapshot::OpenClient(options, client);
  });
}

void unreft_close(unreft_client* client) {
  if (client == nullptr) return;
  Border([&] {
    delete client;
    unreft::snapshot::clients_open.fetch_sub(1);
    return absl::OkStatus();
  });
}

namespace {

int BeginRestore(unreft_client* client, std::optional<unreft::Step> at_or_before,
                 unreft_decision* decision) {
  return Border([&]() -> absl::Status {
    if (client == nullptr) return MissingArgument("client");
    absl::Status status = CheckStruct(decision, unreft::snapshot::kFirstDecisionBytes, "decision");
    if (!status.ok()) return status;
    absl::StatusOr<size_t> tensor_bytes = unreft::snapshot::TensorBytes(*decision);
    if (!tensor_bytes.ok()) return tensor_bytes.status();
    if (IsDry(client)) {
      client->restored = {.fresh = true};
    } else {
      auto restored = client->client->RestoreBegin(at_or_before);
      if (!restored.ok()) return restored.status();
      client->restored = *std::move(restored);
    }
    HandOut(*client, *tensor_bytes, decision);
    return absl::OkStatus();
  });
}

}  // namespace

int unreft_restore_begin(unreft_client* client, unreft_decision* decision) {
  return BeginRestore(client, std::nullopt, decision);
}

int unreft_restore_begin_at_or_before(unreft_client* client, uint64_t step,
                                      unreft_decision* decision) {
  return BeginRestore(client, unreft::Step{step}, decision);
}

int unreft_restore_extras(unreft_client* client, uint64_t rank, const void** extras,
                          size_t* extras_bytes) {
  return Border([&]() -> absl::Status {
    if (absl::Status live = CheckLive(client); !live.ok()) return live;
    if (extras == nullptr) return MissingArgument("extras");
    if (extras_bytes == nullptr) return MissingArgument("extras_bytes");
    auto stored = client->client->RestoreExtras(unreft::Rank{rank});
    if (!stored.ok()) return stored.status();
    client->extras = *std::move(stored);
    unreft::snapshot::HandOutExtras(client->extras, extras, extras_bytes);
    return absl::OkStatus();
  });
}

int unreft_restore_read(unreft_client* client, const unreft_tensor* tensors, size_t count) {
  return Border([&]() -> absl::Status {
    if (client == nullptr) return MissingArgument("client");
    auto targets = ToTensors(tensors, count);
    if (!targets.ok()) return targets.status();
    if (IsDry(client)) return client->dry_run->Write(*targets);
    std::vector<const unreft::TensorSpec*> specs;
    for (const auto& shard : targets->shards) specs.push_back(&shard.spec);
    absl::Status status = unreft::layout::CheckMemoryOrders(client->stored, specs);
    return status.ok() ? client->client->RestoreRead(targets->shards) : status;
  });
}

int unreft_restore_end(unreft_client* client) {
  return Border([&]() -> absl::Status {
    if (client == nullptr) return MissingArgument("client");
    if (IsDry(client)) return absl::OkStatus();
    return client->client->RestoreEnd();
  });
}

int unreft_register(unreft_client* client, const unreft_tensor* tensors, size_t count,
                    uint64_t extras_bytes) {
  return Border([&]() -> absl::Status {
    return unreft::snapshot::Register(client, tensors, count, extras_bytes, std::nullopt);
  });
}

int unreft_rebind(unreft_client* client, const uint64_t* indices, void* const* data, size_t count) {
  return Border([&]() -> absl::Status {
    if (absl::Status live = CheckLive(client); !live.ok()) return live;
    if (count > 0 && indices == nullptr) return MissingArgument("indices");
    if (count > 0 && data == nullptr) return MissingArgument("data");
    return client->client->Rebind({indices, count},
                                  {reinterpret_cast<std::byte* const*>(data), count});
  });
}

int unreft_register_within(unreft_client* client, const unreft_tensor* tensors, size_t count,
                           uint64_t extras_bytes, int64_t timeout_ms) {
  return Border([&]() -> absl::Status {
    auto timeout = unreft::snapshot::ToDuration(timeout_ms, "timeout_ms");
    if (!timeout.ok()) return timeout.status();
    return unreft::snapshot::Register(client, tensors, count, extras_bytes, *timeout);
  });
}

int unreft_snapshot(unreft_client* client, uint64_t step, const void* extras, size_t extras_bytes,
                    void* stream, int32_t* outcome) {
  return Border([&]() -> absl::Status {
    if (outcome != nullptr) *outcome = UNREFT_SKIPPED;
    if (absl::Status live = CheckLive(client); !live.ok()) return live;
    if (extras == nullptr && extras_bytes > 0) return MissingArgument("extras");
    return unreft::snapshot::TakeSnapshot(client, unreft::Step{step},
                                          {static_cast<const std::byte*>(extras), extras_bytes},
                                          stream, outcome);
  });
}

int unreft_skip_snapshot(unreft_client* client, uint64_t step, const char* reason) {
  return Border([&]() -> absl::Status {
    if (absl::Status live = CheckLive(client); !live.ok()) return live;
    if (reason == nullptr) return MissingArgument("reason");
    return client->client->SkipSnapshot(unreft::Step{step}, reason);
  });
}

int unreft_fence(unreft_client* client, void* stream) {
  return Border([&]() -> absl::Status {
    if (client == nullptr) return MissingArgument("client");
    if (IsDry(client)) return absl::OkStatus();
    return client->client->Fence(stream);
  });
}

int unreft_set_writer_streams(unreft_client* client, void* const* streams, size_t count) {
  return Border([&]() -> absl::Status {
    if (client == nullptr) return MissingArgument("client");
    if (count > 0 && streams == nullptr) return MissingArgument("streams");
    if (count > unreft::snapshot::kWritersMax) {
      return absl::InvalidArgumentError(
          fmt::format("{} streams, {} at most", count, unreft::snapshot::kWritersMax));
    }
    if (IsDry(client)) return absl::OkStatus();
    return client->client->SetWriters({streams, streams + count});
  });
}

int unreft_get_status(unreft_client* client, unreft_status* status) {
  return Border([&]() -> absl::Status {
    if (client == nullptr) return MissingArgument("client");
    absl::Status checked = CheckStruct(status, offsetof(unreft_status, copying), "status");
    if (!checked.ok()) return checked;
    if (IsDry(client)) {
      Fill(status, client->status.Of({}, "none, in a dry run"));
      return absl::OkStatus();
    }
    Fill(status, client->status.Of(client->client->status(), client->client->Describe()));
    return absl::OkStatus();
  });
}

int unreft_ever_committed(unreft_client* client, int32_t* answer) {
  return Border([&]() -> absl::Status {
    if (client == nullptr) return MissingArgument("client");
    if (answer == nullptr) return MissingArgument("answer");
    if (IsDry(client)) {
      *answer = 0;
      return absl::OkStatus();
    }
    auto ever = client->client->EverCommitted();
    if (!ever.ok()) return ever.status();
    *answer = *ever ? 1 : 0;
    return absl::OkStatus();
  });
}

int unreft_wait_ready(unreft_client* client, int64_t timeout_ms) {
  return Border([&]() -> absl::Status {
    if (absl::Status live = CheckLive(client); !live.ok()) return live;
    auto timeout = unreft::snapshot::ToDuration(timeout_ms, "timeout_ms");
    if (!timeout.ok()) return timeout.status();
    return client->client->WaitReady(*timeout);
  });
}

int unreft_wait_committed(unreft_client* client, uint64_t step, int64_t timeout_ms) {
  return Border([&]() -> absl::Status {
    if (absl::Status live = CheckLive(client); !live.ok()) return live;
    auto timeout = unreft::snapshot::ToDuration(timeout_ms, "timeout_ms");
    if (!timeout.ok()) return timeout.status();
    return client->client->WaitCommitted(unreft::Step{step}, *timeout);
  });
}

}  // extern "C"
