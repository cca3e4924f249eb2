// ShmSegmentStore: segments in POSIX shared memory (/dev/shm), through Boost.Interprocess.
//
// No lock of Boost.Interprocess is ever taken: a killed owner makes it unrecoverable. Every mapping
// is MADV_DONTFORK, so that a forked data loader neither holds nor writes the bytes (PROTOCOL rule
// 5). Segments never shrink. Stateless and thread-safe.
#pragma once

#include "base/segment_store.h"

namespace unreft {

class ShmSegmentStore : public SegmentStore {
 public:
  absl::StatusOr<std::unique_ptr<Segment>> Create(const std::string& name, uint64_t bytes) override;

  // Besides the seam's: PermissionDenied names both user ids; OutOfRange also for a segment of zero
  // bytes, which a process killed within Create leaves behind.
  absl::StatusOr<std::unique_ptr<Segment>> Open(const std::string& name, Access access,
                                                uint64_t offset = 0, uint64_t length = 0) override;
  absl::StatusOr<std::vector<SegmentInfo>> List(std::string_view prefix) override;
  absl::Status Remove(const std::string& name) override;
  absl::StatusOr<MemoryCapacity> Capacity() override;
};

}  // namespace unreft
