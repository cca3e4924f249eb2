#include "snapshot/client.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "base/asio_executor.h"
#include "base/pidfd_watcher.h"
#include "base/shm_segment_store.h"
#include "base/unix_connector.h"
#include "base/version.h"
#include "snapshot/cuda_factory.h"
#include "snapshot/routing_copier.h"

namespace unreft::snapshot {
namespace {

// Runs `body` in a turn, and returns whether it ended: one that finds no memory does not.
template <typename Body>
bool RunTurn(Executor& executor, Body body) {
  auto done = std::make_unique<std::promise<void>>();
  bool ended = false;
  const std::future<void> future = done->get_future();
  executor.Post([done = std::move(done), &body, &ended] {
    body();
    ended = true;
    done->set_value();
  });
  future.wait();
  return ended;
}

absl::Status NoMemory() {
  return absl::ResourceExhaustedError("out of memory on the client's thread");
}

// Larger ones take the kernel longer to unmap than a turn may.
constexpr uint64_t kUnmappedInBackgroundBytes = uint64_t{1} << 20;

// Segments in a training process. What snapshots go to is unmapped by a thread of its own; what a
// restore reads at once, since the daemon is asked for room afterwards.
class TrainerSegments final : public SegmentStore {
 public:
  absl::StatusOr<std::unique_ptr<Segment>> Create(const std::string& name,
                                                  uint64_t bytes) override {
    return read_.Create(name, bytes);
  }
  absl::StatusOr<std::unique_ptr<Segment>> Open(const std::string& name, Access access,
                                                uint64_t offset, uint64_t length) override {
    return (access == Access::kReadWrite ? written_ : read_).Open(name, access, offset, length);
  }
  absl::StatusOr<std::vector<SegmentInfo>> List(std::string_view prefix) override {
    return read_.List(prefix);
  }
  absl::Status Remove(const std::string& name) override { return read_.Remove(name); }
  absl::StatusOr<MemoryCapacity> Capacity() override { return read_.Capacity(); }

 private:
  static constexpr auto kClosed = ShmSegmentStore::Descriptors::kClosed;
  ShmSegmentStore read_{UINT64_MAX, kClosed};
  ShmSegmentStore written_{kUnmappedInBackgroundBytes, kClosed};
};

Hello ToHello(const ClientIdentity& identity, ProcessLife life) {
  return {.job = identity.job,
          .rank = identity.rank,
          .world = identity.world,
          .attempt = identity.attempt,
          .life = life,
          .client_version = SoftwareVersion()};
}

}  // namespace

// In the order of construction: what stands lower uses what stands above.
struct Client::Parts {
  Parts(const ClientIdentity& identity, const ClientOptions& options, KeepWaiting keep_waiting)
      : socket(identity.socket),
        world(identity.world),
        wait_slice(options.wait_slice),
        keep_waiting(std::move(keep_waiting)),
        thread("unreft-copier"),
        connector(thread.executor(), identity.socket),
        copier(thread.executor(),
               [device_checksum = options.capture.device_checksum](Executor& executor, int device) {
                 return NewCudaCopier(executor, device, device_checksum);
               }) {}

