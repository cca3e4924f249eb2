// Client: the client of a real training process: a ClientActor on a copier thread of its own, and
// blocking calls around it.
//
// Used by one training thread at a time, except for status(), which any thread may call. After
// Register nothing waits for the daemon; every other wait has a deadline in the options.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "snapshot/client_actor.h"

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
                                                      const ClientOptions& options);
  // Waits for the copies that are under way, then leaves.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  absl::StatusOr<Restored> RestoreBegin();
  absl::Status RestoreRead(const std::vector<BoundTensor>& targets);
  absl::Status RestoreEnd();
  absl::Status Register(std::vector<BoundTensor> tensors, uint64_t extras_bytes);
  // Waits for nothing.
  absl::Status Rebind(std::span<const uint64_t> tensors, std::span<std::byte* const> data);
  absl::StatusOr<SnapshotResult> Snapshot(Step step, std::span<const std::byte> extras,
                                          void* stream);
  absl::Status Fence(void* stream);
  absl::Status SetWriters(std::vector<void*> streams);
  absl::Status WaitCommitted(Step step, Duration timeout);
  ClientStatus status() const;
  // Of what copies, for people.
  std::string Describe() const;

 private:
  struct Parts;

  explicit Client(std::unique_ptr<Parts> parts);
  template <typename T, typename Start>
  T Await(Start start);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace unreft::snapshot
