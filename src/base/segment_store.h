// SegmentStore: the seam to memory that outlives its process.
//
// A segment is a named, fixed-size run of bytes that several processes map. The real store keeps
// them in POSIX shared memory (/dev/shm); the fake in a map that the test holds. Words shared
// between processes are read and written through SharedWord, one owner at a time.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unreft {

enum class Access { kReadOnly, kReadWrite };

// A mapping of a segment, or of a part of it. Unmapped on destruction; the bytes stay in the store.
// Thread-compatible: the bytes are shared memory, and their layout's header says who writes what.
class Segment {
 public:
  virtual ~Segment() = default;

  virtual const std::string& name() const = 0;

  // The mapped bytes. Writing through a read-only mapping is a crash (real) or a CHECK (fake).
  virtual std::span<std::byte> bytes() = 0;

  // Makes sure that [offset, offset + length) of this mapping is backed by memory, so that touching
  // it never raises SIGBUS: ResourceExhausted names the bytes needed and found. Idempotent; blocks
  // for about 1 s per GiB, so callers go in chunks and off the executor. All or nothing per call.
  // FailedPrecondition on a read-only mapping, OutOfRange beyond its end. Thread-safe.
  virtual absl::Status Reserve(size_t offset, size_t length) = 0;

  // Enters what of [offset, offset + length) lies in this mapping, and is reserved, into the page
  // table of this process ahead of its first touch, where the system can: a hint. Blocks for about
  // 70 ms per GiB of small pages. Thread-safe.
  virtual void Populate(size_t offset, size_t length) = 0;

  // Makes whoever holds this mapping the one that serves the segment, until the mapping goes or its
  // process ends, however it ends. FailedPrecondition while another mapping has the lock;
  // NotFound when the segment's name was taken away meanwhile. Keeps out only who asks.
  virtual absl::Status Lock() = 0;
};

struct SegmentInfo {
  std::string name;
  uint64_t bytes = 0;
};

// What the host can still give, in bytes. A value that cannot be known is UINT64_MAX.
struct MemoryCapacity {
  uint64_t segments_free = 0;  // room left in the store (free space of /dev/shm)
  uint64_t ram_available = 0;  // MemAvailable of the host, or less: what its cgroup leaves
  uint64_t memlock_limit = 0;  // RLIMIT_MEMLOCK, UINT64_MAX for a process that it does not bind
};

// Thread-safe.
class SegmentStore {
 public:
  virtual ~SegmentStore() = default;

  // Makes a segment of `bytes` zero bytes, mode 0600, mapped read-write, nothing reserved yet: not
  // a byte may be touched before its Reserve, which is once in the life of the segment.
  // AlreadyExists if the name is taken; InvalidArgument for a bad name or zero bytes.
  virtual absl::StatusOr<std::unique_ptr<Segment>> Create(const std::string& name,
                                                          uint64_t bytes) = 0;

  // Maps [offset, offset + length), a multiple of 4096 and 0 = to its end. NotFound; OutOfRange;
  // PermissionDenied when another user has the name, which keeps nobody from creating a segment.
  virtual absl::StatusOr<std::unique_ptr<Segment>> Open(const std::string& name, Access access,
                                                        uint64_t offset = 0,
                                                        uint64_t length = 0) = 0;

  // All segments whose name begins with `prefix`, sorted by name.
  virtual absl::StatusOr<std::vector<SegmentInfo>> List(std::string_view prefix) = 0;

  // Takes the name away; the bytes go when the last mapping does. NotFound.
  virtual absl::Status Remove(const std::string& name) = 0;

  virtual absl::StatusOr<MemoryCapacity> Capacity() = 0;
};

// Every segment of a job on a node is named "/unreft.<job>.<node>.<what>". This is the part before
// <what>. No job's prefix begins another's, because a job's name has no '.' (CheckJobName).
std::string SegmentPrefix(std::string_view job, uint64_t node);

// InvalidArgument unless `job` is 1 to 64 of A-Z a-z 0-9 _ -
absl::Status CheckJobName(std::string_view job);

inline constexpr size_t kSegmentNameBytesMax = 200;

// InvalidArgument unless `name` is '/' and then one or more of A-Z a-z 0-9 _ . -
absl::Status CheckSegmentName(std::string_view name);

// A 64-bit word in shared memory. Loads acquire, stores release, so that what was written before a
// store is seen after the load that reads it.
using SharedWord = std::atomic<uint64_t>;
static_assert(sizeof(SharedWord) == 8 && SharedWord::is_always_lock_free);

}  // namespace unreft
