// PosixColdStore: a cold store in a directory of a file system, usually one that all nodes mount.
//
// A file under way has no name where the file system can do that (O_TMPFILE); elsewhere it has a
// hidden one that begins with kColdUnfinishedPrefix, in the directory where it is to appear, and
// this is all that a writer that was killed leaves behind. It appears by a call that replaces
// nothing. Bytes go past the page cache (O_DIRECT); where the file system refuses that, they go
// through it and are pushed out of it at once.
//
// Below the root no symbolic link is followed. Files get mode 0666 and directories 0777, less the
// umask. Thread-safe, as the seam says; processes of any number of nodes may share a root.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "durable/cold_store.h"

namespace unreft::durable {

// The kernel's calls by which a store writes, for tests to put others in their place. Each
// returns what the kernel's does, and sets errno.
struct PosixCalls {
  PosixCalls();  // the kernel's own

  // openat, of a new file.
  std::function<int(int directory, const char* name, int flags, mode_t mode)> open;
  // Sets O_DIRECT.
  std::function<int(int file)> set_direct;
  std::function<ssize_t(int file, const void* bytes, size_t count, off_t offset)> pwrite;
  std::function<int(int file)> fdatasync;
  std::function<int(int directory)> fsync;
  // renameat2 within a directory, with RENAME_NOREPLACE.
  std::function<int(int directory, const char* from, const char* to)> rename;
};

struct PosixColdOptions {
  bool direct = true;                         // O_DIRECT where it can be had
  uint64_t buffer_bytes = uint64_t{2} << 20;  // of each file under way; written at a time
  bool writes = true;                         // false: it may be read-only
  PosixCalls calls;
};

struct PosixColdRoot;

class PosixColdStore final : public ColdStore {
 public:
  // `root` is the absolute path of a directory that is there already. InvalidArgument when it is
  // not absolute or the buffer is not a multiple of 4096 bytes; NotFound; FailedPrecondition when
  // it is no directory; PermissionDenied when it is on a read-only file system or this user may not
  // write to it, unless it is opened to be read alone.
  static absl::StatusOr<std::unique_ptr<PosixColdStore>> Open(std::string root,
                                                              PosixColdOptions options = {});
  ~PosixColdStore() override;

  absl::StatusOr<std::unique_ptr<ColdFile>> Create(std::string_view name) override;
  absl::Status Put(std::string_view name, std::string_view bytes) override;
  absl::StatusOr<std::string> Get(std::string_view name, uint64_t bytes_max) override;
  absl::Status Read(std::string_view name, uint64_t offset, std::span<std::byte> into) override;
  absl::StatusOr<std::vector<ColdEntry>> List(std::string_view directory) override;
  absl::StatusOr<std::string> Anything(std::string_view directory) override;
  absl::Status Remove(std::string_view name) override;
  absl::StatusOr<uint64_t> RemoveLeftovers(std::string_view directory,
                                           std::chrono::system_clock::time_point before) override;
  std::string Describe() const override;

 private:
  explicit PosixColdStore(std::shared_ptr<const PosixColdRoot> root);

  const std::shared_ptr<const PosixColdRoot> root_;  // shared with the files under way
};

}  // namespace unreft::durable
