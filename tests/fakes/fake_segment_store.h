// FakeSegmentStore: segments in the memory of the test, with the strictness of a full /dev/shm.
//
//   FakeHostMemory        one node's memory: outlives every process of the node
//     ^      ^
//   store  store          one per simulated process
//
// Stricter than the real store: bytes that were never reserved cannot be touched at all (SIGSEGV,
// where the real one may raise SIGBUS), and neither can a read-only mapping be written (as in the
// real one); page protection does both. Mappings of one segment with the same access share one
// address. A mapping keeps its bytes after Remove, and counts as used until it goes.
// Thread-safe, like the seam.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/segment_store.h"

namespace unreft {

class FakeMemoryAccount;
class FakeSegmentMemory;

// The /dev/shm of one simulated node. A node that loses its memory gets a new one.
class FakeHostMemory {
 public:
  explicit FakeHostMemory(uint64_t bytes_max = uint64_t{1} << 30);
  ~FakeHostMemory();

  // Bytes of reserved pages, removed segments that are still mapped included.
  uint64_t bytes_used() const;
  uint64_t bytes_max() const;
  void set_bytes_max(uint64_t bytes_max);

  // Reserved bytes of one named segment. NotFound.
  absl::StatusOr<uint64_t> ReservedBytes(const std::string& name) const;

  // What Capacity() says beside segments_free; UINT64_MAX each unless set.
  void set_ram_available(uint64_t bytes);
  void set_memlock_limit(uint64_t bytes);

  // While set, every Create fails with this.
  void FailCreates(std::optional<absl::Status> status);

  // Turns one bit of a reserved byte, as failing memory does. CHECKs that there is such a byte.
  void FlipBit(const std::string& name, uint64_t offset, int bit);

  std::vector<std::string> Names() const;

 private:
  friend class FakeSegmentStore;

  struct Entry {
    std::shared_ptr<FakeSegmentMemory> memory;  // shared with its mappings
    uint32_t owner = 0;
  };

  // Outlives this object in the mappings that are still held.
  const std::shared_ptr<FakeMemoryAccount> account_;

  mutable std::mutex mutex_;  // covers all below
  std::map<std::string, Entry> segments_;
  uint64_t ram_available_ = UINT64_MAX;
  uint64_t memlock_limit_ = UINT64_MAX;
  std::optional<absl::Status> create_failure_;
};

class FakeSegmentStore : public SegmentStore {
 public:
  // `uid` is the user of the simulated process.
  explicit FakeSegmentStore(FakeHostMemory& host, uint32_t uid = 0) : host_(host), uid_(uid) {}

  absl::StatusOr<std::unique_ptr<Segment>> Create(const std::string& name, uint64_t bytes) override;
  absl::StatusOr<std::unique_ptr<Segment>> Open(const std::string& name, Access access,
                                                uint64_t offset = 0, uint64_t length = 0) override;
  absl::StatusOr<std::vector<SegmentInfo>> List(std::string_view prefix) override;
  absl::Status Remove(const std::string& name) override;
  absl::StatusOr<MemoryCapacity> Capacity() override;

 private:
  FakeHostMemory& host_;
  const uint32_t uid_;
};

}  // namespace unreft
