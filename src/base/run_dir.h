// Where a daemon has its socket, lock and records by default, and the command looks for them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace unreft {

// ${XDG_RUNTIME_DIR:-/tmp}/unreft-<uid>/<job>, and behind it .node<node> unless that is 0.
std::string DefaultRunDir(std::string_view job, uint64_t node);

// In the run directory, where other nodes of this machine reach the daemon; no longer than the name
// of the local session's socket.
inline constexpr char kPeersSocket[] = "peers.sock";
// In the directory of the embedded meta store.
inline constexpr char kMetaSocket[] = "meta.sock";

}  // namespace unreft
