// How the leader keeps versions that somebody has pinned (docs/design_notes.md, "A version that is
// kept").
#include <fmt/format.h>

#include <utility>

#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "smp/job/leader.h"

namespace unreft::smp {
namespace {

constexpr size_t kPinRequestsWaiting = 64;

void LogPins(Log& log, const PinReply& changed, bool unpin) {
  for (const Pin& pin : changed.pins()) {
    log.Info("version {} is {} by '{}'", VersionOf(pin), unpin ? "unpinned" : "pinned",
             pin.owner());
  }
}

}  // namespace

void Leader::AskPins(PinRequest request, PinDone done) {
  if (pin_requests_.size() >= kPinRequestsWaiting) {
    return done(absl::ResourceExhaustedError(
        fmt::format("{} requests for pins wait, the limit is {}; try again", pin_requests_.size(),
                    kPinRequestsWaiting)));
  }
  pin_requests_.push_back({std::move(request), std::move(done)});
  RunRules();
}

// One Txn at a time, as for all that the leader writes: so no newer version is committed, and none
// retired for it, between the look at the record and the pin.
bool Leader::KeepPins() {
  const meta::JobState& state = store_.state();
  pin_clock_.Follow(state.pins.value);
  PinRecord record = state.pins.value;
  if (DropPins(pin_clock_.over(), ChainOf(state.timeline.value), record)) {
    const int before = state.pins.value.pins_size();
    Announce(LogLevel::kInfo,
             fmt::format("pins: {} of {} are over", before - record.pins_size(), before));
    return Write({.pins = std::move(record)});
  }
  if (pin_requests_.empty() || state.timeline.value.closing()) return false;
  auto [request, done] = std::move(pin_requests_.front());
  pin_requests_.pop_front();
  absl::StatusOr<PinReply> reply = ChangePins(request, VersionOf(state.commit.value),
                                              state.commit.value.world(), options_.pins, record);
  if (!reply.ok()) {
    done(reply.status());
    return KeepPins();
  }
  writing_ = true;
  store_.Write(leadership_, {.pins = std::move(record)},
               [this, alive = lifetime_.token(), unpin = request.unpin(), reply = *std::move(reply),
                done = std::move(done)](absl::Status status) mutable {
                 if (status.ok()) {
                   if (!alive.expired()) LogPins(log_, reply, unpin);
                   done(std::move(reply));
                 } else {
                   // An outcome that is not known is asked for again: to set a pin is to renew it.
                   done(absl::UnavailableError(
                       fmt::format("the pin was not written: {}; try again", status.message())));
                 }
                 if (alive.expired()) return;
                 writing_ = false;
                 executor_.After(Duration{}, [this, alive] {
                   if (!alive.expired()) RunRules();
                 });
               });
  return true;
}

// They are answered in turns of their own: who asks may be going, too.
void Leader::RefusePins() {
  for (auto& waiting : pin_requests_) {
    executor_.Post([done = std::move(waiting.done)]() mutable {
      done(absl::UnavailableError("the leader has changed; try again"));
    });
  }
  pin_requests_.clear();
}

}  // namespace unreft::smp
