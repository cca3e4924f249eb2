// Runs part of a test on a small file system of its own, to see it get full.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace unreft {

inline constexpr int kNoPrivateTmpfs = 77;

// Forks a child that sees a tmpfs of `bytes` at `directory` and runs `body` there; returns the
// body's result, kNoPrivateTmpfs without the right to mount, or -1 if a signal (SIGBUS) ended it.
inline int InPrivateTmpfs(const std::string& directory, uint64_t bytes,
                          const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    const std::string size = "size=" + std::to_string(bytes);
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", directory.c_str(), "tmpfs", 0, size.c_str()) != 0) {
      _exit(kNoPrivateTmpfs);
    }
    _exit(body());
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

}  // namespace unreft
