// Conversation: a trainer's connection that sends whatever it is told to.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/framing.h"
#include "base/session_frames.h"
#include "base/unix_socket.h"

namespace unreft {

class Conversation {
 public:
  explicit Conversation(const std::string& socket) {
    absl::StatusOr<UniqueFd> fd = ConnectUnixSocket(socket);
    // A full backlog is the only excuse: whoever accepts is slower than we are.
    for (int i = 0; i < 500 && !fd.ok(); ++i) {
      poll(nullptr, 0, 10);
      fd = ConnectUnixSocket(socket);
    }
    UNREFT_CHECK(fd.ok(), "{}", fd.status().message());
    fd_ = *std::move(fd);
  }

  // False when the daemon has closed, or takes nothing for a second.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      pollfd ready{fd_.get(), POLLOUT, 0};
      if (poll(&ready, 1, 1000) != 1) return false;
      const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  bool Send(const Frame& frame) { return Send(BytesOf(frame)); }
  template <typename Message>
  bool Say(Message message) {
    return Send(ToFrame(std::move(message)));
  }
  static std::string BytesOf(const Frame& frame) {
    const FrameHeader header = EncodeFrameHeader(frame);
    return std::string(reinterpret_cast<const char*>(header.data()), header.size()) + frame.payload;
  }

  // The next frame; nothing when the daemon has closed or is silent for so long.
  std::optional<Frame> Hear(std::chrono::milliseconds timeout) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    for (;;) {
      std::span<const std::byte> rest = std::as_bytes(std::span(unread_));
      auto frame = decoder_.Next(rest);
      UNREFT_CHECK(frame.ok(), "the daemon's frame: {}", frame.status().message());
      unread_.erase(0, unread_.size() - rest.size());
      if (*frame) return **std::move(frame);
      const auto left = deadline - std::chrono::steady_clock::now();
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count();
      pollfd ready{fd_.get(), POLLIN, 0};
      if (ms <= 0 || poll(&ready, 1, static_cast<int>(ms)) != 1) return std::nullopt;
      char buffer[1 << 16];
      const ssize_t count = recv(fd_.get(), buffer, sizeof(buffer), 0);
      if (count <= 0) return std::nullopt;
      unread_.append(buffer, static_cast<size_t>(count));
    }
  }
  // The next message of that type.
  template <typename Message>
  std::optional<Message> Await(std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    for (;;) {
      const auto left = deadline - std::chrono::steady_clock::now();
      const std::optional<Frame> frame =
          Hear(std::chrono::duration_cast<std::chrono::milliseconds>(left));
      if (!frame) return std::nullopt;
      if (frame->type != static_cast<uint16_t>(Message::kType)) continue;
      absl::StatusOr<Message> message = FromFrame<Message>(*frame);
      UNREFT_CHECK(message.ok(), "{}", message.status().message());
      return *std::move(message);
    }
  }

 private:
  UniqueFd fd_;
  FrameDecoder decoder_{size_t{64} << 20};
  std::string unread_;
};

}  // namespace unreft
