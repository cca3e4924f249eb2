// Reads the text of a layout::JobLayout (docs/formats/layout_file.md), which may be anybody's.
// Pure.
#pragma once

#include <absl/status/statusor.h>

#include <string_view>

#include "layout/job_layout.h"

namespace unreft::smp {

// InvalidArgument, naming what was needed and found and where, for what is no layout, or one that
// layout::CheckLayout refuses; FailedPrecondition for one of a later format that this release does
// not read. Takes about 1 s for 20 MB: for a pool, not for an executor.
absl::StatusOr<layout::JobLayout> ReadLayout(std::string_view text);

}  // namespace unreft::smp
