#include "tools/cli/admin_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "base/framing.h"
#include "base/session_frames.h"
#include "base/unix_socket.h"
#include "tools/cli/daemon_control.h"
#include "tools/cli/owned_fd.h"

namespace unreft::cli {
namespace {

constexpr size_t kReplyBytesMax = 256 << 20;

// One connection, used for one question.
class Conversation {
 public:
  Conversation(const Place& place, const std::string& verb, Milliseconds timeout)
      : place_(place), verb_(verb), deadline_(timeout) {}

  absl::Status Connect() {
    fd_ = OwnedFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd_.valid()) return absl::ErrnoToStatus(errno, "make a socket");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, place_.socket().c_str(), sizeof(address.sun_path) - 1);
    while (connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      // EAGAIN: the listener's queue is full, and there is no event to wait for.
      if (errno != EAGAIN && errno != EINTR) return NobodyThere(errno);
      if (deadline_.passed()) return TooLate("takes no connection");
      poll(nullptr, 0, 10);
    }
    return CheckServer(fd_.get(), place_.socket());
  }

  absl::Status Send(const Frame& frame) {
    const FrameHeader header = EncodeFrameHeader(frame);
    std::string bytes(reinterpret_cast<const char*>(header.data()), header.size());
    bytes += frame.payload;
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = send(fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<size_t>(n);
      if (n >= 0 || errno == EINTR) continue;
      if (errno != EAGAIN) return Lost(std::strerror(errno));
      if (absl::Status status = Wait(POLLOUT); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Frame> Receive() {
    FrameDecoder decoder(kReplyBytesMax);
    std::array<std::byte, 64 << 10> buffer;
    while (true) {
      const ssize_t n = recv(fd_.get(), buffer.data(), buffer.size(), 0);
      if (n == 0) return Lost("it closed the connection");
      if (n < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return Lost(std::strerror(errno));
        if (absl::Status status = Wait(POLLIN); !status.ok()) return status;
        continue;
      }
      std::span<const std::byte> bytes(buffer.data(), static_cast<size_t>(n));
      absl::StatusOr<std::optional<Frame>> frame = decoder.Next(bytes);
      if (!frame.ok()) return frame.status();
      if (frame->has_value()) return std::move(**frame);
    }
  }

 private:
  absl::Status NobodyThere(int error) {
    // A daemon makes its lock before its socket, and takes away neither.
    const bool has_no_files = error == ENOENT && !std::filesystem::exists(place_.daemon_lock());
    if (FoundProcess daemon = has_no_files ? FindDaemon(place_) : std::nullopt;
        daemon.ok() && daemon->has_value()) {
      return absl::UnavailableError(fmt::format(
          "{}: unreftd (pid {}) runs, and nobody reaches it any more: what it had made in {} was "
          "removed. `unreft down --keep-memory` ends it, `unreft up` starts one that adopts its "
          "memory; see to it that nothing cleans that directory up",
          place_.Name(), (*daemon)->pid(), place_.run_dir));
    }
    return absl::UnavailableError(
        fmt::format("{}: no unreftd answers at {} ({}): `unreft up` starts it; --job, --node and "
                    "--run-dir say which",
                    place_.Name(), place_.socket(), std::strerror(error)));
  }

  absl::Status Lost(const std::string& why) {
    return absl::UnavailableError(fmt::format("{}: unreftd at {} was lost during '{}': {}",
                                              place_.Name(), place_.socket(), verb_, why));
  }

  absl::Status TooLate(const std::string& what) {
    return absl::DeadlineExceededError(
        fmt::format("{}: unreftd at {} {} ('{}')", place_.Name(), place_.socket(), what, verb_));
  }

  absl::Status Wait(short events) {
    pollfd entry{fd_.get(), events, 0};
    const int ready = poll(&entry, 1, deadline_.left_ms());
    if (ready < 0 && errno != EINTR) return Lost(std::strerror(errno));
    if (ready == 0 && deadline_.passed()) return TooLate("did not answer in time");
    return absl::OkStatus();
  }

  const Place& place_;
  const std::string& verb_;
  const Deadline deadline_;
  OwnedFd fd_;
};

absl::StatusOr<nlohmann::json> ReadReply(const Frame& frame) {
  if (frame.type == static_cast<uint16_t>(FrameType::kRefused)) {
    absl::StatusOr<Refused> refused = FromFrame<Refused>(frame);
    return refused.ok() ? refused->status.ToStatus() : refused.status();
  }
  absl::StatusOr<AdminReply> reply = FromFrame<AdminReply>(frame);
  if (!reply.ok()) return reply.status();
  if (absl::Status status = reply->status.ToStatus(); !status.ok()) return status;
  if (reply->result.empty()) return nlohmann::json::object();
  auto result = nlohmann::json::parse(reply->result, nullptr, /*allow_exceptions=*/false);
  if (result.is_discarded()) return absl::InternalError("the daemon's answer is not JSON");
  return result;
}

}  // namespace

absl::StatusOr<nlohmann::json> AskDaemon(const Place& place, const std::string& verb,
                                         const nlohmann::json& arguments, Milliseconds timeout) {
  return AskDaemonText(place, verb, arguments.dump(), timeout);
}

absl::StatusOr<nlohmann::json> AskDaemonText(const Place& place, const std::string& verb,
                                             std::string arguments, Milliseconds timeout) {
  Conversation conversation(place, verb, timeout);
  if (absl::Status status = conversation.Connect(); !status.ok()) return status;
  const AdminRequest request{.verb = verb, .arguments = std::move(arguments)};
  if (absl::Status status = conversation.Send(ToFrame(request)); !status.ok()) return status;
  absl::StatusOr<Frame> frame = conversation.Receive();
  if (!frame.ok()) return frame.status();
  return ReadReply(*frame);
}

}  // namespace unreft::cli
