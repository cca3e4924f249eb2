// SlotObserver: looks at the slots in a machine's memory from outside, after every event.
//
// It fails the trace when
//   * a slot is sealed whose bytes are not what was trained to the version that it names,
//   * sealed bytes change while the seal stands (one writer life per slot, docs/protocol.md, rule
//   5),
//   * the newest committed version loses a slot without a fault,
//   * the slots take more bytes than the budget.
// It is also who flips bits in sealed slots, so it knows which may be bad. Single-threaded.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/segment_store.h"
#include "base/slot_header.h"
#include "tests/fakes/fake_segment_store.h"
#include "tests/sim/history.h"
#include "tests/sim/model.h"
#include "tests/sim/trace.h"

namespace unreft::sim {

class SlotObserver {
 public:
  SlotObserver(Trace& trace, History& history, TensorModel tensors)
      : trace_(trace), history_(history), tensors_(std::move(tensors)) {}

  // The memory that is looked at from now on, and the part of its segments' names before "slot".
  void Watch(FakeHostMemory& host, std::string prefix);

  // Told in the same event, so that a name that is taken again is not confused.
  void OnCreated(const std::string& name);
  // It was there before, in this memory; bits of it may have turned.
  void OnReturned(const std::string& name);
  void OnRemoved(const std::string& name);
  // After each event of this machine at least.
  void AfterEvent();
  // Reads every sealed slot.
  void CheckAll();

  // The newest live version of which every rank's slot was sealed and right in every bit before the
  // last event.
  std::optional<Version> NewestWhole() const;

  // Whether that slab was sealed and right in every bit before the last event.
  bool Holds(Version version, Rank rank) const;

  // Of all sealed slots.
  std::set<std::pair<Version, Rank>> Slabs() const;

  // Turns one bit of some sealed slot, and says of which version; none when there is none.
  std::optional<Version> FlipBit(Random& random);

  uint64_t slots() const { return slots_.size(); }
  uint64_t bytes() const;

 private:
  // What a sealed slot holds.
  struct Held {
    Version version;
    Rank rank;
    uint64_t world = 0;
  };
  struct Seen {
    std::unique_ptr<Segment> segment;
    uint64_t word = 0;         // state word when last looked at
    uint32_t sealed_crc = 0;   // of everything behind the header, when it was sealed
    bool flipped = false;      // since it was sealed
    std::optional<Held> held;  // while it is sealed
  };

  void Open();
  void Look(const std::string& name, Seen& seen);
  void Leave(const std::string& name, Seen& seen);
  void OnSealed(const std::string& name, Seen& seen);
  void CheckUnchanged(const std::string& name, const Seen& seen);
  absl::StatusOr<Held> Judge(const Seen& seen) const;
  std::span<const Held> JustLeft() const;

  Trace& trace_;
  History& history_;
  const TensorModel tensors_;
  FakeHostMemory* host_ = nullptr;
  std::string prefix_;
  std::set<std::string> created_;   // not looked at yet
  std::set<std::string> returned_;  // of these
  std::map<std::string, Seen> slots_;
  std::vector<Held> just_left_;  // held and right until the event before that one
  uint64_t just_left_at_ = 0;
  std::vector<Held> leaving_;  // in this event
};

}  // namespace unreft::sim
