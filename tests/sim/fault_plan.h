// FaultPlan: which faults of a run happen when, drawn from the seed.
//
// Each run has some kinds of fault and not others, so that every mixture comes up. A fault waits
// for a moment that is worth it (a capture, a restore, a decision, a seal under way), or a while.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/executor.h"
#include "base/random.h"

namespace unreft::sim {

enum class Fault {
  kKillTrainer,
  kKillDaemon,
  kKillBoth,
  kCutConnections,
  kFailDiskWrites,
  kFillDisk,
  kFlipBit,
  kReboot,
  kStallDevice,
  kFailDevice,
  kSuspendDaemon,
  kSuspendTrainer,
  kFillMemory,
  kOtherWorld,
  kSlowPool,
};

std::string_view FaultName(Fault fault);

enum class Moment { kNow, kCapturing, kRestoring, kDeciding, kSealing, kStarting };

struct PlannedFault {
  Fault fault;
  Moment moment;
  Duration not_before{};
  Duration not_after{};  // then it happens at any moment
};

class FaultPlan {
 public:
  FaultPlan(Random random, Duration end);

  // The next fault; none when there are no more.
  const std::optional<PlannedFault>& next() const { return next_; }
  // The next one is over; draws another.
  void Advance(Duration now);

 private:
  Random random_;
  const Duration end_;
  Duration pause_max_;
  std::vector<Fault> kinds_;
  std::optional<PlannedFault> next_;
};

}  // namespace unreft::sim
