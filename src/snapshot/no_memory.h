// CatchNoMemory: nothing thrown may leave a snapshot open.
#pragma once

#include <absl/status/status.h>

#include <new>

namespace unreft::snapshot {

// What the body returns, or that it found no memory.
template <typename Body>
absl::Status CatchNoMemory(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  }
}

}  // namespace unreft::snapshot
