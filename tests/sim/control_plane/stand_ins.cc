#include "tests/sim/control_plane/stand_ins.h"

#include <fmt/format.h>

#include <algorithm>

#include "smp/job/layout_check.h"

namespace unreft::sim {
namespace {

// Of a node's ranks, each of which holds a copy of all.
constexpr uint64_t kLayers = 4;
// Held beside the version under way, as of three slots of a rank.
constexpr size_t kVersionsKept = 2;

}  // namespace

StandInTrainers::StandInTrainers(const smp::NodeOptions& options, uint64_t index, uint64_t ranks)
    : options_(options), index_(index), ranks_(ranks) {}

void StandInTrainers::Register(Attempt attempt) {
  trainers_.clear();
  for (uint64_t i = 0; i < ranks_; ++i) {
    std::vector<TensorSpec> tensors;
    for (uint64_t layer = 0; layer < kLayers; ++layer) {
      tensors.push_back({.name = fmt::format("model.layers.{}.{}", index_, layer),
                         .global_shape = {1024},
                         .offset = {0},
                         .extent = {1024},
                         .replica_index = static_cast<uint32_t>(i),
                         .replica_count = static_cast<uint32_t>(ranks_)});
    }
    auto registration = std::make_shared<smp::Registration>();
    registration->table = *layout::TensorTable::Create(std::move(tensors));
    registration->plan =
        layout::CapturePlan::Make(registration->table, layout::CaptureMode::kSharded);
    trainers_.push_back({rank(i), world(), attempt, std::move(registration), {}, {}});
  }
}

std::vector<smp::Asker> StandInTrainers::Askers(uint64_t request) const {
  std::vector<smp::Asker> askers;
  for (uint64_t i = 0; i < ranks_; ++i) {
    askers.push_back({rank(i), {static_cast<int64_t>(1000 + i), request}, request});
  }
  return askers;
}

void StandInTrainers::Claim(Version version, Rank rank) {
  smp::RegisteredTrainer& trainer = trainers_[rank.value - index_ * ranks_];
  trainer.passed = version.step;
  trainer.capturing = {version.step};
}

void StandInTrainers::Seal(Version version, Rank rank) {
  smp::RegisteredTrainer& trainer = trainers_[rank.value - index_ * ranks_];
  trainer.capturing.clear();
  auto manifest = std::make_shared<layout::SlotManifest>(ManifestOf(*trainer.registration));
  manifest->job = options_.job;
  manifest->version = version;
  manifest->rank = rank;
  manifest->world = world();
  manifest->attempt = trainer.attempt;
  manifest->block_bytes = static_cast<uint32_t>(options_.block_bytes);
  manifest->data_bytes = trainer.registration->plan.data_bytes();
  // Compared at the first snapshot of a timeline and then now and then.
  const bool is_first = !decision_ || committed_.timeline != version.timeline;
  if (is_first || version.step.value % options_.replica_check_every == 0) {
    manifest->replica_digests.assign(kLayers, static_cast<uint32_t>(version.step.value));
  }
  while (held_.size() > kVersionsKept && !held_.contains(version)) held_.erase(held_.begin());
  held_[version].push_back({{version, rank, world()}, manifest});
}

std::vector<Rank> StandInTrainers::Sealed(Version version) const {
  std::vector<Rank> ranks;
  const auto held = held_.find(version);
  if (held == held_.end()) return ranks;
  for (const smp::HeldSlab& slab : held->second) ranks.push_back(slab.slab.rank);
  std::ranges::sort(ranks);
  return ranks;
}

std::vector<smp::HeldSlab> StandInTrainers::Inventory() {
  std::vector<smp::HeldSlab> slabs;
  for (const auto& [version, held] : held_) slabs.insert(slabs.end(), held.begin(), held.end());
  return slabs;
}

void StandInTrainers::OnDecision(const smp::JobDecision& decision) {
  decision_ = decision;
  committed_ = decision.version;
}

void StandInTrainers::OnAbandoned(Version version, const std::string&) {
  held_.erase(version);
  ++abandoned_;
}

void StandInGuards::OnCommitted(Version) {
  while (held_.size() > kVersionsKept) held_.erase(held_.begin());
}

std::vector<smp::GuardHeld> StandInGuards::Held() const {
  std::vector<smp::GuardHeld> guards;
  for (const auto& [version, guard] : held_) guards.push_back(guard);
  return guards;
}

}  // namespace unreft::sim
