#include "tests/sim/fault_plan.h"

#include <algorithm>
#include <iterator>

namespace unreft::sim {
namespace {

using std::chrono::milliseconds;

struct Kind {
  Fault fault;
  std::string_view name;
  uint64_t weight;  // among the kinds of a run
  uint64_t one_in;  // how many runs have it
};

constexpr Kind kKinds[] = {
    {Fault::kKillTrainer, "kill a trainer", 6, 1},
    {Fault::kKillDaemon, "kill the daemon", 6, 1},
    {Fault::kKillBoth, "kill the daemon and a trainer", 3, 2},
    {Fault::kCutConnections, "cut the connections", 3, 2},
    {Fault::kFailDiskWrites, "fail disk writes", 2, 3},
    {Fault::kFillDisk, "fill the disk", 1, 4},
    {Fault::kFlipBit, "flip a bit", 3, 3},
    {Fault::kReboot, "reboot the host", 1, 6},
    {Fault::kStallDevice, "stall the device", 2, 3},
    {Fault::kFailDevice, "fail a copy", 2, 3},
    {Fault::kSuspendDaemon, "suspend the daemon", 2, 3},
    {Fault::kSuspendTrainer, "suspend a trainer", 2, 3},
    {Fault::kFillMemory, "fill the memory", 1, 4},
    {Fault::kOtherWorld, "restart with another world", 3, 2},
    {Fault::kSlowPool, "slow the work pool", 1, 4},
};

}  // namespace

std::string_view FaultName(Fault fault) {
  return std::ranges::find(kKinds, fault, &Kind::fault)->name;
}

FaultPlan::FaultPlan(Random random, Duration end) : random_(random), end_(end) {
  for (const Kind& kind : kKinds) {
    if (!random_.OneIn(kind.one_in)) continue;
    kinds_.insert(kinds_.end(), kind.weight, kind.fault);
  }
  pause_max_ = milliseconds(20 + random_.Below(200));
  Advance(Duration{});
}

void FaultPlan::Advance(Duration now) {
  PlannedFault fault{};
  fault.fault = kinds_[random_.Below(kinds_.size())];
  fault.moment = static_cast<Moment>(random_.Below(6));
  fault.not_before = now + Duration(random_.Below(pause_max_.count()));
  fault.not_after = fault.not_before + milliseconds(30);
  next_ = fault;
  if (fault.not_before > end_) next_.reset();
}

}  // namespace unreft::sim
