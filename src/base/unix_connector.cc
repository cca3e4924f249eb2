#include "base/unix_connector.h"

#include <utility>

#include "base/check.h"
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
    auto socket = ConnectUnixSocket(path_);
    if (socket.ok()) {
      if (absl::Status status = CheckServer(socket->get(), path_); !status.ok()) socket = status;
    }
    auto done = std::exchange(*alive, nullptr);  // which may destroy the connector
    if (!socket.ok()) return done(socket.status());
    done(std::make_unique<UnixChannel>(executor_, std::move(*socket), options_));
  });
}

}  // namespace unreft
