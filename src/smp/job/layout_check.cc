#include "smp/job/layout_check.h"

#include <fmt/format.h>

#include <string>

#include "base/format.h"
#include "layout/tensor_table.h"
#include "smp/job/replica_comparison.h"

namespace unreft::smp {
namespace {

std::string ShardName(const TensorSpec& spec) {
  std::string name = spec.name;
  for (size_t i = 0; i < spec.offset.size(); ++i) {
    name += fmt::format("{}{}+{}", i == 0 ? " at " : ",", spec.offset[i], spec.extent[i]);
  }
  return name;
}

}  // namespace

ReplicaDigests DigestsOf(const layout::SlotManifest& manifest) {
  ReplicaDigests digests;
  if (manifest.capture_mode == layout::CaptureMode::kFull) return digests;
  size_t next = 0;
  for (const TensorSpec& spec : manifest.tensors) {
    if (spec.replica_count < 2) continue;
    std::optional<uint32_t>& digest = digests[ShardName(spec)];
    if (next < manifest.replica_digests.size()) digest = manifest.replica_digests[next++];
  }
  return digests;
}

std::string DescribeMixedModes(const ManifestsByRank& manifests) {
  for (const auto& [rank, manifest] : manifests) {
    const auto& [first, other] = *manifests.begin();
    const bool is_full = other->capture_mode == layout::CaptureMode::kFull;
    if (manifest->capture_mode == other->capture_mode) continue;
    return fmt::format("rank {} captured all it holds, rank {} a part of it",
                       is_full ? first : rank, is_full ? rank : first);
  }
  return "";
}

absl::Status LayoutCheck::Check(const ManifestsByRank& manifests) const {
  std::vector<uint64_t> digests;
  std::map<Rank, ReplicaDigests> replicas;
  for (const auto& [rank, manifest] : manifests) {
    digests.push_back(manifest->layout_digest);
    // Those that are kept without digests say nothing.
    if (!manifest->replica_digests.empty()) replicas[rank] = DigestsOf(*manifest);
  }
  if (std::string what = CompareReplicas(replicas).disagreement; !what.empty()) {
    return absl::FailedPreconditionError(what);
  }
  if (AreKnownToFit(digests)) return absl::OkStatus();

  if (std::string what = DescribeMixedModes(manifests); !what.empty()) {
    return absl::FailedPreconditionError(what);
  }
  std::vector<layout::TensorTable> tables;
  for (const auto& [rank, manifest] : manifests) {
    absl::StatusOr<layout::TensorTable> table = layout::TensorTable::Create(manifest->tensors);
    if (!table.ok()) return table.status();
    tables.push_back(*std::move(table));
  }
  absl::Status status = layout::CheckWorld(tables);
  if (status.ok()) fitting_ = std::move(digests);
  return status;
}

bool LayoutCheck::AreKnownToFit(const std::vector<uint64_t>& layout_digests) const {
  return !layout_digests.empty() && layout_digests == fitting_;
}

}  // namespace unreft::smp
