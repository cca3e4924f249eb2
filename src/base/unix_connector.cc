#include "base/unix_connector.h"

#include <utility>

#include "base/check.h"
#include "base/fork_guard.h"
#include "base/unix_socket.h"

namespace unreft {

UnixConnector::UnixConnector(AsioExecutor& executor, std::string path, UnixChannelOptions options)
    : executor_(executor),
      path_(std::move(path)),
      options_(options),
      pending_(std::make_shared<OnConnect>()) {}

void UnixConnector::Connect(OnConnect done) {
  UNREFT_CHECK(!*pending_, "one Connect at a time");
  *pending_ = std::move(done);
  executor_.Post([this, pending = std::weak_ptr(pending_)] {
    const auto alive = pending.lock();
    if (!alive) return;
    absl::StatusOr<std::unique_ptr<Channel>> channel = MakeChannel();
    auto done = std::exchange(*alive, nullptr);  // which may destroy the connector
    done(std::move(channel));
  });
}

// No child gets the socket: from the channel on it is closed there.
absl::StatusOr<std::unique_ptr<Channel>> UnixConnector::MakeChannel() {
  const ForkGuard no_fork;
  absl::StatusOr<UniqueFd> socket = ConnectUnixSocket(path_);
  if (!socket.ok()) return socket.status();
  if (absl::Status status = CheckServer(socket->get(), path_); !status.ok()) return status;
  return std::make_unique<UnixChannel>(executor_, *std::move(socket), options_);
}

}  // namespace unreft
