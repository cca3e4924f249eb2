// What the job's records must be before anything is made of them: whoever can write to the meta
// store can write anything there (docs/formats/meta_keys.md). Pure.
//
// InvalidArgument names what is wrong, the numbers needed and found.
#pragma once

#include <absl/status/status.h>
#include <unreft/cluster.pb.h>

namespace unreft::meta {

inline constexpr uint32_t kSettingsFormat = 1;
inline constexpr uint32_t kSettingsMinReader = 1;
inline constexpr size_t kStoreIdBytes = 16;

// Members, each slot once; groups of members, disjoint, that an erasure code can be made of.
absl::Status CheckRecord(const ViewRecord& view);
// A chain of ascending timelines, each with an older parent; a decision of a known kind.
absl::Status CheckRecord(const TimelineRecord& timeline);
// Holders of each rank of the world once, or none at all.
absl::Status CheckRecord(const CommitRecord& commit);
absl::Status CheckRecord(const AbandonRecord& abandoned);
absl::Status CheckRecord(const PinRecord& pins);
absl::Status CheckRecord(const SeedRecord& seed);
absl::Status CheckRecord(const PresenceRecord& presence);
absl::Status CheckRecord(const SpareRecord& spare);
absl::Status CheckRecord(const WaitingRecord& waiting);
// Of a format that we read.
absl::Status CheckRecord(const SettingsRecord& settings);
absl::Status CheckRecord(const RefusedRecord& refused);

}  // namespace unreft::meta
