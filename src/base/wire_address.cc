#include "base/wire_address.h"

#include <fmt/format.h>

#include <cctype>
#include <filesystem>

#include "base/private_directory.h"
#include "base/unix_socket.h"

namespace unreft {
namespace {

constexpr std::string_view kUnix = "unix:";

absl::Status CheckNotOpen(const std::string& address, const WireUse& use) {
  if (!IsOpen(address, use.has_tls) || use.may_be_open) return absl::OkStatus();
  return absl::PermissionDeniedError(fmt::format(
      "{}: '{}' is TCP without TLS, by which other users of this machine, and of its network, can "
      "read and forge the state of the job: give certificates ({}; `unreft certs` makes them), or "
      "a socket file of this machine (unix:/PATH), or --insecure to do without",
      use.what, address, use.tls));
}

// Also of "unix:///PATH", as URLs have it, and etcdctl.
std::string_view PathOf(std::string_view address) {
  std::string_view path = address.substr(kUnix.size());
  if (path.starts_with("///")) path.remove_prefix(2);
  return path;
}

std::string DirectoryOf(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

}  // namespace

bool IsUnixAddress(std::string_view address) { return address.starts_with(kUnix); }

bool IsOpen(std::string_view address, bool has_tls) { return !has_tls && !IsUnixAddress(address); }

absl::StatusOr<std::string> SocketFileOf(std::string_view address) {
  std::string path(PathOf(address));
  if (!path.starts_with('/')) {
    return absl::InvalidArgumentError(
        fmt::format("'{}': needed unix:/PATH, an absolute one", address));
  }
  if (absl::StatusOr<sockaddr_un> fits = UnixAddress(path); !fits.ok()) {
    return absl::InvalidArgumentError(fmt::format("{}; choose a shorter --run-dir, or another path",
                                                  std::string(fits.status().message())));
  }
  return path;
}

absl::Status PrepareWire(const std::string& address, const WireUse& use) {
  if (!IsUnixAddress(address)) return CheckNotOpen(address, use);
  absl::StatusOr<std::string> path = SocketFileOf(address);
  if (!path.ok()) {
    return {path.status().code(),
            fmt::format("{}: {}", use.what, std::string(path.status().message()))};
  }
  return MakePrivateDirectory(DirectoryOf(*path));
}

absl::Status CheckWire(const std::string& address, const WireUse& use) {
  if (!IsUnixAddress(address)) return CheckNotOpen(address, use);
  absl::StatusOr<std::string> path = SocketFileOf(address);
  if (!path.ok()) return path.status();
  return CheckPrivateDirectory(DirectoryOf(*path));
}

std::string GrpcName(std::string_view address) {
  if (!IsUnixAddress(address)) return std::string(address);
  std::string name(kUnix);
  for (const char c : PathOf(address)) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                          std::string_view("/-._~").find(c) != std::string_view::npos;
    name += is_plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return name;
}

}  // namespace unreft
