#include "base/unix_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace unreft {
namespace {

constexpr int kPeerPidfd = 77;  // SO_PEERPIDFD, which headers of older kernels lack

constexpr int kBacklog = 128;

}  // namespace

absl::StatusOr<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(fmt::format("socket path of {} bytes, the limit is {}: {}",
                                                  path.size(), sizeof(address.sun_path) - 1, path));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::StatusOr<UniqueFd> NewUnixSocket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return absl::ErrnoToStatus(errno, "make a Unix socket");
  return fd;
}

int TryConnect(const UniqueFd& socket, const sockaddr_un& address) {
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  return connect(socket.get(), generic, sizeof(address)) == 0 ? 0 : errno;
}

absl::Status RemoveStaleSocket(const std::string& path) {
  const auto address = UnixAddress(path);
  if (!address.ok()) return address.status();
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : absl::ErrnoToStatus(errno, "look at " + path);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::AlreadyExistsError(fmt::format("{} exists and is no socket", path));
  }
  const auto probe = NewUnixSocket();
  if (!probe.ok()) return probe.status();
  // Anything but a refusal, a full backlog included, means that somebody is there.
  if (TryConnect(*probe, *address) != ECONNREFUSED) {
    return absl::AlreadyExistsError(fmt::format("{}: another process listens there", path));
  }
  if (unlink(path.c_str()) != 0) return absl::ErrnoToStatus(errno, "remove stale " + path);
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> ListenUnixSocket(const std::string& path) {
  const auto address = UnixAddress(path);
  if (!address.ok()) return address.status();
  if (absl::Status status = RemoveStaleSocket(path); !status.ok()) return status;
  auto fd = NewUnixSocket();
  if (!fd.ok()) return fd.status();
  const auto* generic = reinterpret_cast<const sockaddr*>(&*address);
  if (bind(fd->get(), generic, sizeof(*address)) != 0) {
    return absl::ErrnoToStatus(errno, "bind " + path);
  }
  if (chmod(path.c_str(), 0600) != 0 || listen(fd->get(), kBacklog) != 0) {
    absl::Status status = absl::ErrnoToStatus(errno, "listen at " + path);
    unlink(path.c_str());
    return status;
  }
  return fd;
}

absl::StatusOr<UniqueFd> ConnectUnixSocket(const std::string& path) {
  const auto address = UnixAddress(path);
  if (!address.ok()) return address.status();
  auto fd = NewUnixSocket();
  if (!fd.ok()) return fd.status();
  const int error = TryConnect(*fd, *address);
  switch (error) {
    case 0:
      return fd;
    case ENOENT:
    case ECONNREFUSED:
      return absl::UnavailableError(fmt::format("{}: no daemon listens there", path));
    case EAGAIN:
      return absl::UnavailableError(fmt::format("{}: the listener's backlog is full", path));
    default:
      return absl::ErrnoToStatus(error, "connect to " + path);
  }
}

absl::StatusOr<PeerIdentity> PeerOf(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return absl::ErrnoToStatus(errno, "SO_PEERCRED");
  }
  PeerIdentity peer{.uid = credentials.uid, .pid = credentials.pid};
  int pidfd = -1;
  size = sizeof(pidfd);
  // An error is no reason to refuse: the kernel is older, or the peer has ended.
  if (getsockopt(socket, SOL_SOCKET, kPeerPidfd, &pidfd, &size) == 0 && pidfd >= 0) {
    peer.pidfd = std::make_shared<const UniqueFd>(pidfd);
  }
  return peer;
}

bool PeerIsWelcome(const PeerIdentity& peer, uint32_t own_uid) {
  return peer.uid == own_uid || peer.uid == 0;
}

absl::Status CheckServer(int socket, const std::string& path) {
  const absl::StatusOr<PeerIdentity> peer = PeerOf(socket);
  if (!peer.ok()) return peer.status();
  if (PeerIsWelcome(*peer, geteuid())) return absl::OkStatus();
  return absl::PermissionDeniedError(
      fmt::format("{} is served by user {}, needed user {} or root", path, peer->uid, geteuid()));
}

}  // namespace unreft
