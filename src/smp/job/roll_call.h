// RollCall: the members of the view, and what each of them says now. The leader calls the roll once
// for all that its rules look at in one turn.
#pragma once

#include <unreft/cluster.pb.h>

#include <map>
#include <vector>

#include "base/ids.h"
#include "recovery/restorable.h"

namespace unreft::smp {

using Presences = std::map<NodeSlot, PresenceRecord>;
using Reports = std::map<NodeSlot, NodeReport>;

// The newest report of that member; null until one has come of the memory and the process that are
// present.
const NodeReport* ReportOf(const ViewMember& member, const Presences& present,
                           const Reports& reports);

class RollCall {
 public:
  // Refers to all of these, which stay as they are as long as it lives.
  RollCall(const ViewRecord& view, const Presences& present, const Reports& reports);

  struct Entry {
    const ViewMember* member;
    NodeSlot slot;
    const NodeReport* report;  // as ReportOf
  };
  // All, in the view's order.
  const std::vector<Entry>& members() const { return members_; }

  struct Told {
    NodeSlot slot;
    const NodeReport* report;
  };
  // Those that are not lost and have reported, in the view's order.
  const std::vector<Told>& told() const { return told_; }
  // Whether all have that are not lost.
  bool have_all_told() const { return silent_ == 0; }
  // Whether those of them have that are in a group: nobody waits for the others' part in a commit.
  bool have_all_in_told() const { return silent_in_ == 0; }

 private:
  std::vector<Entry> members_;
  std::vector<Told> told_;
  size_t silent_ = 0;
  size_t silent_in_ = 0;
};

// What the report says of the version; null when it does not name it.
const VersionHolding* FindHolding(const NodeReport& report, Version version);

// What those that have told hold, of one version and of all.
std::map<NodeSlot, recovery::NodeHolding> HeldOf(const RollCall& roll, Version version);
recovery::Holdings HoldingsOf(const RollCall& roll);
// Of the members that are not lost.
recovery::Memories MemoriesLeft(const RollCall& roll);

}  // namespace unreft::smp
