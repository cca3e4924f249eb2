// SlotStore: the slot segments of a node, and who may write which.
//
// It formats them, adopts what an earlier daemon process left, gives each to one writer life at a
// time (docs/protocol.md, rule 5), and quarantines what does not verify. It decides nothing about
// versions: the node tells it what to grant, free and keep.
//
// The room memory is the shared memory of a node: the pool that all its segments come from, with
// the budget; slots and what a sealed one holds; the staging of restores. It includes core alone.
// Start with segment_pool.h and slot.h (the phases of a slot), then come back here.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "base/process_watcher.h"
#include "smp/core/node_options.h"
#include "smp/memory/memory_budget.h"
#include "smp/memory/memory_plan.h"
#include "smp/memory/segment_pool.h"
#include "smp/memory/slot.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class SlotStore {
 public:
  struct Seams {
    Executor& executor;
    SegmentPool& pool;
    ProcessWatcher& processes;
    Log& log;
  };

  // `on_change`: a slot became free or drained, or is gone, by itself; in a turn of its own.
  // `session`: of this daemon process.
  SlotStore(Seams seams, const NodeOptions& options, RandomId boot_id, RandomId incarnation,
            ProcessNumber session, absl::AnyInvocable<void()> on_change);
  ~SlotStore();

  // Takes over every slot segment that exists. A slot that was being captured goes on if its writer
  // lives (it waits for the session to say what became of it). FailedPrecondition when a segment is
  // of a format that this daemon does not know: nothing is touched.
  absl::Status Adopt();

  // Where slabs are guarded: what is said for the slabs of all ranks. None of them are, before.
  using MemoryOfGuards = absl::AnyInvocable<GuardMemory(std::span<const SlotNeeds> slabs) const>;
  void set_guards(MemoryOfGuards guards) { guards_ = std::move(guards); }
  // What restores take beside these. Nothing, before.
  void set_staging(absl::AnyInvocable<StagingMemory() const> staging) {
    staging_ = std::move(staging);
  }

  // Whether as many slots of the rank fit into the node's memory, with the guards of all slabs.
  absl::Status CheckBudget(Rank rank, const SlotNeeds& needs, uint64_t slots);
  // Makes the slots that the rank lacks of as many, and forgets free ones that are too small, or
  // that were of another world, for another part of the state. They populate in the background.
  // ResourceExhausted, with the numbers and advice, when the budget does not allow.
  absl::Status Provide(Rank rank, const SlotNeeds& needs, uint64_t slots);
  absl::Status Provide(Rank rank, const SlotNeeds& needs) {
    return Provide(rank, needs, options_.SlotsPerRank());
  }

  // Makes a slot for a slab of that version that is to be decoded, unless the rank has a free one
  // that fits, or has as many as a rank may have: one of these is waited for. What the rank
  // captures next, and the guards for that, are not asked for: it may train on another node.
  absl::Status ProvideForRebuild(Rank rank, const SlotNeeds& needs, Version version);

  // Whether it was provided, or has a slot that is not sealed, as a rank of another world.
  bool IsForAnotherWorld(Rank rank, uint64_t world);
  // Until it is provided again the rank has no use for slots: free ones are removed, the others
  // once they are free. One that is made for a slab after that is kept until then.
  void Forget(Rank rank);

  // A free slot of the rank that fits its needs, granted to this writer; null when there is none.
  // Its generation is greater than that of any grant before, also of slots that were removed: one
  // made anew under the number of another is never taken for it, neither by a trainer that still
  // maps the other's memory nor by a message about it.
  Slot* Grant(Rank rank, ProcessLife writer, uint64_t world, Attempt attempt, Timeline timeline);

  // A free slot of the rank for a slab that is decoded into it, whose manifest is so long; null
  // when there is none that it fits into. Nobody but this process writes to it, and it is free
  // again if this process dies.
  Slot* TakeForRebuild(Rank rank, std::shared_ptr<const layout::SlotManifest> manifest,
                       uint64_t manifest_bytes);

  // The trainer did not take the offer, or the slot's content is of no use any more and nobody
  // writes to it: back to free (or removed, when it is too small by now), once nobody reads it.
  void Free(Slot& slot);

  // A quarantined slot of which only the content was at fault: back to free, or removed when the
  // rank has been given another in its place.
  void Reuse(Slot& slot);

  // The version is given up. The slot is freed when its writer cannot write any more: it says so
  // (`writer_done`), or its life has ended.
  void Abandon(Slot& slot, bool writer_done);
  // To be called when a read of the slot has ended, or the pool has done with it.
  void FreeIfDrained(Slot& slot);

  void Quarantine(Slot& slot, std::string problem);

  // Any slot, null when there is none of that id (and generation).
  Slot* Find(SlotId id);
  Slot* Find(SlotId id, Generation generation);
  std::vector<Slot*> OfRank(Rank rank);
  // Of those, what Grant may give out now or later: they fit the rank's needs.
  std::vector<Slot*> Offerable(Rank rank);
  std::vector<Slot*> All();
  // Those that were provided, and those that own a slot.
  std::set<Rank> Ranks() const;
  std::vector<Slot*> Sealed(Version version);

  // Why the rank's slots could not be populated; ok when nothing failed.
  absl::Status ProvisionStatus(Rank rank);
  // Of the guards for the slots that were provided.
  GuardMemory guards() const { return GuardsFor(needs_); }
  StagingMemory staging() const { return staging_ ? staging_() : StagingMemory{}; }
  uint64_t quarantined() const { return quarantined_; }  // ever, by this process

 private:
  absl::Status AdoptSegment(SegmentId id, std::shared_ptr<Segment> segment);
  void AdoptContent(Slot& slot);
  void AdoptSealed(Slot& slot);
  void WatchWriter(Slot& slot);
  GuardMemory GuardsFor(const std::map<Rank, SlotNeeds>& needs) const;
  // Whether as many slots of the rank fit, `lacking` of which are not there, and the guards of
  // `all`.
  absl::Status CheckRoom(Rank rank, const SlotNeeds& needs, uint64_t slots, uint64_t lacking,
                         const std::map<Rank, SlotNeeds>& all);
  absl::Status MakeSlot(Rank rank, const SlotNeeds& needs, Version made_for = {});
  bool Fits(const Slot& slot, const SlotNeeds& needs) const;
  // Granted as Grant says.
  void WriteGrant(Slot& slot, ProcessLife writer, uint64_t world, Attempt attempt,
                  Timeline timeline);
  bool IsOfUse(const Slot& slot) const;
  void Populate(Slot& slot);
  void Populated(Slot& slot, absl::Status status);
  void Remove(Slot& slot);
  void ScheduleRemove(SlotId id);

  Seams seams_;
  const NodeOptions& options_;
  RandomId boot_id_;
  RandomId incarnation_;
  absl::AnyInvocable<void()> on_change_;
  MemoryOfGuards guards_;
  absl::AnyInvocable<StagingMemory() const> staging_;
  std::map<SlotId, std::unique_ptr<Slot>> slots_;
  std::map<Rank, SlotNeeds> needs_;
  std::map<Rank, absl::Status> provision_status_;
  std::set<Rank> forgotten_;
  Generation newest_generation_;
  uint64_t quarantined_ = 0;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
