// AllData: for encoding, all data of a position, however long that takes.
//
// A source that is still capturing answers when the block is there, and no other chunk is as good
// as one that is missing.
#pragma once

#include <vector>

#include "smp/protect/source_policy.h"

namespace unreft::smp {

class AllData final : public SourcePolicy {
 public:
  absl::StatusOr<std::vector<uint32_t>> Choose(const CodedVersion& coded, uint32_t stripe,
                                               uint64_t position,
                                               const std::vector<uint32_t>& landed) const override;
  void OnFailure(const CodedVersion&, uint32_t, uint32_t) override {}
  // Only the reader sees that a slab has rotted before it was protected (slab_source.h).
  bool TellsSuspects() const override { return true; }
  Time deadline() const override { return Time::max(); }
};

}  // namespace unreft::smp
