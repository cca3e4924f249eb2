// Machine: a simulated host that daemon and trainers share: memory, disk, processes and local
// network. What it holds outlives every process on it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tests/fakes/fake_process_watcher.h"
#include "tests/fakes/fake_record_store.h"
#include "tests/fakes/fake_segment_store.h"
#include "tests/fakes/sim_channel.h"
#include "tests/fakes/sim_executor.h"
#include "tests/sim/history.h"
#include "tests/sim/model.h"
#include "tests/sim/slot_observer.h"
#include "tests/sim/trace.h"

namespace unreft::sim {

inline constexpr const char* kSocketPath = "unreft.sock";
inline constexpr const char* kJob = "sim";

// Bugs that tests plant around the real code, to see that a checker finds each.
enum class PlantedBug {
  kNone,
  kCopiesTooEarly,      // the device says that a copy is done, and does it later
  kNoFence,             // the trainer changes its state without the fence, its client is blind
  kForgetsFence,        // now and then the trainer changes its state without the fence
  kEndsTooEarly,        // a killed process counts as ended while its copies still land
  kForgetsNodeSegment,  // a restarted daemon does not find its node segment
  kLosesSlots,          // sealed slots vanish when the daemon starts again
  kStaleDecision,       // rank 0 is told an older version than was decided
  kSwapsPieces,         // a restore reads tensors from where others lie
  kTakesRanksByNumber,  // in another world a rank takes the extras of the one with its number
  kForgetsCommit,       // the disk loses the commit that it had synced, when the host reboots
  // Of several nodes:
  kWrongParity,         // a guard is sealed with one parity block that is not the group's
  kCommitsUnguarded,    // the leader takes every slab for guarded
  kReportsTheUnsealed,  // members take what is claimed for sealed
  kWritesUnfenced,      // the leader writes without asking whether it still leads
  kStoresManifests,     // a commit puts a manifest into the meta store
  kWritesTwice,         // a commit is written again
  kForgetsPins,         // one node is never told what is pinned
  kCommitsUnsealed,     // seals do not stay in the memory, and nobody looks
  kReportsNothing,      // members say that they hold nothing when a decision is made
  kUnaskedFreshStart,   // a member asks for a fresh start now and then
  kGoesBack,            // a daemon that starts again finds an older commit in its node segment
  kTellsNoSkip,         // members do not say what their ranks skip or have gone on without
  kGivesUpCommitted,    // a commit names the version as given up as well
  kForgetsName,         // a daemon that returns counts itself in, though a view names another
  kNamesAnother,        // the leader says of another node than it is that it is missing
  kKeepsGroups,         // the leader decides without a node, and leaves it in its group
  kCallsItOver,         // members say that a process of those that train has ended
  kTellsNoCopy,         // nodes but the first do not say which records they have kept
  kStagesPerRank,       // a node fetches each block twice, as if for each of its two ranks
  kDecodesWhenBusy,     // who is told that another node is busy takes what it has for lost
  kDecodesItself,       // no node decodes anything for others
};

// What all machines of a simulated world share: time, and what happened.
struct World {
  World(uint64_t seed, bool verbose, TensorModel model = TensorsOf)
      : scheduler(seed), trace(scheduler, verbose), tensors(std::move(model)) {}

  SimScheduler scheduler;
  Trace trace;
  TraceSink sink{trace};
  History history{trace};
  const TensorModel tensors;  // of each rank
  PlantedBug bug = PlantedBug::kNone;
};

struct Machine {
  // `number`: of the node that its memory is named by, if that is not `slot`.
  Machine(World& world, NodeSlot slot, std::optional<NodeSlot> number = std::nullopt);
  ~Machine();

  // Power goes: memory is empty and everything was killed before.
  void Reboot();
  // A host: what it holds, but for its processes.
  struct Host {
    std::unique_ptr<FakeHostMemory> memory;
    RandomId boot_id;
    std::map<std::string, std::string> records;  // on its disk
  };
  // Another host takes its place: memory and disk are empty, everything was killed before.
  Host Replace();
  // As Replace, and the other host is one that was here before: it comes back as it was.
  void ComeBack(Host host);
  // So many bytes of memory are left, until FreeMemory or the memory goes.
  void FillMemory(uint64_t left) { memory->set_bytes_max(memory->bytes_used() + left); }
  void FreeMemory() { memory->set_bytes_max(memory_bytes_); }
  bool is_memory_short() const { return memory->bytes_max() < memory_bytes_; }
  // Prefix of the names of the node's segments.
  std::string prefix() const;
  // SimScheduler::last_host of its processes.
  uint64_t host() const { return slot.value + 1; }

  const NodeSlot slot;
  const NodeSlot number;
  SimScheduler& scheduler;
  Trace& trace;
  TraceSink& sink;
  History& history;
  const TensorModel& tensors;
  const PlantedBug& bug;
  SlotObserver observer;
  FakeDisk disk;
  FakeProcessTable processes;
  SimLocalNetwork network;
  std::unique_ptr<FakeHostMemory> memory;
  RandomId boot_id;
  std::unique_ptr<SimExecutor> kernel;  // what happens without any process

 private:
  uint64_t memory_bytes_ = uint64_t{4} << 20;
};

// A process's view of the machine's memory, which tells the observer of new and removed segments.
class ObservedSegments final : public SegmentStore {
 public:
  explicit ObservedSegments(Machine& machine) : machine_(machine), store_(*machine.memory) {}

  absl::StatusOr<std::unique_ptr<Segment>> Create(const std::string& name, uint64_t bytes) override;
  absl::StatusOr<std::unique_ptr<Segment>> Open(const std::string& name, Access access,
                                                uint64_t offset, uint64_t length) override;
  absl::StatusOr<std::vector<SegmentInfo>> List(std::string_view prefix) override;
  absl::Status Remove(const std::string& name) override;
  absl::StatusOr<MemoryCapacity> Capacity() override;

  // Segments that were made or removed.
  uint64_t changes() const { return changes_; }

 private:
  Machine& machine_;
  FakeSegmentStore store_;
  uint64_t changes_ = 0;
};

}  // namespace unreft::sim
