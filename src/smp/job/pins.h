// Pins: committed versions that are kept, slots and guards and all, until who asked for it is done
// or the time is up (docs/design_notes.md, "A version that is kept").
//
// What is pinned is one record, of which the coordinator is in charge. Its clock is monotonic and
// its own: a coordinator that takes over counts each pin's time from the beginning.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <cstdint>
#include <map>
#include <set>

#include "base/executor.h"
#include "base/ids.h"
#include "recovery/timeline.h"

namespace unreft::smp {

// Of all owners together, on as few versions as there are slots for.
inline constexpr int kPinsKept = 64;
inline constexpr size_t kPinOwnerBytesMax = 64;

bool IsPinned(const PinRecord& record, Version version);

// Changes the record as asked, and says what was set or taken away. Only `committed` (of `world`
// ranks) can be pinned: of an older version some node may be giving its part away at this moment.
// ResourceExhausted naming what is pinned when none of the `slots` is free; NotFound,
// FailedPrecondition, InvalidArgument otherwise.
absl::StatusOr<PinReply> ChangePins(const PinRequest& request, Version committed, uint64_t world,
                                    uint32_t slots, PinRecord& record);

// Takes those away that `is_over` says, and those of versions that can never be restored any more.
// Whether there were any.
bool DropPins(const std::set<uint64_t>& is_over, const recovery::TimelineChain& chain,
              PinRecord& record);

// Whose time is up. Single-threaded on its executor.
class PinClock {
 public:
  // `on_over`: in a turn of its own.
  PinClock(Executor& executor, absl::AnyInvocable<void()> on_over)
      : executor_(executor), on_over_(std::move(on_over)) {}
  ~PinClock();

  // The record as it is now.
  void Follow(const PinRecord& record);

  // Numbers of pins of the record.
  const std::set<uint64_t>& over() const { return over_; }

 private:
  Executor& executor_;
  absl::AnyInvocable<void()> on_over_;
  std::map<uint64_t, TimerId> running_;
  std::set<uint64_t> over_;
};

}  // namespace unreft::smp
