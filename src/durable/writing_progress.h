// How who writes or loads a copy is told how far that is.
#pragma once

#include <absl/functional/function_ref.h>

#include <cstdint>

namespace unreft::durable {

// Bytes of files: written, and in all. False: the writing is to end, with Cancelled.
using OnProgress = absl::FunctionRef<bool(uint64_t written, uint64_t bytes)>;

}  // namespace unreft::durable
