// Registration: what a rank's life has declared that it holds, and what is captured of it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <absl/status/status.h>

#include "base/ids.h"
#include "layout/capture_plan.h"
#include "layout/manifest.h"
#include "layout/tensor_table.h"

namespace unreft::smp {

// The plan follows from the table. Immutable; shared by the slots that were captured under it,
// which outlast the next registration.
struct Registration {
  layout::TensorTable table;
  layout::CapturePlan plan;
  uint64_t extras_bytes = 0;
};

// As much of a slot's manifest as is known before anything is captured.
layout::SlotManifest ManifestOf(const Registration& registration);

// A rank that is registered with this node.
struct RegisteredTrainer {
  Rank rank;
  uint64_t world = 0;
  Attempt attempt;
  std::shared_ptr<const Registration> registration;
  // The newest step that it has named in the newest timeline; none where more may be to come of
  // what it captured before. Up to it, it has what is sealed, and what it captures now.
  std::optional<Step> passed;
  std::vector<Step> capturing;
};

// What was found of registrations.
struct RegistrationCheck {
  // Digests of the plans that were looked at, of this node's ranks.
  std::map<Rank, uint64_t> layouts;
  // FailedPrecondition, by name, when those of all ranks do not fit together; ok while some rank of
  // the job is not registered.
  absl::Status status;
};

}  // namespace unreft::smp
