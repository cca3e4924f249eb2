// Acceptor: accepts a gRPC server's connections at a TCP port or a socket file, on a thread of its
// own.
//
// gRPC would accept them itself, but its listener ends for good when descriptors run out once, and
// whoever can connect can make them run out. Here some are kept: a connection beyond is let go at
// once, and the next one is accepted as soon as there is room again.
//
// At a socket file a connection would have the kernel's default of 208 KiB for what was sent and
// not yet received: bulk is sent in small parts, and each wakes both sides, which costs a third
// more CPU than TCP. It gets more, as TCP does by itself. And the kernel is asked who connects:
// users other than this one and root are let go.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/server_builder.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"

namespace unreft {

class Acceptor {
 public:
  using Sink = std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>;

  // Listens at "HOST:PORT", at each address of the host and at any free port for 0, or at
  // "unix:/PATH", with mode 0600. Unavailable: the port is taken, or the host has no address here;
  // AlreadyExists: somebody listens at the path, or it is no socket.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(const std::string& address);
  // Removes the socket file if it is still this one's; connections that were accepted stay.
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int port() const { return port_; }  // 0 at a socket file

  // Once; the server of `sink` runs, and is shut down after this object is gone.
  void Start(Sink sink);

 private:
  Acceptor() = default;
  absl::Status ListenAtPath(const std::string& path);
  absl::Status ListenAtPort(const std::string& address);
  void Run();
  void AcceptOne(int socket);
  bool Admit(const UniqueFd& connection) const;

  std::vector<UniqueFd> sockets_;
  int port_ = 0;
  std::string path_;  // empty at a port
  ino_t inode_ = 0;
  Sink sink_;
  std::thread thread_;  // from Start on; it uses what is above
};

}  // namespace unreft
