#include "snapshot/client.h"

#include <future>
#include <utility>

#include "base/asio_executor.h"
#include "base/pidfd_watcher.h"
#include "base/shm_segment_store.h"
#include "base/unix_connector.h"
#include "snapshot/cuda_factory.h"
#include "snapshot/routing_copier.h"

namespace unreft::snapshot {
namespace {

constexpr char kVersion[] = "0.1.0";

Hello ToHello(const ClientIdentity& identity, ProcessLife life) {
  return {.job = identity.job,
          .rank = identity.rank,
          .world = identity.world,
          .attempt = identity.attempt,
          .life = life,
          .client_version = kVersion};
}

}  // namespace

// In the order of construction: what stands lower uses what stands above.
struct Client::Parts {
  Parts(const std::string& socket, bool device_checksum)
      : thread("unreft-copier"),
        connector(thread.executor(), socket),
        copier(thread.executor(), [device_checksum](Executor& executor, int device) {
          return NewCudaCopier(executor, device, device_checksum);
        }) {}

  ExecutorThread thread;
  UnixConnector connector;
  ShmSegmentStore segments;
  RoutingCopier copier;
  std::unique_ptr<ClientActor> actor;
};

Client::Client(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

// Runs `start(answer)` in a turn and waits until somebody calls `answer`: the actor does, at its
// deadline at the latest.
template <typename T, typename Start>
T Client::Await(Start start) {
  std::promise<T> promise;
  std::future<T> future = promise.get_future();
  parts_->thread.executor().Post([&] {
    start(
        [promise = std::move(promise)](T answer) mutable { promise.set_value(std::move(answer)); });
  });
  return future.get();
}

absl::StatusOr<std::unique_ptr<Client>> Client::Open(const ClientIdentity& identity,
                                                     const ClientOptions& options) {
  const bool device_checksum = options.capture.device_checksum;
  if (device_checksum) {
    if (absl::Status status = CheckDeviceChecksum(); !status.ok()) return status;
  }
  std::unique_ptr<Client> client(
      new Client(std::make_unique<Parts>(identity.socket, device_checksum)));
  Parts& parts = *client->parts_;
  const absl::Status status = client->Await<absl::Status>([&](auto answer) {
    const ProcessLife self = PidfdWatcher(parts.thread.executor()).Self();
    parts.actor = std::make_unique<ClientActor>(parts.thread.executor(), parts.connector,
                                                parts.segments, parts.copier, Random::FromEntropy(),
                                                ToHello(identity, self), options);
    parts.actor->Start();
    parts.actor->WhenConnected(std::move(answer));
  });
  if (!status.ok()) {
    return absl::Status(status.code(),
                        fmt::format("{}: {}", identity.socket, std::string(status.message())));
  }
  return client;
}

Client::~Client() {
  if (parts_->actor) {
    parts_->actor->WaitForCopies();
    Await<absl::Status>([&](auto answer) {
      parts_->actor->Close();
      answer(absl::OkStatus());
    }).IgnoreError();
  }
  parts_->thread.Join();
}

absl::StatusOr<Restored> Client::RestoreBegin() {
  return Await<absl::StatusOr<Restored>>(
      [&](auto answer) { parts_->actor->RestoreBegin(std::move(answer)); });
}

absl::Status Client::RestoreRead(const std::vector<BoundTensor>& targets) {
  parts_->actor->WaitForCopies();
  absl::StatusOr<Plan> plan = Await<absl::StatusOr<Plan>>(
      [&](auto answer) { parts_->actor->RequestPlan(targets, std::move(answer)); });
  while (plan.ok()) {
    // Here rather than in a turn, so that the session stays alive during a long copy.
    const RestoreReport report = parts_->actor->restorer().Read(*plan, targets);
    absl::StatusOr<std::optional<Plan>> more = Await<absl::StatusOr<std::optional<Plan>>>(
        [&](auto answer) { parts_->actor->FinishRead(report, std::move(answer)); });
    if (!more.ok() || !*more) return more.status();
    plan = **std::move(more);
  }
  return plan.status();
}

absl::Status Client::RestoreEnd() {
  return Await<absl::Status>([&](auto answer) {
    parts_->actor->RestoreEnd();
    answer(absl::OkStatus());
  });
}

absl::Status Client::Register(std::vector<BoundTensor> tensors, uint64_t extras_bytes) {
  parts_->actor->WaitForCopies();
  return Await<absl::Status>([&](auto answer) {
    parts_->actor->Register(std::move(tensors), extras_bytes, std::move(answer));
  });
}

absl::Status Client::Rebind(std::span<const uint64_t> tensors, std::span<std::byte* const> data) {
  return parts_->actor->Rebind(tensors, data);
}

absl::StatusOr<SnapshotResult> Client::Snapshot(Step step, std::span<const std::byte> extras,
                                                void* stream) {
  return parts_->actor->Snapshot(step, extras, stream);
}

absl::Status Client::Fence(void* stream) { return parts_->actor->Fence(stream); }

absl::Status Client::SetWriters(std::vector<void*> streams) {
  return parts_->actor->SetWriters(std::move(streams));
}

std::string Client::Describe() const { return parts_->copier.Describe(); }

absl::Status Client::WaitCommitted(Step step, Duration timeout) {
  return Await<absl::Status>(
      [&](auto answer) { parts_->actor->WaitCommitted(step, timeout, std::move(answer)); });
}

ClientStatus Client::status() const { return parts_->actor->status(); }

}  // namespace unreft::snapshot
