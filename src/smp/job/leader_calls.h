// LeaderCalls: what a node asks whoever leads the job, for its desks and for its operator.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <optional>
#include <string>

#include "base/executor.h"
#include "base/ids.h"
#include "meta/job_store.h"
#include "smp/core/node_options.h"
#include "smp/job/coordinator.h"
#include "smp/job/peers.h"

namespace unreft::smp {

// Single-threaded on the node's executor. The other end is Leading.
class LeaderCalls {
 public:
  // `may_order`: why an order from here is none of the job's, if it is none. All outlive this.
  LeaderCalls(Executor& executor, const meta::JobStore& store, Peers& peers,
              const NodeOptions& options, absl::AnyInvocable<absl::Status()> may_order)
      : executor_(executor),
        store_(store),
        peers_(peers),
        options_(options),
        may_order_(std::move(may_order)) {}

  // Orders. Each is Unavailable while nobody is known to lead.
  void DeclareFreshStart(bool force, Coordinator::FreshStartDone done);
  void AskPins(const PinRequest& request, Coordinator::PinDone done);
  void AskRewind(const RewindRequest& request, Coordinator::RewindDone done);
  void AskResize(const ResizeRequest& request, Coordinator::ResizeDone done);
  using ExposureDone = absl::AnyInvocable<void(absl::StatusOr<ExposureReply>)>;
  void AskExposure(ExposureDone done);

 private:
  std::optional<NodeSlot> LeaderSlot() const;
  template <typename Reply, typename Request>
  void AskLeader(const std::string& method, const Request& request,
                 absl::AnyInvocable<void(absl::StatusOr<Reply>)> done);

  Executor& executor_;
  const meta::JobStore& store_;
  Peers& peers_;
  const NodeOptions& options_;
  absl::AnyInvocable<absl::Status()> may_order_;
};

}  // namespace unreft::smp
