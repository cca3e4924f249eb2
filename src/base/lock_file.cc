#include "base/lock_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/private_directory.h"

namespace unreft {
namespace {

// What the holder wrote: its pid, or "unknown" in the moment before it did.
std::string Holder(int fd) {
  char text[32];
  const ssize_t length = pread(fd, text, sizeof(text), 0);
  if (length <= 0) return "unknown";
  std::string pid(text, static_cast<size_t>(length));
  return pid.substr(0, pid.find('\n'));
}

}  // namespace

absl::StatusOr<LockFile> LockFile::Acquire(const std::string& directory, const std::string& name) {
  std::error_code error;
  const std::string absolute = std::filesystem::absolute(directory, error).string();
  if (error) return absl::ErrnoToStatus(error.value(), "look at " + directory);
  if (absl::Status status = MakePrivateDirectory(absolute); !status.ok()) return status;
  const std::string path = directory + "/" + name;
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, "open " + path);
  LockFile lock(fd);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return absl::ErrnoToStatus(errno, "lock " + path);
    return absl::FailedPreconditionError(
        fmt::format("{} is in use by process {}", directory, Holder(fd)));
  }
  // A full disk takes no pid, and then the message lacks it: the lock holds all the same.
  const std::string pid = fmt::format("{}\n", getpid());
  if (ftruncate(fd, 0) == 0 && pwrite(fd, pid.data(), pid.size(), 0) < 0) errno = 0;
  return lock;
}

void LockFile::Remove(const std::string& directory, const std::string& name) {
  unlink((directory + "/" + name).c_str());
  rmdir(directory.c_str());
}

LockFile::~LockFile() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace unreft
