// What who completes a copy of either format makes sure of.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/copy.pb.h>

#include <cstdint>
#include <string>

#include "base/ids.h"
#include "durable/cold_store.h"
#include "layout/manifest.h"

namespace unreft::durable {

// What the rank has written of itself; its checksum goes into the record of the whole copy, rank
// after rank. DataLoss when it is damaged.
absl::StatusOr<CopySlab> TakeSlab(ColdStore& store, Rank rank, CopyRecord& record);

// That the file has so many bytes. Asks the file itself: a listing over a network may be of a while
// ago. DataLoss.
absl::Status CheckBytes(ColdStore& store, const std::string& file, uint64_t bytes);

// Whether the copy is still this one: what it has written is taken away when it is given up.
// Aborted.
absl::Status CheckStands(ColdStore& store, const CopyOrder& order);

// DataLoss: `why` what was written of the rank is not whole.
absl::Status LostSlab(Rank rank, const std::string& why);

// Of what the rank has written. DataLoss, naming the rank, when that is not of this copy.
absl::StatusOr<layout::SlotManifest> ManifestOf(const CopyOrder& order, const CopySlab& slab,
                                                Rank rank);

}  // namespace unreft::durable
