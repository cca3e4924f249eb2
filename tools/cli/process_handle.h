// ProcessHandle: one life of another process, held by a pidfd, so that a signal never reaches a
// later process of the same pid. Move-only.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <optional>
#include <string>

#include "tools/cli/deadline.h"
#include "tools/cli/owned_fd.h"

namespace unreft::cli {

class ProcessHandle {
 public:
  // NotFound when no process has that pid.
  static absl::StatusOr<ProcessHandle> Open(pid_t pid);

  pid_t pid() const { return pid_; }
  int fd() const { return fd_.get(); }  // readable for poll(2) once the process has ended

  // NotFound when it has ended, PermissionDenied for another user's.
  absl::Status Signal(int signal) const;

  // Whether it ended within `timeout`. A process that nobody waited for yet has ended.
  bool WaitEnd(Milliseconds timeout) const;

 private:
  ProcessHandle(pid_t pid, OwnedFd fd) : pid_(pid), fd_(std::move(fd)) {}

  pid_t pid_;
  OwnedFd fd_;
};

// The process that holds a lock file (base/lock_file.h): the one named in the file, if it lives, is
// called `program` and has that very file open. Nothing when the file is absent or its holder is
// gone. It does not touch the lock, so no starting daemon believes that the lock is taken.
absl::StatusOr<std::optional<ProcessHandle>> FindLockHolder(const std::string& lock_path,
                                                            const std::string& program);

// SIGTERM, and SIGKILL to what has not ended by `timeout`. Returns whether SIGKILL was needed;
// DeadlineExceeded when even that did not end it within `kill_wait`.
absl::StatusOr<bool> StopProcess(const ProcessHandle& process, Milliseconds timeout,
                                 Milliseconds kill_wait = Milliseconds(10000));

// "was killed by signal 9 (Killed)" or "exited with code 3", of a wait status.
std::string DescribeEnd(int wait_status);

}  // namespace unreft::cli
