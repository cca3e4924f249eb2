// Connections to a port of this process, more than it has descriptors for, which are then let go.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "base/check.h"
#include "base/unique_fd.h"

namespace unreft {

// `address`: "127.0.0.1:PORT".
inline void FloodWithConnections(const std::string& address) {
  constexpr int kConnections = 100;
  constexpr rlim_t kLeft = 20;  // descriptors, for the server's ends
  constexpr int kHeldMs = 300;  // in which it accepts, as far as it can
  std::vector<UniqueFd> clients;
  for (int i = 0; i < kConnections; ++i) {
    clients.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    UNREFT_CHECK(clients.back(), "the test has no descriptor");
  }
  rlimit before{};
  UNREFT_CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(clients.back().get()) + 1 + kLeft;
  UNREFT_CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
  sockaddr_in server{};
  server.sin_family = AF_INET;
  server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  server.sin_port = htons(static_cast<in_port_t>(std::stoi(address.substr(address.find(':') + 1))));
  // Each is made as soon as the kernel has it in the backlog.
  for (const UniqueFd& client : clients) {
    UNREFT_CHECK(connect(client.get(), reinterpret_cast<sockaddr*>(&server), sizeof(server)) == 0);
  }
  poll(nullptr, 0, kHeldMs);
  clients.clear();
  UNREFT_CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

}  // namespace unreft
