// UnixListener: accepts channels at a path, from its construction on.
//
// The socket file has mode 0600, so that the kernel refuses other users; whoever gets through all
// the same and is neither our user nor root is refused by its credentials. When descriptors run
// out, acceptance pauses and is tried again. A handler that throws is called for the next peer all
// the same. Single-threaded on its executor.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "base/asio_executor.h"
#include "base/channel.h"
#include "base/unix_channel.h"

namespace unreft {

class UnixListener final : public Listener {
 public:
  using OnRefused = absl::AnyInvocable<void(PeerIdentity)>;

  // Listens at `path`. A socket file that nobody listens on is what a dead process left, and is
  // replaced. AlreadyExists when somebody listens there or the file is no socket. Two processes may
  // not do this at once for one path: they hold a lock of their own (LockFile).
  static absl::StatusOr<std::unique_ptr<UnixListener>> Create(AsioExecutor& executor,
                                                              const std::string& path,
                                                              UnixChannelOptions options,
                                                              OnRefused on_refused);
  // Removes the socket file if it is still this listener's.
  ~UnixListener() override;

  void Start(OnAccept on_accept) override;

 private:
  class Acceptor;

  explicit UnixListener(std::shared_ptr<Acceptor> acceptor);

  const std::shared_ptr<Acceptor> acceptor_;  // shared with its handlers under way
};

}  // namespace unreft
