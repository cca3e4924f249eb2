// CodeCache: the codes of the shapes in use, each made once and shared.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <vector>

#include "ec/erasure_code.h"

namespace unreft::ec {

// Single-threaded.
class CodeCache {
 public:
  // InvalidArgument for a shape that CheckShape refuses.
  absl::StatusOr<std::shared_ptr<const ErasureCode>> Of(CodeShape shape);

 private:
  std::vector<std::shared_ptr<const ErasureCode>> codes_;  // few shapes: groups are alike
};

}  // namespace unreft::ec
