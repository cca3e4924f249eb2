#include "tests/sim/cluster/pin_checker.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "smp/job/rewind.h"
#include "tests/sim/cluster/group_checker.h"

namespace unreft::sim {
namespace {

bool HasGuard(Machine& machine, Version version) {
  return std::ranges::any_of(LookAtGuards(machine), [&](const GuardLook& guard) {
    return guard.state == GuardState::kComplete && guard.version == version;
  });
}

const char* NameOf(const Standing& standing) {
  return standing.is_protected ? "committed" : "decided";
}

}  // namespace

void PinChecker::AfterEvent(Machine& machine, const meta::JobState& job,
                            const std::map<NodeSlot, Machine*>& machines) {
  // What a store that went back says of pins, before it is seeded, is followed by nobody: a pin
  // that it still has may be over.
  const bool is_new = job.pins.modified != newest_ || job.store_id != store_id_;
  if (is_new && job.IsSeeded()) Follow(job, machines);
  const auto is_it = [&](const auto& node) { return node.second == &machine; };
  const bool is_node = std::ranges::any_of(machines, is_it);
  const bool reads = is_node && !store_id_.empty() && job.store_id == store_id_;
  if (reads && has_read_.insert(&machine).second) {
    for (auto& [version, kept] : kept_) AddWhatIsThere(version, machine, kept);
  }
  for (const auto& [version, kept] : kept_) CheckSlabs(machine, version, kept, "pinned");
  if (!standing_) return;
  CheckSlabs(machine, standing_->first.version, standing_->second, NameOf(standing_->first));
}

void PinChecker::CheckSlabs(const Machine& machine, Version version, const Kept& kept,
                            const char* why) {
  if (!world_.history.IsLive(version)) return;
  for (const Slab& slab : kept.slabs) {
    if (slab.machine != &machine || slab.boot_id != machine.boot_id) continue;
    if (machine.observer.Holds(version, slab.rank)) continue;
    world_.trace.Fail("{} is {}, and machine {} has freed its slab of rank {}", version, why,
                      machine.slot, slab.rank);
  }
}

void PinChecker::CheckGuards() {
  for (const auto& [version, kept] : kept_) CheckGuards(version, kept, "pinned");
  if (!standing_) return;
  CheckGuards(standing_->first.version, standing_->second, NameOf(standing_->first));
}

void PinChecker::CheckGuards(Version version, const Kept& kept, const char* why) {
  if (!world_.history.IsLive(version)) return;
  for (const Guard& guard : kept.guards) {
    if (guard.boot_id != guard.machine->boot_id || HasGuard(*guard.machine, version)) continue;
    world_.trace.Fail("{} is {}, and machine {} has freed its guard", version, why,
                      guard.machine->slot);
  }
}

// A slab that a daemon does not vouch for is there for nobody.
void PinChecker::CheckInventory(const Machine& machine, smp::Node& node) {
  if (!standing_ || !world_.history.IsLive(standing_->first.version)) return;
  const std::vector<smp::Slot*> sealed = node.state().slots->Sealed(standing_->first.version);
  for (const Slab& slab : standing_->second.slabs) {
    if (slab.machine != &machine || slab.boot_id != machine.boot_id) continue;
    const auto is_it = [&](const smp::Slot* slot) { return slot->owner == slab.rank; };
    if (std::ranges::any_of(sealed, is_it)) continue;
    world_.trace.Fail("{} is {}, and the daemon of machine {} has lost its slab of rank {}",
                      standing_->first.version, NameOf(standing_->first), machine.slot, slab.rank);
  }
}

void PinChecker::FollowStanding(std::optional<Standing> standing,
                                const std::map<NodeSlot, Machine*>& machines) {
  const std::optional<Standing> before = standing_ ? std::optional(standing_->first) : std::nullopt;
  if (standing == before) return;
  standing_.reset();
  if (!standing) return;
  standing_.emplace(*standing, Kept{});
  for (const auto& [slot, machine] : machines) {
    AddWhatIsThere(standing->version, *machine, standing_->second);
  }
  if (!standing->is_protected) standing_->second.guards.clear();
}

void PinChecker::Follow(const meta::JobState& job, const std::map<NodeSlot, Machine*>& machines) {
  if (job.store_id.empty() || dead_stores_.contains(job.store_id)) return;
  if (std::exchange(store_id_, job.store_id) != job.store_id) newest_ = meta::Revision{};
  if (job.pins.modified <= newest_) return;  // it was told late
  newest_ = job.pins.modified;
  std::set<Version> pinned;
  for (const Pin& pin : job.pins.value.pins()) {
    // Some node may have given its part of an older one away already: the decision finds that out.
    if (pin.owner() != smp::kRewindOwner) pinned.insert(smp::VersionOf(pin));
  }
  std::erase_if(kept_, [&](const auto& entry) { return !pinned.contains(entry.first); });
  for (const Version version : pinned) {
    if (kept_.contains(version)) continue;
    ++pinned_;
    world_.trace.Add("{} is pinned", version);
    Kept& kept = kept_[version];
    for (const auto& [slot, machine] : machines) {
      if (has_read_.contains(machine)) AddWhatIsThere(version, *machine, kept);
    }
  }
}

std::vector<Version> PinChecker::Pinned() const {
  std::vector<Version> pinned;
  for (const auto& [version, kept] : kept_) pinned.push_back(version);
  return pinned;
}

void PinChecker::FollowTimes(const PinRecord& record, bool is_first) {
  if (store_changed_ && !is_first) return;  // what it lost was written late
  if (std::exchange(store_changed_, false)) {
    for (const auto& [pin, time] : std::exchange(times_, {})) times_before_[pin] = time;
  }
  std::set<std::pair<Version, std::string>> present;
  for (const Pin& pin : record.pins()) {
    const auto [it, is_new] = present.emplace(smp::VersionOf(pin), pin.owner());
    Time& time = times_[*it];
    if (time.number == pin.number()) continue;
    time = {pin.number(), world_.trace.now() + std::chrono::milliseconds(pin.for_ms())};
    if (!is_first) continue;  // it was written now
    // Of before the store went back: whoever led all the while has counted on. From when a renewal
    // counts that was lost, or that nobody saw written, is not known.
    const auto before = times_before_.find(*it);
    const bool is_known = before != times_before_.end();
    if (is_known && before->second.number == pin.number()) {
      time.end = std::min(time.end, before->second.end);
    } else {
      time.end = world_.trace.now();
    }
  }
  std::erase_if(times_, [&](const auto& entry) {
    const auto& [version, owner] = entry.first;
    if (present.contains(entry.first)) return false;
    if (owner == kPinOwners[0] && world_.trace.now() < entry.second.end &&
        world_.history.IsLive(version)) {
      world_.trace.Fail("the pin of {} for '{}' is over before its time", version, owner);
    }
    times_before_[entry.first] = entry.second;
    return true;
  });
}

void PinChecker::AddWhatIsThere(Version version, Machine& machine, Kept& kept) const {
  // What has left in the machine's last event is there no more.
  for (const auto& [held, rank] : machine.observer.Slabs()) {
    if (held != version || !machine.observer.Holds(version, rank)) continue;
    kept.slabs.push_back({&machine, machine.boot_id, rank});
  }
  if (rotted_.contains({&machine, version}) || !HasGuard(machine, version)) return;
  kept.guards.push_back({&machine, machine.boot_id});
}

void PinChecker::OnFlipped(const Machine& machine, Version version) {
  rotted_.emplace(&machine, version);
  if (const auto it = kept_.find(version); it != kept_.end()) Forget(machine, it->second);
  if (standing_ && standing_->first.version == version) Forget(machine, standing_->second);
}

void PinChecker::OnGivenUp(const Machine& machine) {
  for (auto& [version, kept] : kept_) Forget(machine, kept);
  if (standing_) Forget(machine, standing_->second);
}

void PinChecker::OnNewMemory(const Machine& machine) {
  const auto is_before = [&](const auto& part) {
    return part.machine == &machine && part.boot_id != machine.boot_id;
  };
  const auto forget = [&](Kept& kept) {
    std::erase_if(kept.slabs, is_before);
    std::erase_if(kept.guards, is_before);
  };
  for (auto& [version, kept] : kept_) forget(kept);
  if (standing_) forget(standing_->second);
}

void PinChecker::Forget(const Machine& machine, Kept& kept) {
  const auto is_there = [&](const auto& part) { return part.machine == &machine; };
  std::erase_if(kept.slabs, is_there);
  std::erase_if(kept.guards, is_there);
}

void PinChecker::OnStoreChanged() {
  kept_.clear();
  has_read_.clear();
  store_changed_ = true;
  if (!store_id_.empty()) dead_stores_.insert(std::exchange(store_id_, ""));
  newest_ = meta::Revision{};
}

}  // namespace unreft::sim
