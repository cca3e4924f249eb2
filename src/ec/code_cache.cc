#include "ec/code_cache.h"

#include <utility>

#include "ec/isal_code.h"

namespace unreft::ec {

absl::StatusOr<std::shared_ptr<const ErasureCode>> CodeCache::Of(CodeShape shape) {
  for (const auto& code : codes_) {
    if (code->shape() == shape) return code;
  }
  absl::StatusOr<std::unique_ptr<IsalCode>> code = IsalCode::Make(shape);
  if (!code.ok()) return code.status();
  return codes_.emplace_back(*std::move(code));
}

}  // namespace unreft::ec
