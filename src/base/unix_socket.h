// Plain calls on AF_UNIX stream sockets, shared by the back ends of the local session.
//
// Every descriptor is non-blocking and closed on exec.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <sys/un.h>

#include <string>

#include "base/channel.h"
#include "base/unique_fd.h"

namespace unreft {

// InvalidArgument, with both lengths, when the kernel's address has no room for the path.
absl::StatusOr<sockaddr_un> UnixAddress(const std::string& path);

absl::StatusOr<UniqueFd> NewUnixSocket();

// Connects; the errno, or 0. ECONNREFUSED: the file is there and nobody listens.
int TryConnect(const UniqueFd& socket, const sockaddr_un& address);

// Removes what a process that is gone has left at `path`. AlreadyExists when somebody listens there
// or the file is no socket.
absl::Status RemoveStaleSocket(const std::string& path);

// A listening socket at `path`, after that. Its file has mode 0600 before anybody can connect,
// whatever the umask.
absl::StatusOr<UniqueFd> ListenUnixSocket(const std::string& path);

// One attempt, which the kernel decides at once. Unavailable when nobody listens there or the
// listener's backlog is full.
absl::StatusOr<UniqueFd> ConnectUnixSocket(const std::string& path);

// Who is at the other end, as of when it connected or began to listen.
absl::StatusOr<PeerIdentity> PeerOf(int socket);

// Whether a process of `own_uid` talks with that peer: with its own user and with root.
bool PeerIsWelcome(const PeerIdentity& peer, uint32_t own_uid);

// PermissionDenied when a peer that is not welcome serves the socket, connected to `path`: what it
// says would be believed.
absl::Status CheckServer(int socket, const std::string& path);

}  // namespace unreft
