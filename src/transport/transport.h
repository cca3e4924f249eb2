// Transport: the seam between nodes. Control goes by Call, bulk by Read, and nothing else.
//
// Read is one-sided in spirit: whoever keeps the bytes asks for them and says where they go
// (docs/protocol.md, rule 6). The source resolves the request to memory that it holds until the
// bytes have left; the answer carries a small header beside them, by which the receiver verifies
// what landed.
//
// Addresses are "host:port", or "unix:/path" on one machine. Requests, replies and headers are
// opaque bytes here; their meaning, the view they belong to and the fencing of old ones are the
// caller's.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/executor.h"

namespace unreft {

enum class TransferId : uint64_t { kNone = 0 };

// What a source answers to a Read: bytes in its memory, in order, and what is said about them.
struct ReadSource {
  std::string header;
  std::vector<std::span<const std::byte>> parts;
  // Released (on any thread) when no part is touched any more, whatever became of the transfer.
  std::shared_ptr<const void> hold;
};

// Used only in turns of the executor given at construction; every callback runs in such a turn,
// exactly once and never inline. No callback runs after the destructor; no memory given to Read is
// touched after it.
class Transport {
 public:
  using CallDone = absl::AnyInvocable<void(absl::StatusOr<std::string> reply)>;
  using ReadDone = absl::AnyInvocable<void(absl::StatusOr<std::string> header)>;
  // `done` may run in any later turn, or in none: then the caller's deadline ends the call.
  using CallHandler = absl::AnyInvocable<void(std::string request, CallDone done)>;
  using ReadHandler = absl::AnyInvocable<void(
      std::string request, uint64_t bytes, absl::AnyInvocable<void(absl::StatusOr<ReadSource>)>)>;

  virtual ~Transport() = default;

  // Where this node is reached.
  virtual const std::string& address() const = 0;

  // Sends the request to the handler of `method` at `address`. Fails with the handler's status, or
  // Unavailable (nobody there, or the connection broke: the call may have been carried out),
  // DeadlineExceeded (the same), Unimplemented (no such method), Unauthenticated or
  // PermissionDenied (certificate or job), ResourceExhausted (a message over the limit, naming
  // both). A message names the address and method.
  virtual void Call(const std::string& address, const std::string& method, std::string request,
                    Duration timeout, CallDone done) = 0;

  // Fills `into` with bytes that the peer's ReadHandler resolves `request` to: all of them, in
  // place, before `done` runs with ok; on failure any of them may have been written. `into` is the
  // transport's until `done` has run. Fails as Call does, and with DataLoss when the source's bytes
  // are more or fewer than `into` (naming both).
  virtual TransferId Read(const std::string& address, std::string request,
                          std::span<std::byte> into, Duration timeout, ReadDone done) = 0;

  // Lets the transfer end soon, with Cancelled unless it has ended already; `done` still runs,
  // after the last touch of its memory. An unknown id is ignored.
  virtual void Cancel(TransferId transfer) = 0;

  // A hint: somebody has come to that address, where perhaps nobody was. What waits before it tries
  // again to connect there waits no longer.
  virtual void ReconnectNow(const std::string& address) { static_cast<void>(address); }

  // Replaces the handler of that method; null removes it.
  virtual void Serve(const std::string& method, CallHandler handler) = 0;
  virtual void ServeReads(ReadHandler handler) = 0;
};

}  // namespace unreft
