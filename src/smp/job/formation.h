// The formation of a job: which of its nodes are in a protection group (docs/protocol.md, rule 19).
// A member that is in none is left out. Pure.
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <vector>

#include "base/ids.h"
#include "smp/job/facts.h"
#include "smp/job/move.h"

namespace unreft::smp {

// Whether the slot is in a group of the view.
bool IsIn(const ViewRecord& view, NodeSlot slot);
// Whether every member is.
bool AreAllIn(const ViewRecord& view);
// Whether the job has begun without the node, and it has not come since.
bool HasNotCome(const ViewMember& member);
// Whether it is in none of the groups that there are.
bool IsLeftOut(const ViewRecord& view, NodeSlot slot);

// Whether its groups stand no loss.
bool HasNoParities(const ViewRecord& view);

// Writes the groups of those members into the view, and its exposure. InvalidArgument when there
// are too few of them.
absl::Status FormGroups(const std::vector<NodeSlot>& of, const NodeOptions& options,
                        ViewRecord& view);

// Why the groups protect less than was asked for, by the failure domains that the view names now;
// empty when they do not.
std::string ExposureOf(const ViewRecord& view, const NodeOptions& options);

// Greater than that of any view that a node has heard of, whatever the store has forgotten.
uint64_t NextViewNumber(const Facts& facts, const ViewRecord& view);

// The view that goes with a decision, and what is said of it.
struct Formation {
  ViewRecord view;
  std::vector<Line> say;
};

// The formation that the decision which is being made is to write: every member is in that is not
// lost, or from which a rank asked: that may be cut off from the store alone, and its rank train
// on; but for those that an operator's order leaves out (resize.h). None where it is as it is now,
// or while some daemon knows of no other groups than the first.
std::optional<Formation> NextFormation(const Facts& facts);

// The same members with one parity less, where memory is short for what they have (the same rule).
// Only while some member is left out, and nothing was committed since: what a job was started with
// is kept, or refused. None where that is not so, or one parity is all that there is.
std::optional<Formation> LowerFormation(const Facts& facts);

}  // namespace unreft::smp
