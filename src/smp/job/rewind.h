// Rewinding: an operator orders that the next attempt restores an older version than the newest
// that is whole, or its ranks ask for the newest up to a step (docs/protocol.md, rule 30). Pure.
#pragma once

#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "meta/job_store.h"
#include "smp/core/node_options.h"
#include "smp/job/roll_call.h"

namespace unreft::smp {

// Whose pin keeps an ordered version until it is restored, for so long at most: the order ends with
// it.
inline constexpr std::string_view kRewindOwner = "unreft rewind";
inline constexpr Duration kRewindFor = std::chrono::hours(24 * 7);

// What the next decision restores, or nothing at all; none: the newest that is whole.
std::optional<Version> OrderedVersion(const TimelineRecord& record);

// The newest step that the ranks of a round restore; none: any. They agree (attempts.h).
std::optional<Step> AskedAtOrBefore(const google::protobuf::RepeatedPtrField<AskingRank>& asked);

// What is whole by what the nodes tell, newest first, and what is ordered.
RewindReply DescribeRewind(const meta::JobState& records, const RollCall& roll);

// The one Txn by which a version is ordered and pinned, or an order taken back. FailedPrecondition
// where no such version is whole, naming those that are; NotFound where nothing is ordered;
// ResourceExhausted where ranks that are connected would have no slot left to capture in.
absl::StatusOr<meta::JobChange> OrderRewind(const RewindRequest& request,
                                            const meta::JobState& records, const RollCall& roll,
                                            const NodeOptions& options);

// It was carried out, or is over.
void EndRewind(TimelineRecord& timeline, PinRecord& pins);
// Whether the record has its pin.
bool IsKeptForRewind(const PinRecord& pins);

// FailedPrecondition, for the ranks: what was ordered is not whole. `missing`: why.
absl::Status OrderedIsNotWhole(Version ordered, const std::string& missing);

// FailedPrecondition, for the ranks: an order stands for a newer step than they ask for.
absl::Status OrderedIsNewer(Version ordered, Step at_or_before);

// FailedPrecondition, for the ranks: `can` is whole and newer than they ask for, and nothing else
// is to be had.
absl::Status NothingAtOrBefore(Step at_or_before, const RewindReply& can);

}  // namespace unreft::smp
