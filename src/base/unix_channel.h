// UnixChannel: the channel over a connected AF_UNIX stream socket, framed as framing.h says.
//
// Made by UnixListener and UnixConnector. A frame's handler that throws closes it, with
// Unavailable, and the executor sees what was thrown. Single-threaded on its executor; after the
// executor's Run has returned it may be destroyed anywhere.
#pragma once

#include <memory>

#include "base/asio_executor.h"
#include "base/channel.h"
#include "base/unique_fd.h"

namespace unreft {

struct UnixChannelOptions {
  size_t frame_bytes_max = size_t{64} << 20;        // payload of one frame, either way
  size_t send_queue_bytes_max = size_t{256} << 20;  // accepted by Send, not yet by the kernel
};

class UnixChannel final : public Channel {
 public:
  // `socket` is connected and non-blocking.
  UnixChannel(AsioExecutor& executor, UniqueFd socket, const UnixChannelOptions& options);
  ~UnixChannel() override;

  void Start(OnFrame on_frame, OnClose on_close) override;
  void Send(Frame frame) override;
  void Close() override;

 private:
  class Stream;

  const std::shared_ptr<Stream> stream_;  // shared with its handlers under way
};

}  // namespace unreft
