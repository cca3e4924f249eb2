// What the job's records say, read together. Pure.
#pragma once

#include <unreft/cluster.pb.h>

#include <string>
#include <vector>

#include "base/ids.h"
#include "meta/job_store.h"
#include "recovery/restorable.h"

namespace unreft::smp {

// Of a chain of timelines, in a record or a report; 0 when none was ever opened.
template <typename Message>
Timeline NewestTimeline(const Message& message) {
  const auto& chain = message.chain();
  return Timeline{chain.empty() ? 0 : chain.rbegin()->timeline()};
}

// The decision in force: the last that did not fail, as long as nothing has opened a timeline after
// it. Who it was made for trains, or is about to. Null when there is none.
const DecisionRecord* DecisionInForce(const TimelineRecord& record);

// Null when the view has no such slot.
const ViewMember* FindMember(const ViewRecord& view, NodeSlot slot);

// Whether that memory has the slot.
bool Names(const ViewRecord& view, NodeSlot slot, const std::string& incarnation);

// Whether the member is present with the memory that the view names.
bool IsPresent(const meta::JobState& records, const ViewMember& member);

// The groups that the version is encoded in, as far as the records say.
std::vector<ec::Group> RecordedGroupsOf(const meta::JobState& records, Version version);

}  // namespace unreft::smp
