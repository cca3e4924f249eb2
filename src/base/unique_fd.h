// UniqueFd: owns a file descriptor of the kernel's.
#pragma once

#include <unistd.h>

#include <utility>

namespace unreft {

class UniqueFd {
 public:
  UniqueFd() = default;
  // Negative: owns nothing, as after a call that failed.
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace unreft
