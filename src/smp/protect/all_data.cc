#include "smp/protect/all_data.h"

#include <numeric>

namespace unreft::smp {

absl::StatusOr<std::vector<uint32_t>> AllData::Choose(const CodedVersion& coded, uint32_t, uint64_t,
                                                      const std::vector<uint32_t>&) const {
  std::vector<uint32_t> chunks(coded.group.shape.k);
  std::iota(chunks.begin(), chunks.end(), 0U);
  return chunks;
}

}  // namespace unreft::smp
