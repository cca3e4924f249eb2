#include "transport/acceptor.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/unix_socket.h"
#include "base/wire_address.h"

namespace unreft {
namespace {

// Of a connection by socket file, sent and not yet received; the kernel takes less where
// net.core.wmem_max is less.
constexpr int kSendBytes = 4 << 20;
// When descriptors ran out.
constexpr int kExhaustedPauseMs = 100;
// The kernel gives the lowest number that is free: a connection with a higher one than this, or in
// the last quarter of what the process may have, is one too many.
constexpr rlim_t kDescriptorMax = 8'192;

bool HasRoom(const UniqueFd& connection) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  return static_cast<rlim_t>(connection.get()) < std::min(limit.rlim_cur / 4 * 3, kDescriptorMax);
}

absl::Status CannotListen(const std::string& address, const std::string& why) {
  return absl::UnavailableError(fmt::format("cannot listen on {}: {}", address, why));
}

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// Those of "HOST:PORT", of which the host may be in brackets.
absl::StatusOr<Addresses> Resolve(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return CannotListen(address, "it is no HOST:PORT");
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found);
  if (error != 0) return CannotListen(address, gai_strerror(error));
  return Addresses(found);
}

void SetPort(sockaddr* address, int port) {
  const in_port_t number = htons(static_cast<in_port_t>(port));
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = number;
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = number;
  }
}

absl::StatusOr<int> PortOf(const UniqueFd& socket) {
  sockaddr_storage bound{};
  socklen_t bytes = sizeof(bound);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &bytes) != 0) {
    return absl::ErrnoToStatus(errno, "ask for the port");
  }
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

// None, with the errno, when it cannot.
UniqueFd ListenAt(const addrinfo& address) {
  UniqueFd listener(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  const int off = 0;
  if (!listener) return listener;
  if (address.ai_family == AF_INET6) {  // [::] is every address, as gRPC has it
    setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(listener.get(), address.ai_addr, address.ai_addrlen) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0) {
    return UniqueFd();
  }
  return listener;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Listen(const std::string& address) {
  std::unique_ptr<Acceptor> acceptor(new Acceptor());
  absl::Status status;
  if (IsUnixAddress(address)) {
    const absl::StatusOr<std::string> path = SocketFileOf(address);
    status = path.ok() ? acceptor->ListenAtPath(*path) : path.status();
  } else {
    status = acceptor->ListenAtPort(address);
  }
  if (!status.ok()) return status;
  return acceptor;
}

absl::Status Acceptor::ListenAtPath(const std::string& path) {
  absl::StatusOr<UniqueFd> socket = ListenUnixSocket(path);
  if (!socket.ok()) return socket.status();
  struct stat found{};
  if (lstat(path.c_str(), &found) != 0) return absl::ErrnoToStatus(errno, "look at " + path);
  sockets_.push_back(*std::move(socket));
  path_ = path;
  inode_ = found.st_ino;
  return absl::OkStatus();
}

absl::Status Acceptor::ListenAtPort(const std::string& address) {
  const absl::StatusOr<Addresses> addresses = Resolve(address);
  if (!addresses.ok()) return addresses.status();
  int absent = 0;  // why an address is not one of this machine's
  for (const addrinfo* next = addresses->get(); next != nullptr; next = next->ai_next) {
    if (port_ != 0) SetPort(next->ai_addr, port_);  // the same at each
    UniqueFd socket = ListenAt(*next);
    if (!socket) {
      absent = errno;
      if (absent == EAFNOSUPPORT || absent == EADDRNOTAVAIL) continue;
      return CannotListen(address, strerror(absent));
    }
    const absl::StatusOr<int> port = PortOf(socket);
    if (!port.ok()) return port.status();
    port_ = *port;
    sockets_.push_back(std::move(socket));
  }
  return sockets_.empty() ? CannotListen(address, strerror(absent)) : absl::OkStatus();
}

Acceptor::~Acceptor() {
  for (const UniqueFd& socket : sockets_) shutdown(socket.get(), SHUT_RDWR);  // wakes the thread
  if (thread_.joinable()) thread_.join();
  struct stat found{};
  if (!path_.empty() && lstat(path_.c_str(), &found) == 0 && found.st_ino == inode_) {
    unlink(path_.c_str());
  }
}

void Acceptor::Start(Sink sink) {
  sink_ = std::move(sink);
  thread_ = std::thread([this] { Run(); });
}

void Acceptor::Run() {
  std::vector<pollfd> listening;
  listening.reserve(sockets_.size());
  for (const UniqueFd& socket : sockets_)
    listening.push_back({.fd = socket.get(), .events = POLLIN});
  while (true) {
    poll(listening.data(), listening.size(), -1);
    for (const pollfd& ready : listening) {
      if ((ready.revents & POLLHUP) != 0) return;  // shut down; accept4 would say EAGAIN
      if (ready.revents != 0) AcceptOne(ready.fd);
    }
  }
}

void Acceptor::AcceptOne(int socket) {
  UniqueFd connection(accept4(socket, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      poll(nullptr, 0, kExhaustedPauseMs);
    }
    return;
  }
  if (!HasRoom(connection) || !Admit(connection)) return;
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters accepted;
  accepted.listener_fd = socket;
  accepted.fd = connection.Release();
  sink_->HandleNewConnection(&accepted);
}

bool Acceptor::Admit(const UniqueFd& connection) const {
  if (path_.empty()) {
    const int on = 1;
    return setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0;
  }
  const absl::StatusOr<PeerIdentity> peer = PeerOf(connection.get());
  if (!peer.ok() || !PeerIsWelcome(*peer, geteuid())) return false;
  // What the kernel does not give is done without.
  if (setsockopt(connection.get(), SOL_SOCKET, SO_SNDBUFFORCE, &kSendBytes, sizeof(kSendBytes)) !=
      0) {
    (void)setsockopt(connection.get(), SOL_SOCKET, SO_SNDBUF, &kSendBytes, sizeof(kSendBytes));
  }
  return true;
}

}  // namespace unreft
