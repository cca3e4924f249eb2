// Client: the client of a real training process: a ClientActor on a copier thread of its own, and
// blocking calls around it.
//
// Used by one training thread at a time, except for status(), which any thread may call. Snapshot
// and Fence wait for no daemon; every other wait has a deadline, and ends early, Cancelled, when
// `keep_waiting` says so. A call that ended so touches none of its caller's memory any more; what
// it asked for may come true later.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "snapshot/client_actor.h"
#include "snapshot/patience.h"

namespace unreft::snapshot {

// Which rank this process is, and where its daemon listens.
struct ClientIdentity {
  std::string socket;
  std::string job = "default";
  Rank rank;
  uint64_t world = 1;
  Attempt attempt;
};

class Client {
 public:
  // Unavailable when no daemon answers in time; FailedPrecondition for an option that this build
  // cannot serve.
  static absl::StatusOr<std::unique_ptr<Client>> Open(const ClientIdentity& identity,
                                                      const ClientOptions& options,
                                                      KeepWaiting keep_waiting = nullptr);
  // Waits for the copies that are under way, then leaves.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // `at_or_before`: the newest step that is restored, the same on all ranks; none: any.
  absl::StatusOr<Restored> RestoreBegin(std::optional<Step> at_or_before);
  absl::StatusOr<StoredExtras> RestoreExtras(Rank rank);
  absl::Status RestoreRead(const std::vector<BoundTensor>& targets);
  absl::Status RestoreEnd();
  // Waits for nothing.
  absl::Status Rebind(std::span<const uint64_t> tensors, std::span<std::byte* const> data);
  // Once it returns, unless it refuses the tensors as InvalidArgument, nothing of what was
  // registered before is captured any more, and Rebind counts these. DeadlineExceeded when the
  // daemon has not answered within `timeout`, or that of the options: the registration goes on
  // then, and snapshots skip until it has.
  absl::Status Register(GivenTensors tensors, uint64_t extras_bytes,
                        std::optional<Duration> timeout = std::nullopt);
  absl::StatusOr<SnapshotResult> Snapshot(Step step, std::span<const std::byte> extras,
                                          void* stream);
  absl::Status SkipSnapshot(Step step, std::string_view why);
  absl::Status Fence(void* stream);
  absl::Status SetWriters(std::vector<void*> streams);
  // Until a snapshot would start. FailedPrecondition when waiting does not help.
  absl::Status WaitReady(Duration timeout);
  absl::Status WaitCommitted(Step step, Duration timeout);
  absl::StatusOr<bool> EverCommitted();
  ClientStatus status() const;
  // Of what copies, for people.
  std::string Describe() const;

 private:
  struct Parts;

  explicit Client(std::unique_ptr<Parts> parts);
  Patience NewPatience() const;
  template <typename T, typename Start>
  T Await(Patience& patience, const std::string& waited_for, std::optional<Duration> limit,
          Start start);
  template <typename T>
  T EndWait(T answer);
  std::string WaitedFor(const std::string& what) const;

  const std::unique_ptr<Parts> parts_;
};

}  // namespace unreft::snapshot
