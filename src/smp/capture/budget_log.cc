#include "smp/capture/budget_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "smp/desk/node_memory.h"
#include "smp/memory/memory_plan.h"

namespace unreft::smp {
namespace {

constexpr Duration kDelay = std::chrono::milliseconds(500);

}  // namespace

void BudgetLog::TellSoon() {
  state_.seams.executor.Cancel(timer_);
  timer_ = state_.seams.executor.After(kDelay, [this] { Tell(); });
}

void BudgetLog::Tell() {
  timer_ = TimerId::kNone;
  uint64_t ranks = 0;
  uint64_t version_bytes = 0;
  for (const auto& [rank, session] : state_.sessions) {
    if (!session->registration) return;  // it is told once that one has, too
    ++ranks;
    version_bytes = std::max(version_bytes, session->registration->plan.data_bytes());
  }
  if (ranks == 0) return;
  const MemoryPlan memory = PromisedMemory(state_);
  std::string more;
  if (memory.guards > 0) {
    more = fmt::format(", {} guards of other nodes' slabs {}, if those are as large", memory.guards,
                       memory.guard_bytes);
  }
  if (memory.staging_bytes > 0) {
    more += fmt::format(", the staging of restores {}", memory.staging_bytes);
  }
  std::string told = fmt::format(
      "{} slots of {} ranks take {} bytes of shared memory ({} per rank, {} of them "
      "for pins, for versions of up to {} bytes){}, records and control pages {}: {} bytes "
      "together",
      memory.slots, ranks, memory.slot_bytes, state_.options.SlotsPerRank(), state_.options.pins,
      version_bytes, more, memory.control_bytes, memory.Sum());
  if (const uint64_t scratch = ScratchBytes(state_.options); scratch > 0) {
    told += fmt::format("; coding takes up to {} of the daemon's own memory", scratch);
  }
  if (told == std::exchange(told_, told)) return;
  state_.seams.log.Info("memory budget: {}", told);
}

}  // namespace unreft::smp
