// PagePopulator: reserves the pages of new segments on the work pool, so that the node's executor
// never waits for the host: one segment after the other, a chunk at a time.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <memory>

#include "base/executor.h"
#include "base/lifetime.h"
#include "base/segment_store.h"
#include "base/work_pool.h"

namespace unreft::smp {

// Single-threaded on the executor.
class PagePopulator {
 public:
  // Told after each chunk how many bytes of the segment have pages, or why no more do, which is its
  // last; returns whether the segment is still wanted.
  using OnChunk = absl::AnyInvocable<bool(absl::StatusOr<uint64_t> bytes)>;

  PagePopulator(Executor& executor, WorkPool& pool, uint64_t chunk_bytes)
      : executor_(executor), pool_(pool), chunk_bytes_(chunk_bytes) {}

  // Pages that are there already cost little.
  void Add(std::shared_ptr<Segment> segment, OnChunk on_chunk);

  // Of the chunk that is being reserved: any part of it may have its pages by now, without anybody
  // having been told.
  uint64_t under_way() const { return items_.empty() ? 0 : LengthOfNext(); }

 private:
  struct Item {
    std::shared_ptr<Segment> segment;
    uint64_t bytes = 0;  // with pages
    OnChunk on_chunk;
  };

  uint64_t LengthOfNext() const;
  void RunNext();
  void OnReserved(uint64_t bytes, const absl::Status& status);

  Executor& executor_;
  WorkPool& pool_;
  const uint64_t chunk_bytes_;
  std::deque<Item> items_;                                      // the first is under way
  Lifetime lifetime_;
};

}  // namespace unreft::smp
