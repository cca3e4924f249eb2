#include "smp/job/leader_calls.h"

#include <fmt/format.h>

#include <utility>

#include "base/format.h"

namespace unreft::smp {
namespace {

absl::Status NoLeader() { return absl::UnavailableError("the job has no leader now; try again"); }

}  // namespace

std::optional<NodeSlot> LeaderCalls::LeaderSlot() const {
  const auto& leader = store_.state().leader;
  if (!store_.ready() || !leader.exists()) return std::nullopt;
  return NodeSlot{leader.value.slot()};
}

void LeaderCalls::DeclareFreshStart(bool force, Coordinator::FreshStartDone done) {
  const std::optional<NodeSlot> leader = LeaderSlot();
  if (!leader) {
    return executor_.Post([done = std::move(done)]() mutable { done(NoLeader()); });
  }
  FreshStartRequest request;
  request.set_force(force);
  peers_.Ask<FreshStartReply>(
      *leader, "fresh-start", request, options_.call_timeout,
      [done = std::move(done)](absl::StatusOr<FreshStartReply> reply) mutable {
        if (!reply.ok()) return done(reply.status());
        done(reply->timeline());
      });
}

void LeaderCalls::AskPins(PinRequest request, Coordinator::PinDone done) {
  const std::optional<NodeSlot> leader = LeaderSlot();
  if (!leader) {
    return executor_.Post([done = std::move(done)]() mutable { done(NoLeader()); });
  }
  peers_.Ask<PinReply>(*leader, "pins", request, options_.call_timeout, std::move(done));
}

void LeaderCalls::AskRewind(const RewindRequest& request, RewindDone done) {
  const std::optional<NodeSlot> leader = LeaderSlot();
  if (!leader) {
    return executor_.Post([done = std::move(done)]() mutable { done(NoLeader()); });
  }
  peers_.Ask<RewindReply>(*leader, "rewind", request, options_.call_timeout, std::move(done));
}

void LeaderCalls::AskResize(const ResizeRequest& request, Coordinator::ResizeDone done) {
  const std::optional<NodeSlot> leader = LeaderSlot();
  if (!leader) {
    return executor_.Post([done = std::move(done)]() mutable { done(NoLeader()); });
  }
  peers_.Ask<ResizeReply>(*leader, "resize", request, options_.call_timeout, std::move(done));
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
