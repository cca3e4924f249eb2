// The role drain of unreftd: the process that writes this node's part of a durable copy, and ends.
//
// Its daemon starts it with an order and reads what it prints: lines, each a CopyPartReply in hex,
// at most twice a second, the last of which says how it ended. It runs at the lowest priority, and
// maps the daemon's memory read-only.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <string>

namespace unreft::smp {

struct DrainOptions {
  std::string order;  // a CopyPartRequest in hex
};

// Blocks until the part is written, or the whole copy where it leads. SIGTERM, and an output that
// nobody reads, end it: what it has written is removed.
absl::Status RunDrain(const DrainOptions& options, const std::string& job, uint64_t place);

}  // namespace unreft::smp
