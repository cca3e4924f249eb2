// AnyK: for decoding, any k chunks of a position but the one to be decoded, as long as there is
// time; sources that failed are left out if others will do.
#pragma once

#include <vector>

#include "smp/protect/source_health.h"
#include "smp/protect/source_policy.h"

namespace unreft::smp {

class AnyK final : public SourcePolicy {
 public:
  // `target`: the chunk to be decoded. The health of the sources outlives this.
  AnyK(SourceHealth& health, uint32_t target, Time deadline)
      : health_(health), target_(target), deadline_(deadline) {}

  // DataLoss when fewer than k others are there at all.
  absl::StatusOr<std::vector<uint32_t>> Choose(const CodedVersion& coded, uint32_t stripe,
                                               uint64_t position,
                                               const std::vector<uint32_t>& landed) const override;
  void OnFailure(const CodedVersion& coded, uint32_t stripe, uint32_t chunk) override;
  // What has rotted there since it was verified stays so: others may do.
  bool TellsSuspects() const override { return false; }
  Time deadline() const override { return deadline_; }

 private:
  SourceHealth& health_;
  const uint32_t target_;
  const Time deadline_;
};

}  // namespace unreft::smp
