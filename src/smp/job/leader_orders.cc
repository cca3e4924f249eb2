// What an operator orders of the leader, beside what it decides by its rules.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <utility>

#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "smp/job/fresh_start.h"
#include "smp/job/leader.h"
#include "smp/job/resize.h"
#include "smp/job/rewind.h"

namespace unreft::smp {
namespace {

constexpr size_t kOrdersMax = 64;  // that wait

void LogPins(Log& log, const PinReply& changed, bool unpin) {
  for (const Pin& pin : changed.pins()) {
    log.Info("version {} is {} by '{}'", VersionOf(pin), unpin ? "unpinned" : "pinned",
             pin.owner());
  }
}

absl::Status Busy() {
  return absl::UnavailableError("the leader is busy with a decision; try again");
}

absl::Status HasChanged() { return absl::UnavailableError("the leader has changed; try again"); }

}  // namespace

void Leader::DeclareFreshStart(NodeSlot from, bool force, FreshStartDone done) {
  auto declared = std::make_shared<Timeline>();
  const auto make = [this, from, force, declared]() -> absl::StatusOr<meta::JobChange> {
    *declared = NextTimeline();
    absl::StatusOr<FreshStart> order =
        OrderFreshStart(from, force, *declared, store_.state(), CallRoll());
    if (!order.ok()) return order.status();
    log_.Warn("{}", order->said);
    return std::move(order->change);
  };
  Order(make, [declared, done = std::move(done)](const absl::Status& status) mutable {
    if (!status.ok()) return done(status);
    done(NumberOf(*declared) + 1);
  });
}

void Leader::Rewind(NodeSlot from, const RewindRequest& request, RewindDone done) {
  if (!request.has_step() && !request.cancel()) {
    if (!store_.ready()) return done(Busy());
    return done(DescribeRewind(store_.state(), CallRoll()));
  }
  const auto make = [this, from, request]() -> absl::StatusOr<meta::JobChange> {
    if (!store_.state().IsSeeded()) return Busy();
    absl::StatusOr<meta::JobChange> change =
        OrderRewind(request, store_.state(), CallRoll(), options_);
    if (!change.ok()) return change.status();
    const std::optional<Version> ordered = OrderedVersion(*change->timeline);
    log_.Warn("{}", ordered
                        ? fmt::format("by an order to node {} the next attempt restores version "
                                      "{}; newer ones are given up with that",
                                      from, *ordered)
                        : fmt::format("by an order to node {} the next attempt restores the "
                                      "newest version that is whole",
                                      from));
    return change;
  };
  Order(make, [this, done = std::move(done)](const absl::Status& status) mutable {
    if (!status.ok()) return done(status);
    done(DescribeRewind(store_.state(), CallRoll()));
  });
}

void Leader::Resize(NodeSlot from, const ResizeRequest& request, ResizeDone done) {
  if (!request.has_order() && !request.cancel()) {
    if (!store_.ready()) return done(Busy());
    return done(DescribeResize(store_.state(), CallRoll()));
  }
  const auto make = [this, from, request]() -> absl::StatusOr<meta::JobChange> {
    if (!store_.state().IsSeeded()) return Busy();
    absl::StatusOr<meta::JobChange> change = OrderResize(request, store_.state(), options_);
    if (!change.ok()) return change.status();
    log_.Info("by an order to node {} {}", from, DescribeOrder(*change->timeline));
    return change;
  };
  Order(make, [this, done = std::move(done)](const absl::Status& status) mutable {
    if (!status.ok()) return done(status);
    done(DescribeResize(store_.state(), CallRoll()));
  });
}

void Leader::Order(MakeOrder make, OrderDone done) {
  if (orders_.size() >= kOrdersMax) {
    return done(absl::ResourceExhaustedError(
        fmt::format("{} orders wait, the limit is {}; try again", orders_.size(), kOrdersMax)));
  }
  orders_.push_back({executor_.Now(), std::move(make), std::move(done)});
  CarryOutOrders();
}

void Leader::CarryOutOrders() {
  const auto alive = lifetime_.token();
  while (!alive.expired() && !writing_ && !orders_.empty()) {
    WaitingOrder first = std::move(orders_.front());
    orders_.pop_front();
    CarryOut(std::move(first));
  }
}

void Leader::CarryOut(WaitingOrder order) {
  const Duration waited = executor_.Now() - order.since;
  if (waited >= options_.call_timeout) {  // it may have been replaced by another one meanwhile
    return order.done(absl::UnavailableError(
        fmt::format("the leader had other records to write for {:.1f} s; try again",
                    std::chrono::duration<double>(waited).count())));
  }
  if (!store_.ready() || store_.state().timeline.value.closing()) return order.done(Busy());
  absl::StatusOr<meta::JobChange> change = order.make();
  if (!change.ok()) return order.done(change.status());
  WriteOrder(*std::move(change), [alive = lifetime_.token(), done = std::move(order.done)](
                                     const absl::Status& status) mutable {
    done(alive.expired() ? HasChanged() : status);
  });
}

// In turns of their own: whoever asks may be going, too.
void Leader::EndOrders() {
  for (WaitingOrder& order : orders_) {
    executor_.Post([done = std::move(order.done)]() mutable { done(HasChanged()); });
  }
}

void Leader::AskPins(PinRequest request, PinQueue::Done done) {
  pin_requests_.Add(std::move(request), std::move(done));
  RunRules();
}

void Leader::AnswerPin(absl::StatusOr<PinReply> answer, std::optional<meta::JobChange> change) {
  auto [request, done] = pin_requests_.TakeFirst();
  if (!change) return done(std::move(answer));
  WriteOrder(*std::move(change),
             [this, alive = lifetime_.token(), unpin = request.unpin(), reply = *std::move(answer),
              done = std::move(done)](const absl::Status& status) mutable {
               if (status.ok()) {
                 if (!alive.expired()) LogPins(log_, reply, unpin);
                 return done(std::move(reply));
               }
               // An outcome that is not known is asked for again: to set a pin is to renew it.
               done(absl::UnavailableError(
                   fmt::format("the pin was not written: {}; try again", status.message())));
             });
}

void Leader::WriteOrder(meta::JobChange change,
                        absl::AnyInvocable<void(const absl::Status&)> done) {
  writing_ = true;
  store_.Write(leadership_, std::move(change),
               [this, alive = lifetime_.token(),
                done = std::move(done)](const absl::Status& status) mutable {
                 if (!alive.expired()) writing_ = false;
                 done(status);
                 if (alive.expired()) return;
                 executor_.After(Duration{}, lifetime_.Bind([this] { RunRules(); }));
               });
}

}  // namespace unreft::smp
