// Conversions between the job's records and messages (proto/unreft/cluster.proto) and the types
// that the code reasons with. Pure.
#pragma once

#include <unreft/cluster.pb.h>

#include <vector>

#include "base/ids.h"
#include "base/random.h"
#include "meta/job_state.h"
#include "recovery/restorable.h"
#include "recovery/timeline.h"
#include "smp/job/coordinator.h"

namespace unreft::smp {

// As the records have an incarnation.
inline std::string AsBytes(const RandomId& id) { return {id.begin(), id.end()}; }

// Of any message with fields timeline and step.
template <typename Message>
Version VersionOf(const Message& message) {
  return {Timeline{message.timeline()}, Step{message.step()}};
}

template <typename Message>
void SetVersion(Version version, Message& message) {
  message.set_timeline(version.timeline.value);
  message.set_step(version.step.value);
}

// Of a presence or a member: the place of its memory.
template <typename Message>
uint64_t PlaceOf(const Message& message) {
  return message.has_place() ? message.place() : message.slot();
}

std::vector<recovery::TimelineOrigin> OriginsOf(const TimelineRecord& record);
recovery::TimelineChain ChainOf(const TimelineRecord& record);
void SetChain(const recovery::TimelineChain& chain, TimelineRecord& record);
// Opens that timeline, which is newer than all of the record.
void OpenTimeline(Timeline next, Version parent, TimelineRecord& record);
// Whoever knows nothing of the job begins it in the first epoch, and what opens a timeline ends
// that: until then a node is believed that comes with records of the job, which are of a later one
// (docs/protocol.md, rule 3).
void EndFirstEpoch(const meta::JobState& records, meta::JobChange& change);

// Never committed any more, as the record says.
bool IsAbandoned(const AbandonRecord& record, Version version);
// The step from which on all ranks capture again, of the newest timeline; 0 of any other.
Step CaptureFrom(const AbandonRecord& record, Timeline newest);

std::vector<ec::Group> GroupsOf(const google::protobuf::RepeatedPtrField<Group>& groups);
void SetGroups(const std::vector<ec::Group>& groups,
               google::protobuf::RepeatedPtrField<Group>& into);

std::vector<recovery::SlabHolder> HoldersOf(
    const google::protobuf::RepeatedPtrField<Holder>& holders);
void SetHolders(const std::vector<recovery::SlabHolder>& holders,
                google::protobuf::RepeatedPtrField<Holder>& into);

recovery::NodeHolding HoldingOf(const VersionHolding& message);

// Which slabs of which memories are encoded together: equal for guards that belong together. Never
// 0.
uint64_t CodingOf(const Group& group, const google::protobuf::RepeatedPtrField<MemberSlab>& slabs);

ReplicaDigests DigestsOf(const SealedRank& sealed);

// What the leader knows of the registrations of all ranks; numbers of ReportReply.
enum class RegistrationState : uint32_t {
  kIncomplete = 0,  // some rank is not registered; also of a leader that does not look
  kLooking = 1,     // it has yet to hear what some rank is registered with
  kFit = 2,
  kMisfit = 3,
};
void SetDigests(const ReplicaDigests& digests, SealedRank& sealed);

JobDecision DecisionOf(const DecisionRecord& record);

}  // namespace unreft::smp
