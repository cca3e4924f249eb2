#include "smp/job/manifest_cache.h"

#include <utility>

namespace unreft::smp {

ManifestCache::Known ManifestCache::Find(const std::map<Rank, RankLayout>& ranks) const {
  Known known;
  for (const auto& [rank, layout] : ranks) {
    ManifestPtr manifest = Find(rank, layout.digest);
    if (manifest == nullptr) known.to_ask.insert(layout.home);
    known.manifests.emplace_hint(known.manifests.end(), rank, std::move(manifest));
  }
  return known;
}

ManifestCache::ManifestPtr ManifestCache::Find(Rank rank, uint64_t digest) const {
  const auto known = manifests_.find(rank);
  if (known == manifests_.end()) return nullptr;
  for (const ManifestPtr& manifest : known->second) {
    if (manifest->layout_digest == digest) return manifest;
  }
  return nullptr;
}

void ManifestCache::Keep(layout::SlotManifest manifest) {
  manifest.replica_digests.clear();  // of another version they would say nothing
  std::deque<ManifestPtr>& known = manifests_[manifest.rank];
  std::erase_if(known, [&](const ManifestPtr& other) {
    return other->layout_digest == manifest.layout_digest;
  });
  known.push_back(std::make_shared<const layout::SlotManifest>(std::move(manifest)));
  if (known.size() > kPerRank) known.pop_front();
}

}  // namespace unreft::smp
