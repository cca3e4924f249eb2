// What snapshots copy where, as the daemon's answer to a registration asks for it. Pure.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <vector>

#include "base/session_frames.h"
#include "layout/tensor_table.h"
#include "snapshot/capture_layout.h"
#include "snapshot/client_options.h"
#include "snapshot/tensor_probes.h"

namespace unreft::snapshot {

// Of the tensors of `table`, each of which lies in the `memory` of its place. What the daemon has
// refused the registration for; FailedPrecondition when it asks for what this release does not
// know, or plans another capture; ResourceExhausted when a slot is smaller than the state.
absl::StatusOr<std::shared_ptr<const CaptureLayout>> LayoutFor(
    const Registered& registered, const layout::TensorTable& table,
    const std::vector<ShardMemory>& memory, const CaptureOptions& options);

}  // namespace unreft::snapshot
