// For copiers of tests that play a device's: what the machine takes for a device is host memory.
#pragma once

#include <vector>

#include "snapshot/device_copier.h"

namespace unreft::snapshot {

inline std::vector<CopyOp> AsHostMemory(std::vector<CopyOp> ops) {
  for (CopyOp& op : ops) op.on_device = false;
  return ops;
}

}  // namespace unreft::snapshot
