// ColdStore: the seam to storage that outlives all nodes of a job, and that they all share.
//
// It is a tree of named files. A file comes to be whole or not at all, is never changed, and its
// name is never taken over by another: who makes a name first has it. Only what an object store
// (S3) could offer as well is here: nothing is renamed, lengthened or overwritten.
//
// Every call blocks, for as long as the storage does, so none is made on the executor. A store is
// thread-safe; a file under way is used by one thread at a time and destroyed before its store.
//
// Besides what each call names: ResourceExhausted when the storage is full or a quota is used up,
// PermissionDenied when this process may not do it, Unavailable when the storage fails (the call
// may have taken effect all the same, whole), FailedPrecondition when another file's name, or a
// symbolic link, stands where the name needs a directory, InvalidArgument for a name that
// CheckColdName refuses.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unreft::durable {

// A file under way. Destroyed without Finish, or after one that failed, it leaves nothing behind.
class ColdFile {
 public:
  virtual ~ColdFile() = default;

  // Adds bytes at the end; they are copied or written before it returns. Once a call has failed,
  // every later one fails with the same status.
  virtual absl::Status Append(std::span<const std::byte> bytes) = 0;

  // Appended so far.
  virtual uint64_t bytes() const = 0;

  // Makes all bytes durable, and then the file appear under its name, which is durable, too, when
  // this returns OK. Nobody ever sees the name with less than all bytes. AlreadyExists when the
  // name is taken by now; Aborted when RemoveLeftovers took it for one; FailedPrecondition when it
  // is called again after it succeeded.
  virtual absl::Status Finish() = 0;
};

struct ColdEntry {
  std::string name;
  uint64_t bytes = 0;
  friend bool operator==(const ColdEntry&, const ColdEntry&) = default;
};

class ColdStore {
 public:
  virtual ~ColdStore() = default;

  // Begins a file. AlreadyExists if the name is taken now; it may yet be when the file is finished,
  // as others may be writing one of the same name.
  virtual absl::StatusOr<std::unique_ptr<ColdFile>> Create(std::string_view name) = 0;

  // Makes a small file with these bytes, durable when this returns OK. AlreadyExists when the name
  // is taken: of all who put one name exactly one succeeds.
  virtual absl::Status Put(std::string_view name, std::string_view bytes) = 0;

  // All bytes of a file. NotFound; ResourceExhausted when there are more than `bytes_max`.
  virtual absl::StatusOr<std::string> Get(std::string_view name, uint64_t bytes_max) = 0;

  // Fills `into` with what stands at `offset`. NotFound; OutOfRange when the file ends before.
  virtual absl::Status Read(std::string_view name, uint64_t offset, std::span<std::byte> into) = 0;

  // All files whose name is `directory` followed by '/' and more, or all there are when it is
  // empty; sorted by name. None that is under way, nothing that is no file of a store, and nothing
  // in a directory that this process may not read.
  virtual absl::StatusOr<std::vector<ColdEntry>> List(std::string_view directory) = 0;

  // The name of something below `directory` (as for List), if there is anything but what is under
  // way: also of what List passes over, as a symbolic link. Empty: there is nothing.
  virtual absl::StatusOr<std::string> Anything(std::string_view directory) = 0;

  // Takes a file away, durably: of two removed one after the other, the first never comes back
  // alone. NotFound. Directories that it leaves empty go with it.
  virtual absl::Status Remove(std::string_view name) = 0;

  // Frees what writers that died have left behind of files under way below `directory` (as for
  // List) and had not touched since `before`, by the storage's clock; returns how many. A live
  // writer whose file goes this way fails.
  virtual absl::StatusOr<uint64_t> RemoveLeftovers(
      std::string_view directory, std::chrono::system_clock::time_point before) = 0;

  // For messages, as an operator knows it: "/mnt/ckpt".
  virtual std::string Describe() const = 0;
};

inline constexpr size_t kColdNameBytesMax = 1000;
inline constexpr size_t kColdPartBytesMax = 200;

// How the names of files under way begin, in stores that must give them one.
inline constexpr std::string_view kColdUnfinishedPrefix = ".unreft-part-";

// InvalidArgument unless `name` is 1 to 1000 bytes in parts of 1 to 200 of A-Z a-z 0-9 _ . - with a
// '/' between them, of which none is "." or ".." or begins with kColdUnfinishedPrefix.
absl::Status CheckColdName(std::string_view name);

// The same of what is listed: a name, or nothing for all.
absl::Status CheckColdDirectory(std::string_view directory);

}  // namespace unreft::durable
