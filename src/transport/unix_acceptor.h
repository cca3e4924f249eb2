// UnixAcceptor: accepts a gRPC server's connections at a socket file, on a thread of its own.
//
// gRPC would accept them itself, but then a connection has the kernel's default of 208 KiB for what
// was sent and not yet received: bulk is sent in small parts, and each wakes both sides, which
// costs a third more CPU than TCP. Here it gets more, as TCP does by itself. And the kernel is
// asked who connects: users other than this one and root are let go.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/server_builder.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>

#include "base/unique_fd.h"

namespace unreft {

class UnixAcceptor {
 public:
  using Sink = std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>;

  // Listens at `path`, with mode 0600. AlreadyExists: somebody listens there, or it is no socket.
  static absl::StatusOr<std::unique_ptr<UnixAcceptor>> Listen(const std::string& path);
  // Removes the file if it is still this one's; connections that were accepted stay.
  ~UnixAcceptor();
  UnixAcceptor(const UnixAcceptor&) = delete;
  UnixAcceptor& operator=(const UnixAcceptor&) = delete;

  // Once; the server of `sink` runs, and is shut down after this object is gone.
  void Start(Sink sink);

 private:
  UnixAcceptor(UniqueFd socket, std::string path, ino_t inode);
  void Run();
  void Admit(UniqueFd connection);

  const UniqueFd socket_;
  const std::string path_;
  const ino_t inode_;
  Sink sink_;
  std::thread thread_;  // from Start on; it uses what is above
};

}  // namespace unreft
