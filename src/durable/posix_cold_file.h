// PosixColdFile: a file under way of a PosixColdStore. Of that store's own files, for them alone.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string_view>

#include "durable/posix_cold_tree.h"

namespace unreft::durable {

// As ColdStore::Create. `direct`: past the page cache if the file system can do that.
// `buffer_bytes` is a multiple of 4096.
absl::StatusOr<std::unique_ptr<ColdFile>> BeginPosixColdFile(
    std::shared_ptr<const PosixColdRoot> root, std::string_view name, bool direct,
    uint64_t buffer_bytes);

}  // namespace unreft::durable
