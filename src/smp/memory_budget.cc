#include "smp/memory_budget.h"

#include <fmt/format.h>

#include <algorithm>

namespace unreft::smp {
namespace {

// Sums of bytes that nobody has do not wrap.
uint64_t Sum(uint64_t a, uint64_t b) { return b > UINT64_MAX - a ? UINT64_MAX : a + b; }

}  // namespace

std::string MemoryBudget::Describe() const {
  return fmt::format("{} bytes of shared memory needed, {} held now, {} allowed by {}", needed,
                     existing, allowed, limit);
}

absl::StatusOr<MemoryBudget> CountMemory(SegmentStore& segments, const NodeOptions& options,
                                         MemoryUse slots, MemoryUse guards, uint64_t more) {
  absl::StatusOr<MemoryCapacity> capacity = segments.Capacity();
  if (!capacity.ok()) return capacity.status();
  const uint64_t unpopulated = slots.unpopulated + guards.unpopulated;
  MemoryBudget budget;
  budget.existing = slots.bytes + guards.bytes;
  budget.needed = Sum(budget.existing, more);
  budget.allowed = UINT64_MAX;
  const auto allow = [&](uint64_t bytes, const char* limit) {
    if (!budget.limit.empty() && bytes >= budget.allowed) return;
    budget.allowed = bytes;
    budget.limit = limit;
  };
  const auto allow_free = [&](uint64_t free, const char* limit) {
    allow(Sum(budget.existing, free - std::min(free, unpopulated)), limit);
  };
  allow_free(capacity->segments_free, "free space of /dev/shm");
  allow_free(capacity->ram_available, "available memory");
  if (options.memory_bytes_max != 0) allow(options.memory_bytes_max, "memory_bytes_max");
  return budget;
}

}  // namespace unreft::smp
