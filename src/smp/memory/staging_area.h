// StagingArea: the one segment of a node through which the bytes of other nodes reach its ranks
// that restore (docs/formats/local_session.md, Staged). It is made, and has its pages, before it is
// needed, so that a restore needs no memory that was not promised.
//
// It is cut into places of a block each, which are lent to whoever restores
// (smp/restore/staged_blocks.h). A place that was given back keeps its bytes until it is lent
// again; which was given back first is lent first.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/functional/function_ref.h>
#include <absl/status/status.h>

#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "base/process_watcher.h"
#include "base/segment_store.h"
#include "smp/core/node_options.h"
#include "smp/memory/memory_budget.h"
#include "smp/memory/segment_pool.h"

namespace unreft::smp {

// The places of one segment. Single-threaded on the node's executor; shared by whoever borrows.
class StagingPlaces {
 public:
  // One that is lent. It is given back when this goes: to be kept by whoever may still write to it.
  class Place {
   public:
    Place(std::weak_ptr<StagingPlaces> of, uint64_t offset, uint64_t lending,
          std::span<std::byte> bytes)
        : of_(std::move(of)), offset_(offset), lending_(lending), bytes_(bytes) {}
    Place(Place&&) = default;
    Place& operator=(Place&&) = delete;
    ~Place();

    uint64_t offset() const { return offset_; }
    std::span<std::byte> bytes() const { return bytes_; }
    // How often it has been lent, this time included.
    uint64_t lending() const { return lending_; }

   private:
    std::weak_ptr<StagingPlaces> of_;
    uint64_t offset_;
    uint64_t lending_;
    std::span<std::byte> bytes_;
  };

  StagingPlaces(Executor& executor, std::shared_ptr<Segment> segment, uint64_t block_bytes);

  const std::shared_ptr<Segment>& segment() const { return segment_; }
  uint64_t bytes() const { return segment_->bytes().size(); }

  uint64_t count() const { return places_.size(); }

  // `on_change`, in turns of its own until it leaves: there may be a place for it, or never will.
  uint64_t Join(absl::AnyInvocable<void()> on_change);
  void Leave(uint64_t borrower);
  bool in_use() const { return !borrowers_.empty(); }

  // All that have joined are asked soon.
  void Wake();

  // None when all are lent, or the segment has no pages yet. `avoided`: of the place at an offset,
  // which is taken only where all that are free are so.
  static std::optional<Place> Take(const std::shared_ptr<StagingPlaces>& from, uint64_t borrower,
                                   absl::FunctionRef<bool(uint64_t offset)> avoided);
  // The place at that offset, with the bytes that it had at the end of that lending; none when it
  // is lent now, or has been since.
  static std::optional<Place> TakeAgain(const std::shared_ptr<StagingPlaces>& from,
                                        uint64_t borrower, uint64_t offset, uint64_t lending);

  // Whether its pages could be had; ok before it is known.
  const absl::Status& status() const { return status_; }
  void SetPopulated();
  void SetFailed(absl::Status status);

 private:
  struct Borrower {
    uint64_t id = 0;
    absl::AnyInvocable<void()> on_change;
  };
  struct PlaceState {
    uint64_t lendings = 0;
    std::optional<std::list<uint64_t>::iterator> free;  // unless it is lent
  };
  static Place Lend(const std::shared_ptr<StagingPlaces>& from, uint64_t borrower, uint64_t place);
  void GiveBack(uint64_t offset);
  std::list<Borrower>::iterator Find(uint64_t borrower);

  Executor& executor_;
  const std::shared_ptr<Segment> segment_;
  const uint64_t block_bytes_;
  std::vector<PlaceState> places_;
  bool populated_ = false;
  absl::Status status_;
  std::list<uint64_t> free_;       // places; which was given back first is the first
  std::list<Borrower> borrowers_;  // who took a place last is the last
  uint64_t borrowers_ever_ = 0;
  bool waking_ = false;
  Lifetime lifetime_;
};

// Single-threaded on the node's executor.
class StagingArea {
 public:
  struct Seams {
    Executor& executor;
    SegmentPool& pool;
    ProcessWatcher& processes;
    Log& log;
  };

  StagingArea(Seams seams, const NodeOptions& options);
  ~StagingArea();

  // Takes the names of what an earlier process staged away. It is not used again: a trainer may
  // still be copying from it.
  void RemoveOld();

  // Makes it as large as that, in whole blocks, or anew when it is of another size and nobody
  // restores. It populates in the background. ResourceExhausted, with the numbers, when the budget
  // does not allow.
  absl::Status Provide(uint64_t bytes);

  // Why it is not there, or has no pages; ok when nothing failed.
  const absl::Status& status() const { return status_; }
  // Null when there is none.
  const std::shared_ptr<StagingPlaces>& places() const { return places_; }

  // What holds places: a trainer that did not say that it has copied may still do so until its life
  // ends.
  using Holds = std::vector<std::shared_ptr<const void>>;
  void KeepUntilEnd(ProcessLife life, Holds holds);
  // Or until it asks for something else, or says that it has ended.
  void OnTrainerDone(ProcessLife life);

  // With what is lacking to that size.
  StagingMemory MemoryFor(uint64_t bytes) const;

 private:
  absl::Status CheckBudget(uint64_t bytes);
  absl::Status Make(uint64_t bytes);
  void Remove();

  Seams seams_;
  const NodeOptions& options_;
  std::shared_ptr<StagingPlaces> places_;
  absl::Status status_;
  struct Kept {
    ProcessLife life;
    WatchId watch = WatchId::kNone;
    Holds holds;
  };
  std::list<Kept> kept_;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
