// How the embedded store lies in its records (proto/unreft/meta_store.proto). Pure.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <vector>

#include "base/record_store.h"
#include "meta/store_state.h"

namespace unreft::meta {

inline constexpr uint32_t kStoreRecordsFormat = 1;

// A change as one batch, and the batch that takes it back: both for the state before the change.
struct StoreBatches {
  std::vector<RecordChange> forward;
  std::vector<RecordChange> backward;
};
StoreBatches BatchesOf(const StoreState& state, uint64_t cluster_id, const StoreChange& change);

// The only record of a store that has just been made.
RecordChange HeadRecord(uint64_t cluster_id, Revision revision, Revision first_watchable);

// Fills `state`, which is empty, and returns the store's cluster id; 0 when there are no records.
// DataLoss names a record that cannot be read; FailedPrecondition: of a newer release.
absl::StatusOr<uint64_t> LoadRecords(const std::vector<Record>& records, StoreState& state);

}  // namespace unreft::meta
