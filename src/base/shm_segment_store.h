// ShmSegmentStore: segments in POSIX shared memory (/dev/shm), through Boost.Interprocess.
//
// No lock of Boost.Interprocess is ever taken: a killed owner makes it unrecoverable. Every mapping
// is MADV_DONTFORK, so that a forked data loader neither holds nor writes the bytes
// (docs/protocol.md, rule 5). Segments never shrink. Thread-safe.
//
// Everybody may make files in /dev/shm, and their names can be foreseen. What another user has made
// is no segment: it is not listed, opened or removed, and one of its name is made in a file of a
// name that nobody could foresee, by which it is found again.
//
// A forked child would inherit the descriptors, too, and so keep the bytes of a segment that was
// removed: a process that forks opens segments with Descriptors::kClosed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/segment_store.h"

namespace unreft {

class BackgroundUnmapper;

class ShmSegmentStore : public SegmentStore {
 public:
  // kClosed: of a segment that was opened none is left once it is mapped, and none in a child that
  // is forked meanwhile. It cannot be locked nor reserved.
  enum class Descriptors { kKept, kClosed };

  // Mappings of at least `background_bytes` are unmapped by a thread of the store's own, as freeing
  // what nobody else holds takes the kernel some 0.3 s per GiB. Capacity counts it as free at once,
  // and Reserve waits for it before it fails. UINT64_MAX: there is no such thread.
  explicit ShmSegmentStore(uint64_t background_bytes = UINT64_MAX,
                           Descriptors descriptors = Descriptors::kKept);
  // Blocks until all is unmapped that was given up.
  ~ShmSegmentStore() override;

  absl::StatusOr<std::unique_ptr<Segment>> Create(const std::string& name, uint64_t bytes) override;

  // Told, on the thread that creates a segment, of a name that is taken: by whom, and what is the
  // file's name instead. Set before anything is created.
  using OnTaken = std::function<void(const absl::Status& by_whom, const std::string& file)>;
  void set_on_taken(OnTaken on_taken) { on_taken_ = std::move(on_taken); }

  // Besides the seam's: PermissionDenied names both user ids; OutOfRange also for a segment of zero
  // bytes, which a process killed within Create leaves behind.
  absl::StatusOr<std::unique_ptr<Segment>> Open(const std::string& name, Access access,
                                                uint64_t offset = 0, uint64_t length = 0) override;
  absl::StatusOr<std::vector<SegmentInfo>> List(std::string_view prefix) override;
  absl::Status Remove(const std::string& name) override;
  absl::StatusOr<MemoryCapacity> Capacity() override;

  // Whether some process holds the lock of that segment (Segment::Lock); not of one that is absent.
  bool IsServed(const std::string& name);

 private:
  const uint64_t background_bytes_;
  const Descriptors descriptors_;
  const std::shared_ptr<BackgroundUnmapper> unmapper_;  // null: none
  OnTaken on_taken_;
};

}  // namespace unreft
