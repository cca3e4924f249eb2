// SegmentPool: the shared memory of a node, whatever lies in it. Slots, guards, the staging of
// restores and what is decoded for a durable copy are segments that are made here and nowhere else:
// counted against the budget, given their pages in the background, and removed. What a segment
// holds is its user's business.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/executor.h"
#include "base/log.h"
#include "base/segment_store.h"
#include "base/work_pool.h"
#include "smp/core/node_options.h"
#include "smp/memory/memory_budget.h"
#include "smp/memory/page_populator.h"

namespace unreft::smp {

enum class SegmentKind { kSlot, kGuard, kStaging, kDecoded };

// A segment of a node: no two of a kind have the same number at the same time.
struct SegmentId {
  SegmentKind kind = SegmentKind::kSlot;
  uint64_t number = 0;
  auto operator<=>(const SegmentId&) const = default;
};

// Single-threaded on the node's executor; pages are reserved on the work pool.
class SegmentPool {
 public:
  struct Seams {
    Executor& executor;
    WorkPool& work;
    SegmentStore& segments;
    Log& log;
  };

  SegmentPool(Seams seams, const NodeOptions& options);

  // Takes over the segments of that kind that an earlier process left, in the order of their names,
  // and shows each to `visit`. One that never held anything is removed instead. Their pages count
  // as there, though they may be reserved in part only. The first error ends it.
  using Visit = absl::FunctionRef<absl::Status(SegmentId id, std::shared_ptr<Segment> segment)>;
  absl::Status Adopt(SegmentKind kind, Visit visit);

  // Takes the names of what an earlier process left of that kind away.
  void RemoveOld(SegmentKind kind);

  // The number that the next segment of that kind has: the lowest that is unused.
  SegmentId Next(SegmentKind kind) const;
  // Makes it, of zeros, with its first page. Whether it fits is the caller's question (Check).
  absl::StatusOr<std::shared_ptr<Segment>> Make(SegmentId id, uint64_t bytes);

  // Gives the segment its pages, one chunk after the other; pages that are there cost little.
  // `done` in a turn of its own, when all are there, or with why they cannot be had; never of a
  // segment that was removed meanwhile.
  void Populate(SegmentId id, absl::AnyInvocable<void(absl::Status)> done);

  // Takes its name away; the memory goes with the last mapping of it.
  void Remove(SegmentId id);

  // Of all that is there, and of one kind.
  MemoryUse use() const;
  MemoryUse use(SegmentKind kind) const;

  // Whether `more` bytes fit beside all that is there. Fails when the store cannot say what is
  // free.
  absl::StatusOr<MemoryBudget> Check(uint64_t more) const;

 private:
  struct Entry {
    std::shared_ptr<Segment> segment;  // shared with its user and with the work pool
    uint64_t populated_bytes = 0;      // as far as is known
  };

  std::string NameOf(SegmentId id) const;
  std::string PrefixOf(SegmentKind kind) const;

  Seams seams_;
  const NodeOptions& options_;
  std::map<SegmentId, Entry> entries_;
  // One for each kind: they wait for the host, not for each other.
  std::map<SegmentKind, PagePopulator> populators_;
};

}  // namespace unreft::smp
