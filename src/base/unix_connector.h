// UnixConnector: connects channels to the listener at a path. Single-threaded on its executor.
#pragma once

#include <memory>
#include <string>

#include "base/asio_executor.h"
#include "base/channel.h"
#include "base/unix_channel.h"

namespace unreft {

class UnixConnector final : public Connector {
 public:
  UnixConnector(AsioExecutor& executor, std::string path, UnixChannelOptions options = {});

  void Connect(OnConnect done) override;

 private:
  absl::StatusOr<std::unique_ptr<Channel>> MakeChannel();

  AsioExecutor& executor_;
  const std::string path_;
  const UnixChannelOptions options_;
  const std::shared_ptr<OnConnect> pending_;  // dies with the connector, and so does the outcome
};

}  // namespace unreft
