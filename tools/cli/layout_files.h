// Layouts in files: of a whole job, or of each rank, as a dry run leaves them in a directory
// (docs/formats/layout_file.md). Blocking, stateless.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>

#include "layout/job_layout.h"

namespace unreft::cli {

// Of all ranks of a world. `path` is the file of a job, or a directory with a file for each rank.
// NotFound, or InvalidArgument and FailedPrecondition that name the file: what is wrong with it, or
// which ranks lack, or that ranks are of several jobs or worlds.
absl::StatusOr<layout::JobLayout> ReadLayouts(const std::string& path);

// Whole or not at all.
absl::Status WriteLayout(const std::string& path, const layout::JobLayout& layout);

}  // namespace unreft::cli
