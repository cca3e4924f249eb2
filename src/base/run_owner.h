// RunOwner: which daemon a run directory is of. The daemon writes it when it starts, the command
// reads it, also when no daemon lives, and removes it with the daemon's memory.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <optional>
#include <string>

namespace unreft {

inline constexpr char kRunOwnerFile[] = "owner";

struct RunOwner {
  std::string job;
  uint64_t node = 0;           // that the daemon was started with, by which its memory is named
  bool allows_inject = false;  // --allow-inject
};

// None where no daemon has written one, or what is there is not whole.
std::optional<RunOwner> ReadRunOwner(const std::string& run_dir);

// Whole or not at all: what was there stays when it fails.
absl::Status WriteRunOwner(const std::string& run_dir, const RunOwner& owner);

}  // namespace unreft
