#include "base/wire_address.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cctype>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <system_error>

#include "base/private_directory.h"
#include "base/unique_fd.h"
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

absl::Status BeforeListening(const std::string& address) {
  if (!IsUnixAddress(address)) return absl::OkStatus();
  absl::StatusOr<std::string> path = SocketFileOf(address);
  return path.ok() ? RemoveStaleSocket(*path) : path.status();
}

absl::Status CannotListen(const std::string& address) {
  const auto because = [&](std::string_view why) {
    return absl::UnavailableError(fmt::format("cannot listen on {}: {}", address, why));
  };
  if (IsUnixAddress(address)) return because("its socket file could not be made");
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found);
  if (error != 0) return because(gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const UniqueFd fd(socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, 0));
    const int yes = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (!fd || bind(fd.get(), each->ai_addr, each->ai_addrlen) != 0 || listen(fd.get(), 1) != 0) {
      return because(std::generic_category().message(errno));
    }
  }
  return because("it was not free a moment ago, try again");
}

absl::Status AfterListening(const std::string& address) {
  if (!IsUnixAddress(address)) return absl::OkStatus();
  absl::StatusOr<std::string> path = SocketFileOf(address);
  if (!path.ok()) return path.status();
  if (chmod(path->c_str(), 0600) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "give this user alone " + *path);
}

}  // namespace unreft