  const std::string socket;
  const uint64_t world;
  const Duration wait_slice;
  const KeepWaiting keep_waiting;
  ExecutorThread thread;
  UnixConnector connector;
  TrainerSegments segments;
  RoutingCopier copier;
  std::unique_ptr<ClientActor> actor;
};

Client::Client(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Patience Client::NewPatience() const {
  return {parts_->thread.executor(), parts_->wait_slice, parts_->keep_waiting};
}

std::string Client::WaitedFor(const std::string& what) const {
  if (!what.empty() && parts_->actor->status().connected) return what;
  const std::string then = what.empty() ? "" : ", and then for " + what;
  return fmt::format("the daemon at {} to answer{}", parts_->socket, then);
}

// Runs `start(answer)` in a turn and waits until somebody calls `answer`: the actor does, at its
// deadline at the latest. `start` owns what it needs: the answer may come when nobody waits for it
// any more, after `limit` or the end of the caller's patience. Nobody else holds the promise, so
// that a turn that finds no memory breaks it.
template <typename T, typename Start>
T Client::Await(Patience& patience, const std::string& waited_for, std::optional<Duration> limit,
                Start start) {
  auto promise = std::make_shared<std::promise<T>>();
  std::future<T> future = promise->get_future();
  parts_->thread.executor().Post(
      [start = std::move(start), promise = std::move(promise)]() mutable {
        start([promise](T answer) { promise->set_value(std::move(answer)); });
      });
  Duration slice = patience.slice();
  while (true) {
    if (limit) slice = std::min(slice, std::max(*limit - patience.so_far(), Duration::zero()));
    if (future.wait_for(slice) == std::future_status::ready) {
      try {
        return future.get();
      } catch (const std::future_error&) {
        return T(NoMemory());
      }
    }
    if (limit && patience.so_far() >= *limit) {
      return T(absl::DeadlineExceededError(fmt::format(
          "waited {:.1f} s for {}", std::chrono::duration<double>(patience.so_far()).count(),
          WaitedFor(waited_for))));
    }
    if (!patience.Lasts([&] { return WaitedFor(waited_for); })) {
      return EndWait(T(absl::CancelledError(
          fmt::format("the caller ended the wait for {}", WaitedFor(waited_for)))));
    }
  }
}

// Returns when no turn touches the caller's memory any more.
template <typename T>
T Client::EndWait(T answer) {
  RunTurn(parts_->thread.executor(),
          [&] { parts_->actor->EndWaits(absl::CancelledError("the caller ended the wait")); });
  return answer;
}

absl::StatusOr<std::unique_ptr<Client>> Client::Open(const ClientIdentity& identity,
                                                     const ClientOptions& options,
                                                     KeepWaiting keep_waiting) {
  if (options.capture.device_checksum) {
    if (absl::Status status = CheckDeviceChecksum(); !status.ok()) return status;
  }
  std::unique_ptr<Client> client(
      new Client(std::make_unique<Parts>(identity, options, std::move(keep_waiting))));
  Parts& parts = *client->parts_;
  const bool is_made = RunTurn(parts.thread.executor(), [&] {
    const ProcessLife self = PidfdWatcher(parts.thread.executor()).Self();
    parts.actor = std::make_unique<ClientActor>(parts.thread.executor(), parts.connector,
                                                parts.segments, parts.copier, Random::FromEntropy(),
                                                ToHello(identity, self), options);
    parts.actor->Start();
  });
  if (!is_made) return absl::ResourceExhaustedError("out of memory for a client");
  Patience patience = client->NewPatience();
  const absl::Status status = client->Await<absl::Status>(
      patience, "", std::nullopt,
      [actor = parts.actor.get()](auto answer) { actor->WhenConnected(std::move(answer)); });
  if (!status.ok()) {
    return absl::Status(status.code(),
                        fmt::format("{}: {}", identity.socket, std::string(status.message())));
  }
  return client;
}

Client::~Client() {
  if (parts_->actor) {
    parts_->actor->WaitForCopies();
    RunTurn(parts_->thread.executor(), [&] { parts_->actor->Close(); });
  }
  parts_->thread.Join();
}

absl::StatusOr<Restored> Client::RestoreBegin(std::optional<Step> at_or_before) {
  Patience patience = NewPatience();
  const std::string all =
      parts_->world == 1 ? "" : fmt::format(", for which all {} ranks must ask", parts_->world);
  return Await<absl::StatusOr<Restored>>(patience, "the decision what to restore" + all,
                                         std::nullopt,
                                         [actor = parts_->actor.get(), at_or_before](auto answer) {
                                           actor->RestoreBegin(std::move(answer), at_or_before);
                                         });
}

absl::StatusOr<StoredExtras> Client::RestoreExtras(Rank rank) {
  Patience patience = NewPatience();
  return Await<absl::StatusOr<StoredExtras>>(patience, fmt::format("the extras of rank {}", rank),
                                             std::nullopt,
                                             [actor = parts_->actor.get(), rank](auto answer) {
                                               actor->RestoreExtras(rank, std::move(answer));
                                             });
}

absl::Status Client::RestoreRead(const std::vector<BoundTensor>& targets) {
  ClientActor* const actor = parts_->actor.get();
  actor->WaitForCopies();
  Patience patience = NewPatience();
  const auto goes_on = [&] {
    return patience.Lasts([] { return "the tensors to be copied from memory"; });
  };
  absl::StatusOr<RestorePlan> plan = Await<absl::StatusOr<RestorePlan>>(
      patience, "where the bytes of the version lie", std::nullopt,
      [actor, targets](auto answer) { actor->RequestPlan(targets, std::move(answer)); });
  while (plan.ok()) {
    // Here rather than in a turn, so that the session stays alive during a long copy.
    const RestoreReport report = actor->restorer().Read(*plan, targets, goes_on);
    absl::StatusOr<std::optional<RestorePlan>> more =
        Await<absl::StatusOr<std::optional<RestorePlan>>>(
            patience, "the bytes of the version that other nodes hold", std::nullopt,
            [actor, report](auto answer) { actor->FinishRead(report, std::move(answer)); });
    if (!more.ok() || !*more) return more.status();
    plan = **std::move(more);
  }
  return plan.status();
}

absl::Status Client::RestoreEnd() {
  Patience patience = NewPatience();
  return Await<absl::Status>(patience, "the restore to end", std::nullopt,
                             [actor = parts_->actor.get()](auto answer) {
                               actor->RestoreEnd();
                               answer(absl::OkStatus());
                             });
}

// What depends on this process alone is done to its end, whatever the limit: the caller may free
// what was registered before as soon as it goes on, and take a snapshot at once.
absl::Status Client::Register(GivenTensors tensors, uint64_t extras_bytes,
                              std::optional<Duration> timeout) {
  ClientActor* const actor = parts_->actor.get();
  actor->WaitForCopies();
  absl::Status taken = NoMemory();
  RunTurn(parts_->thread.executor(), [&] { taken = actor->TakeTensors(std::move(tensors)); });
  if (!taken.ok()) return taken;
  Patience patience = NewPatience();
  return Await<absl::Status>(
      patience, "the daemon to take over the tensors", timeout,
      [actor, extras_bytes](auto answer) { actor->AskForSlots(extras_bytes, std::move(answer)); });
}

absl::Status Client::Rebind(std::span<const uint64_t> tensors, std::span<std::byte* const> data) {
  return parts_->actor->Rebind(tensors, data);
}

absl::StatusOr<SnapshotResult> Client::Snapshot(Step step, std::span<const std::byte> extras,
                                                void* stream) {
  return parts_->actor->Snapshot(step, extras, stream);
}

absl::Status Client::SkipSnapshot(Step step, std::string_view why) {
  return parts_->actor->SkipSnapshot(step, why);
}

absl::Status Client::Fence(void* stream) { return parts_->actor->Fence(stream); }

absl::Status Client::SetWriters(std::vector<void*> streams) {
  return parts_->actor->SetWriters(std::move(streams));
}

std::string Client::Describe() const { return parts_->copier.Describe(); }

absl::Status Client::WaitReady(Duration timeout) {
  Patience patience = NewPatience();
  ClientActor* const actor = parts_->actor.get();
  const std::string what =
      fmt::format("memory for a snapshot ({})", std::string(actor->WhyNotReady().message()));
  return Await<absl::Status>(patience, what, std::nullopt, [actor, timeout](auto answer) {
    actor->WaitReady(timeout, std::move(answer));
  });
}

absl::Status Client::WaitCommitted(Step step, Duration timeout) {
  Patience patience = NewPatience();
  return Await<absl::Status>(patience, fmt::format("all ranks to commit step {}", step),
                             std::nullopt,
                             [actor = parts_->actor.get(), step, timeout](auto answer) {
                               actor->WaitCommitted(step, timeout, std::move(answer));
                             });
}

absl::StatusOr<bool> Client::EverCommitted() {
  Patience patience = NewPatience();
  return Await<absl::StatusOr<bool>>(
      patience, "its word whether anything was ever committed", std::nullopt,
      [actor = parts_->actor.get()](auto answer) { actor->EverCommitted(std::move(answer)); });
}

ClientStatus Client::status() const { return parts_->actor->status(); }

}  // namespace unreft::snapshot
