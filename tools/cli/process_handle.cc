#include "tools/cli/process_handle.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tools/cli/process_search.h"

namespace unreft::cli {
namespace {

// Whether process `pid` has the file open, by device and inode: its path may be spelled otherwise.
bool HasOpen(pid_t pid, const struct stat& file) {
  std::error_code error;
  const std::filesystem::path fds = fmt::format("/proc/{}/fd", pid);
  for (auto it = std::filesystem::directory_iterator(fds, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    struct stat open_file{};
    if (stat(it->path().c_str(), &open_file) != 0) continue;
    if (open_file.st_dev == file.st_dev && open_file.st_ino == file.st_ino) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<ProcessHandle> ProcessHandle::Open(pid_t pid) {
  // A negative or zero pid would name a group in kill(2); pidfd_open refuses it.
  OwnedFd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (fd.valid()) return ProcessHandle(pid, std::move(fd));
  if (errno == ESRCH || errno == EINVAL) {
    return absl::NotFoundError(fmt::format("no process {}", pid));
  }
  return absl::ErrnoToStatus(errno, fmt::format("open process {}", pid));
}

absl::Status ProcessHandle::Signal(int signal) const {
  if (syscall(SYS_pidfd_send_signal, fd_.get(), signal, nullptr, 0) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, fmt::format("send signal {} to process {}", signal, pid_));
}

bool ProcessHandle::WaitEnd(Milliseconds timeout) const {
  const Deadline deadline(timeout);
  while (true) {
    pollfd entry{fd_.get(), POLLIN, 0};
    const int ready = poll(&entry, 1, deadline.left_ms());
    if (ready > 0) return true;
    if (ready == 0 && deadline.passed()) return false;
  }
}

absl::StatusOr<std::optional<ProcessHandle>> FindLockHolder(const std::string& lock_path,
                                                            const std::string& program) {
  struct stat lock{};
  std::ifstream file(lock_path);
  pid_t pid = 0;
  if (stat(lock_path.c_str(), &lock) != 0 || !(file >> pid)) return std::nullopt;
  absl::StatusOr<ProcessHandle> process = ProcessHandle::Open(pid);
  if (absl::IsNotFound(process.status())) return std::nullopt;
  if (!process.ok()) return process.status();
  // Looked at after the handle was opened: what we see and what we hold are one life.
  if (ProcessName(pid) != program || !HasOpen(pid, lock)) return std::nullopt;
  return std::move(*process);
}

absl::StatusOr<bool> StopProcess(const ProcessHandle& process, Milliseconds timeout,
                                 Milliseconds kill_wait) {
  absl::Status status = process.Signal(SIGTERM);
  if (absl::IsNotFound(status)) return false;
  if (!status.ok()) return status;
  if (process.WaitEnd(timeout)) return false;
  status = process.Signal(SIGKILL);
  if (!status.ok() && !absl::IsNotFound(status)) return status;
  if (process.WaitEnd(kill_wait)) return true;
  return absl::DeadlineExceededError(fmt::format("process {} has not ended {} ms after SIGKILL",
                                                 process.pid(), kill_wait.count()));
}

std::string DescribeEnd(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    return fmt::format("was killed by signal {} ({})", signal, strsignal(signal));
  }
  return fmt::format("exited with code {}", WEXITSTATUS(wait_status));
}

}  // namespace unreft::cli
