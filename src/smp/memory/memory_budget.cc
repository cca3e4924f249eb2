#include "smp/memory/memory_budget.h"

#include <fmt/format.h>

#include <algorithm>

#include "smp/memory/memory_plan.h"

namespace unreft::smp {

std::string DescribeBeside(const GuardMemory& guards, const StagingMemory& staging) {
  std::string beside;
  if (guards.guards > 0) {
    beside = fmt::format(" beside {} guards of this node, {} bytes together,", guards.guards,
                         guards.bytes + guards.lacking_bytes);
  }
  if (const uint64_t bytes = staging.bytes + staging.lacking_bytes; bytes > 0) {
    beside += fmt::format(" beside {} bytes for the staging of restores,", bytes);
  }
  return beside;
}

std::string MemoryBudget::Describe() const {
  return fmt::format("{} bytes of shared memory needed, {} held now, {} allowed by {}", needed,
                     existing, allowed, limit);
}

absl::StatusOr<MemoryBudget> CountMemory(SegmentStore& segments, const NodeOptions& options,
                                         MemoryUse existing, uint64_t more) {
  absl::StatusOr<MemoryCapacity> capacity = segments.Capacity();
  if (!capacity.ok()) return capacity.status();
  MemoryBudget budget;
  budget.existing = existing.bytes;
  budget.needed = SumBytes(budget.existing, more);
  budget.allowed = UINT64_MAX;
  const auto allow = [&](uint64_t bytes, const char* limit) {
    if (!budget.limit.empty() && bytes >= budget.allowed) return;
    budget.allowed = bytes;
    budget.limit = limit;
  };
  const auto allow_free = [&](uint64_t free, const char* limit) {
    allow(SumBytes(budget.existing, free - std::min(free, existing.unpopulated)), limit);
  };
  allow_free(capacity->segments_free, "free space of /dev/shm");
  allow_free(capacity->ram_available, "available memory");
  if (options.memory_bytes_max != 0) allow(options.memory_bytes_max, "memory_bytes_max");
  return budget;
}

}  // namespace unreft::smp
