// PeerIdentity: who is at the other end of a connection of this host, by the word of the kernel.
#pragma once

#include <cstdint>
#include <memory>

#include "base/unique_fd.h"

namespace unreft {

struct PeerIdentity {
  uint32_t uid = 0;
  int64_t pid = 0;  // as this process sees it; 0 if its pid namespace does not have the peer
  // Of the very process, whatever its pid names by now; null where the kernel does not give it
  // (SO_PEERPIDFD, Linux 6.5).
  std::shared_ptr<const UniqueFd> pidfd = nullptr;
};

}  // namespace unreft
