// Directories that a test has for itself, and the file systems that PosixColdStore meets there.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "durable/posix_cold_store.h"

namespace unreft {

class TestDirectory {
 public:
  TestDirectory() {
    std::string name = testing::TempDir() + "/cold-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr) << name;
    path_ = std::filesystem::canonical(name).string();
  }
  ~TestDirectory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::unique_ptr<durable::PosixColdStore> OpenIn(const std::string& path,
                                                       durable::PosixColdOptions options = {}) {
  auto store = durable::PosixColdStore::Open(path, std::move(options));
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

// Of a file system without O_TMPFILE.
inline durable::PosixColdOptions Hidden(durable::PosixColdOptions options = {}) {
  const auto open = options.calls.open;
  options.calls.open = [open](int directory, const char* name, int flags, mode_t mode) {
    if ((flags & O_TMPFILE) != O_TMPFILE) return open(directory, name, flags, mode);
    errno = EOPNOTSUPP;
    return -1;
  };
  return options;
}

}  // namespace unreft
