#include "smp/job/round_reading.h"

#include <memory>

namespace unreft::smp {

RoundReading::Life RoundReading::LifeOf(NodeSlot slot, const NodeReport& report) {
  return {slot, report.incarnation(), report.session()};
}

void RoundReading::Follow(uint64_t round) {
  if (round_ == round) return;
  *this = RoundReading();
  round_ = round;
}

void RoundReading::End(const Life& life, Version version) {
  under_way_.erase({version, life});
  read_.insert({version, life});
}

void RoundReading::Keep(Version version, layout::SlotManifest manifest) {
  const Rank rank = manifest.rank;
  manifests_[version][rank] = std::make_shared<const layout::SlotManifest>(std::move(manifest));
}

const ManifestsByRank& RoundReading::ManifestsOf(Version version) const {
  static const ManifestsByRank kNone;
  const auto kept = manifests_.find(version);
  return kept == manifests_.end() ? kNone : kept->second;
}

}  // namespace unreft::smp
