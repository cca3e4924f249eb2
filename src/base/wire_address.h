// Where transport and meta store are: "HOST:PORT", or "unix:/PATH" (or "unix:///PATH"), a socket
// file of this machine.
//
// Whoever reaches a TCP port is let in unknown unless both sides show certificates, every user of
// this machine included. A socket file of this user's in a private directory is reached by this
// user and root alone, and nobody else can put another in its place, also while nobody listens
// there: the kernel sees to both, so that nothing secret has to be shown. Thread-safe functions.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <string_view>

namespace unreft {

// How an address is used. Open: by TCP without certificates.
struct WireUse {
  std::string what;  // the option or the peer, for messages
  std::string tls;   // the options that would give it certificates, for messages
  bool has_tls = false;
  bool may_be_open = false;  // --insecure
};

bool IsUnixAddress(std::string_view address);
bool IsOpen(std::string_view address, bool has_tls);

// The path of "unix:/PATH". InvalidArgument: it is not absolute, or longer than the kernel's limit,
// with both numbers.
absl::StatusOr<std::string> SocketFileOf(std::string_view address);

// What has to hold before something listens there or connects. PermissionDenied, with what to do:
// it is open and may not be, or others can write to the directory of the socket. That is made if it
// is absent, since it would be another's who made it first.
absl::Status PrepareWire(const std::string& address, const WireUse& use);
// The same before something is said to it, again and again; NotFound when the directory is gone.
absl::Status CheckWire(const std::string& address, const WireUse& use);

// The address as gRPC wants it: a path may have any characters.
std::string GrpcName(std::string_view address);

}  // namespace unreft
