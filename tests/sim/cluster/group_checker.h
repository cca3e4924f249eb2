// GroupChecker: reads the slots and guards of a protection group from the nodes' memories, as they
// lie there, and decodes them with the reference code. It shares no state and no arithmetic with
// what it checks. Stateless.
#pragma once

#include <absl/status/status.h>
#include <unreft/cluster.pb.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/guard_header.h"
#include "base/ids.h"
#include "tests/sim/machine.h"

namespace unreft::sim {

using MachinesBySlot = std::map<NodeSlot, Machine*>;

// Whether all of the version is in the group's memories: every member's guard, complete and of the
// same slabs; parities that are those of the slots' bytes; copies of each slab's manifest, CRC
// table and extras. `deep`: and whether each loss of up to m members can be decoded. DataLoss,
// saying what is not.
absl::Status CheckGroup(const MachinesBySlot& machines, const Group& group, Version version,
                        bool deep);

// Whether all members but those of `gone` have guards of the same slabs. DataLoss, saying what is
// not.
absl::Status CheckRest(const MachinesBySlot& machines, const Group& group, Version version,
                       const std::set<NodeSlot>& gone);

// Whether all ranks' slabs of the version are in the memories of members that are not lost, or can
// be decoded there: of one of the groups k members have their own slabs and guards of the coding
// that most members have. Members of `gone` count as nothing. That it says no proves nothing.
bool CanBeHad(const MachinesBySlot& machines, const ViewRecord& view,
              const google::protobuf::RepeatedPtrField<Group>& groups,
              const std::set<NodeSlot>& gone, Version version, uint64_t world);

// For an error.
struct GuardLook {
  std::string name;
  GuardState state = GuardState::kEmpty;
  Version version;  // of its grant
};
std::vector<GuardLook> LookAtGuards(Machine& machine);

}  // namespace unreft::sim
