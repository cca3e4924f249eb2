// PinChecker: that what is pinned is kept for as long as was asked, slots and guards: seen from
// outside, by the pins that daemons read and by the memories of their machines. What was committed
// last and seen protected is kept as if it were pinned, and so are the slabs of what was decided
// last, until anything else is committed or decided: that losses can be decoded is no leave to
// lose.
//
// It fails the trace when
//   * a node frees a slab or a guard of a version that is pinned (docs/protocol.md, rule 7) or
//   standing,
//     or its daemon does not know that slab any more,
//   * a pin is over before its time, and nobody has let go of it.
// A pin ends with its record, with the timeline (a decision that stepped back, a fresh start) and
// with the meta store; a slab or guard with its memory, or when bits of it turn. Single-threaded.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "smp/job/member.h"
#include "smp/node/node.h"
#include "tests/sim/cluster/cluster_observer.h"
#include "tests/sim/machine.h"

namespace unreft::sim {

// Who pins in simulated clusters. The first one never lets go.
inline constexpr const char* kPinOwners[] = {"keeper", "export"};

class PinChecker {
 public:
  explicit PinChecker(World& world) : world_(world) {}

  // Of a daemon on that machine, which sees the records so; `machines`: all that are a node now.
  void AfterEvent(Machine& machine, const meta::JobState& job,
                  const std::map<NodeSlot, Machine*>& machines);
  // As the store has it, from when on the time of a pin counts; `is_first`: after its start.
  void FollowTimes(const PinRecord& record, bool is_first);
  // What there is of it is to stay.
  void FollowStanding(std::optional<Standing> standing,
                      const std::map<NodeSlot, Machine*>& machines);
  // Now and then.
  void CheckGuards();
  void CheckInventory(const Machine& machine, smp::Node& node);

  void OnFlipped(const Machine& machine, Version version);
  // It is no node any more, and will forget all that it holds.
  void OnGivenUp(const Machine& machine);
  // It is a node by the memory that it has now: what lay in one before, and may come back, counts
  // for nobody.
  void OnNewMemory(const Machine& machine);
  // It comes back as another one, or as it was.
  void OnStoreChanged();

  std::vector<Version> Pinned() const;
  // Versions that were pinned.
  uint64_t pinned() const { return pinned_; }

 private:
  // What is kept of a version, in the memory that it was in when it was pinned.
  struct Slab {
    Machine* machine = nullptr;
    RandomId boot_id;
    Rank rank;
  };
  struct Guard {
    Machine* machine = nullptr;
    RandomId boot_id;
  };
  struct Kept {
    std::vector<Slab> slabs;
    std::vector<Guard> guards;
  };
  struct Time {
    uint64_t number = 0;  // of the pin
    Duration end{};
  };

  void CheckSlabs(const Machine& machine, Version version, const Kept& kept, const char* why);
  void CheckGuards(Version version, const Kept& kept, const char* why);
  void Follow(const meta::JobState& job, const std::map<NodeSlot, Machine*>& machines);
  static void Forget(const Machine& machine, Kept& kept);
  void AddWhatIsThere(Version version, Machine& machine, Kept& kept) const;

  World& world_;
  std::string store_id_;
  meta::Revision newest_;              // of the record
  bool store_changed_ = false;         // it is yet to start again
  std::set<std::string> dead_stores_;  // who still sees one of these says nothing
  std::set<const Machine*> has_read_;  // its daemons, the store as it is since it changed
  std::map<Version, Kept> kept_;
  std::optional<std::pair<Standing, Kept>> standing_;
  std::map<std::pair<Version, std::string>, Time> times_;         // by owner
  std::map<std::pair<Version, std::string>, Time> times_before_;  // in stores of before
  std::set<std::pair<const Machine*, Version>> rotted_;           // in part
  uint64_t pinned_ = 0;
};

}  // namespace unreft::sim
