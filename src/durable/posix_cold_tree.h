// The tree of files below the root of a PosixColdStore: how a name is followed down to the
// directory that holds it, never through a symbolic link, and what the kernel's errors mean. Of
// that store's own files, for them alone.
#pragma once

#include <absl/status/status.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "durable/posix_cold_store.h"

namespace unreft::durable {

// Never changes once the store is open; thread-safe.
struct PosixColdRoot {
  std::string path;
  PosixColdOptions options;
  UniqueFd directory;
  bool has_proc = false;  // so that a file without a name can be given one
};

// The status of a call that failed with the errno `error`: `doing` what, to the file or directory
// `name` below the root ("" is the root).
absl::Status ColdFailure(const PosixColdRoot& root, int error, std::string_view doing,
                         std::string_view name);

// The directories from the root to the one that holds a file, opened one by one. Thread-compatible.
class ColdWay {
 public:
  // Goes down to the file `name`, and makes the directories that are absent if it is to `make`
  // them. 0, or errno: ENOENT also when somebody removed a directory that it had just made.
  int Open(const PosixColdRoot& root, std::string_view name, bool make);

  // The last of them, and the name in it. Valid until it is opened anew.
  int holder() const { return directories_.empty() ? root_ : directories_.back().get(); }
  const char* leaf() const { return leaf_.c_str(); }

  // Makes the entries of all of them durable, also those that others made. 0, or errno.
  int Sync(const PosixColdRoot& root) const;

  // Removes them from the last up, as long as they are empty.
  void RemoveEmpty() const;

 private:
  int Enter(const char* part, bool make);

  int root_ = -1;
  std::vector<UniqueFd> directories_;  // below the root
  std::vector<std::string> names_;     // theirs
  std::string leaf_;
};

// What a call returns that a signal may interrupt: it is made again then.
template <typename Call>
auto Uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace unreft::durable
