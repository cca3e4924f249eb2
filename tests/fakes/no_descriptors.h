// NoDescriptors: while it lives, the process can open no file, socket or pidfd.
#pragma once

#include <sys/resource.h>

#include <cerrno>

#include "base/check.h"

namespace unreft {

class NoDescriptors {
 public:
  NoDescriptors() {
    UNREFT_CHECK(getrlimit(RLIMIT_NOFILE, &before_) == 0, "errno {}", errno);
    rlimit none = before_;
    none.rlim_cur = 3;
    UNREFT_CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0, "errno {}", errno);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace unreft
