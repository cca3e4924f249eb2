#include "base/run_dir.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

namespace unreft {

std::string DefaultRunDir(std::string_view job, uint64_t node) {
  const char* base = std::getenv("XDG_RUNTIME_DIR");
  if (base == nullptr || *base == '\0') base = "/tmp";
  // A job's name has no '.', so another node's directory is no other job's.
  const std::string suffix = node == 0 ? "" : fmt::format(".node{}", node);
  return fmt::format("{}/unreft-{}/{}{}", base, geteuid(), job, suffix);
}

}  // namespace unreft
