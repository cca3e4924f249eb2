// SimDrain: the drain of a simulated node. What it does is the product's, over a shelf that is a
// fake; how long it takes is drawn. It writes no copies: those are the simulation's own
// (DurableShelf).
#pragma once

#include <absl/status/statusor.h>
#include <unreft/copy.pb.h>

#include <string>

#include "base/lifetime.h"
#include "base/random.h"
#include "base/segment_store.h"
#include "smp/core/drain_process.h"
#include "tests/fakes/sim_executor.h"
#include "tests/sim/cluster/durable_shelf.h"

namespace unreft::sim {

class SimDrain final : public smp::DrainProcess {
 public:
  // All outlive this, which ends without another word when it is destroyed.
  SimDrain(SimExecutor& executor, SegmentStore& segments, Random& random, DurableShelf& shelf)
      : executor_(executor), segments_(segments), random_(random), shelf_(shelf) {}

  absl::Status Start(const std::string& order,
                     absl::AnyInvocable<void(const std::string& line)> on_line,
                     absl::AnyInvocable<void()> on_end) override;
  void Stop() override { is_stopped_ = true; }

 private:
  absl::StatusOr<CopyPartReply> CarryOut(const CopyPartRequest& order);

  SimExecutor& executor_;
  SegmentStore& segments_;
  Random& random_;
  DurableShelf& shelf_;
  bool runs_ = false;
  bool is_stopped_ = false;
  Lifetime lifetime_;
};

}  // namespace unreft::sim
