// Runs part of a test on a small file system of its own, to see it get full.
#pragma once

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>

namespace unreft {

// Exit codes of RunInPrivateTmpfs beside the body's own.
inline constexpr int kNoPrivateTmpfs = 77;

// Runs `body` where a tmpfs of `bytes` hides `directory`, and exits with its result, or with
// kNoPrivateTmpfs without the right to mount. For the child of a "threadsafe" death test, which is
// executed anew: a forked one would lack the background threads of libraries.
[[noreturn]] inline void RunInPrivateTmpfs(const std::string& directory, uint64_t bytes,
                                           const std::function<int()>& body) {
  const std::string size = "size=" + std::to_string(bytes);
  mkdir(directory.c_str(), 0700);
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", directory.c_str(), "tmpfs", 0, size.c_str()) != 0) {
    std::fprintf(stderr, "no right to mount a tmpfs: not tested\n");
    _exit(kNoPrivateTmpfs);
  }
  _exit(body());
}

// For EXPECT_EXIT: the body returned 0, or could not be run here.
inline bool ExitedWellOrNotRun(int status) {
  return WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == kNoPrivateTmpfs);
}

}  // namespace unreft
