#include "transport/unix_acceptor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/unix_socket.h"

namespace unreft {
namespace {

// Of a connection, sent and not yet received; the kernel takes less where net.core.wmem_max is
// less.
constexpr int kSendBytes = 4 << 20;
// When descriptors ran out.
constexpr int kExhaustedPauseMs = 100;

}  // namespace

absl::StatusOr<std::unique_ptr<UnixAcceptor>> UnixAcceptor::Listen(const std::string& path) {
  absl::StatusOr<UniqueFd> socket = ListenUnixSocket(path);
  if (!socket.ok()) return socket.status();
  struct stat found{};
  if (lstat(path.c_str(), &found) != 0) return absl::ErrnoToStatus(errno, "look at " + path);
  return std::unique_ptr<UnixAcceptor>(new UnixAcceptor(*std::move(socket), path, found.st_ino));
}

UnixAcceptor::UnixAcceptor(UniqueFd socket, std::string path, ino_t inode)
    : socket_(std::move(socket)), path_(std::move(path)), inode_(inode) {}

UnixAcceptor::~UnixAcceptor() {
  shutdown(socket_.get(), SHUT_RDWR);  // which wakes the thread
  if (thread_.joinable()) thread_.join();
  struct stat found{};
  if (lstat(path_.c_str(), &found) == 0 && found.st_ino == inode_) unlink(path_.c_str());
}

void UnixAcceptor::Start(Sink sink) {
  sink_ = std::move(sink);
  thread_ = std::thread([this] { Run(); });
}

void UnixAcceptor::Run() {
  while (true) {
    pollfd listening{.fd = socket_.get(), .events = POLLIN};
    poll(&listening, 1, -1);
    if ((listening.revents & POLLHUP) != 0) return;  // shut down; accept4 would say EAGAIN
    UniqueFd connection(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection) {
      Admit(std::move(connection));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      poll(nullptr, 0, kExhaustedPauseMs);
    }
  }
}

void UnixAcceptor::Admit(UniqueFd connection) {
  const absl::StatusOr<PeerIdentity> peer = PeerOf(connection.get());
  if (!peer.ok() || !PeerIsWelcome(*peer, geteuid())) return;
  // What the kernel does not give is done without.
  if (setsockopt(connection.get(), SOL_SOCKET, SO_SNDBUFFORCE, &kSendBytes, sizeof(kSendBytes)) !=
      0) {
    (void)setsockopt(connection.get(), SOL_SOCKET, SO_SNDBUF, &kSendBytes, sizeof(kSendBytes));
  }
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters accepted;
  accepted.listener_fd = socket_.get();
  accepted.fd = connection.Release();
  sink_->HandleNewConnection(&accepted);
}

}  // namespace unreft
