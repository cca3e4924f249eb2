// LockFile: an exclusive lock on a directory, held by one process at a time.
//
// The kernel lets go of it when the holder dies, however it dies. The file stays and carries the
// pid of the last holder, for messages only.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <utility>

namespace unreft {

// Move-only; the lock is held as long as the object.
class LockFile {
 public:
  // Takes the lock `name` in `directory`, which is made if it is absent and must be private
  // (base/private_directory.h). FailedPrecondition names the directory and the pid of the holder,
  // which may be this process itself.
  static absl::StatusOr<LockFile> Acquire(const std::string& directory,
                                          const std::string& name = "unreft.lock");

  // Removes a lock that nobody holds, and the directory, if nothing else is in it.
  static void Remove(const std::string& directory, const std::string& name = "unreft.lock");

  LockFile(LockFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  LockFile& operator=(LockFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~LockFile();

 private:
  explicit LockFile(int fd) : fd_(fd) {}

  int fd_;
};

}  // namespace unreft
