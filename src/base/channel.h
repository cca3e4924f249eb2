// Channel, Listener, Connector: the seam to the local session between trainer and daemon.
//
// A channel carries frames in order until it closes. The real one is an AF_UNIX stream socket
// (mode 0600, peer checked by SO_PEERCRED); the simulated one may delay and cut.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/peer_identity.h"

namespace unreft {

// One message of the local session: its type (base/session_frames.h) and its encoded payload.
struct Frame {
  uint16_t type = 0;
  std::string payload;
};

// Used only in turns of its executor; callbacks run in such turns, never inline.
class Channel {
 public:
  using OnFrame = absl::AnyInvocable<void(Frame)>;
  using OnClose = absl::AnyInvocable<void(absl::Status)>;

  // Closes; no callback runs after the destructor.
  virtual ~Channel() = default;

  // Must be called once, before the first turn after the channel was obtained. `on_close` runs
  // once, last, when the peer closed or died, on a malformed frame (InvalidArgument, naming what
  // was needed and found), and when a send limit was passed; not after Close.
  virtual void Start(OnFrame on_frame, OnClose on_close) = 0;

  // Queues the frame; after the channel closed, drops it.
  virtual void Send(Frame frame) = 0;

  // Sends what is queued if the peer takes it without delay, then closes. Idempotent.
  virtual void Close() = 0;
};

// Accepts channels from its construction on, until destroyed.
class Listener {
 public:
  using OnAccept = absl::AnyInvocable<void(std::unique_ptr<Channel>, PeerIdentity)>;
  virtual ~Listener() = default;
  // Must be called once, in the turn of construction or before the executor runs.
  virtual void Start(OnAccept on_accept) = 0;
};

class Connector {
 public:
  using OnConnect = absl::AnyInvocable<void(absl::StatusOr<std::unique_ptr<Channel>>)>;
  virtual ~Connector() = default;
  // Tries once; `done` runs once, or never if the connector is destroyed first. Unavailable when
  // nobody listens there. The executor is the one given at construction; at most one call at a
  // time.
  virtual void Connect(OnConnect done) = 0;
};

}  // namespace unreft
