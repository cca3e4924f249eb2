#include "smp/job/leader_calls.h"

#include <fmt/format.h>

#include <utility>

#include "base/format.h"

namespace unreft::smp {
std::optional<NodeSlot> LeaderCalls::LeaderSlot() const {
  const auto& leader = store_.state().leader;
  if (!store_.ready() || !leader.exists()) return std::nullopt;
  return NodeSlot{leader.value.slot()};
}

template <typename Reply, typename Request>
void LeaderCalls::AskLeader(const std::string& method, const Request& request,
                            absl::AnyInvocable<void(absl::StatusOr<Reply>)> done) {
  if (absl::Status status = may_order_(); !status.ok()) {
    return executor_.Post([status = std::move(status), done = std::move(done)]() mutable {
      done(std::move(status));
    });
  }
  if (const std::optional<NodeSlot> leader = LeaderSlot()) {
    return peers_.Ask<Reply>(*leader, method, request, options_.call_timeout, std::move(done));
  }
  executor_.Post([done = std::move(done)]() mutable {
    done(absl::UnavailableError("the job has no leader now; try again"));
  });
}

void LeaderCalls::DeclareFreshStart(bool force, Coordinator::FreshStartDone done) {
  FreshStartRequest request;
  request.set_force(force);
  AskLeader<FreshStartReply>(
      "fresh-start", request,
      [done = std::move(done)](absl::StatusOr<FreshStartReply> reply) mutable {
        if (!reply.ok()) return done(reply.status());
        done(reply->timeline());
      });
}

void LeaderCalls::AskPins(const PinRequest& request, Coordinator::PinDone done) {
  AskLeader<PinReply>("pins", request, std::move(done));
}

void LeaderCalls::AskRewind(const RewindRequest& request, Coordinator::RewindDone done) {
  AskLeader<RewindReply>("rewind", request, std::move(done));
}

void LeaderCalls::AskResize(const ResizeRequest& request, Coordinator::ResizeDone done) {
  AskLeader<ResizeReply>("resize", request, std::move(done));
}

void LeaderCalls::AskExposure(ExposureDone done) {
  const std::optional<NodeSlot> leader = LeaderSlot();
  if (!leader) {
    const absl::Status none = absl::UnavailableError(
        fmt::format("node {} knows of no leader{}{}", options_.node,
                    store_.status().ok() ? "" : ": ", store_.status().message()));
    return executor_.Post([none, done = std::move(done)]() mutable { done(none); });
  }
  peers_.Ask<ExposureReply>(*leader, "exposure", ExposureRequest(), options_.call_timeout,
                            std::move(done));
}

}  // namespace unreft::smp
