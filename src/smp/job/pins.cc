#include "smp/job/pins.h"

#include <absl/strings/str_join.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>

#include "base/format.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {
namespace {

std::string Describe(const PinRecord& record) {
  if (record.pins().empty()) return "nothing is pinned";
  return absl::StrJoin(record.pins(), ", ", [](std::string* text, const Pin& pin) {
    text->append(fmt::format("version {} is pinned by '{}'", VersionOf(pin), pin.owner()));
  });
}

absl::StatusOr<PinReply> Remove(const PinRequest& request, PinRecord& record) {
  PinReply reply;
  const auto is_meant = [&](const Pin& pin) {
    return pin.owner() == request.owner() && (request.step() == 0 || pin.step() == request.step());
  };
  std::copy_if(record.pins().begin(), record.pins().end(),
               google::protobuf::RepeatedFieldBackInserter(reply.mutable_pins()), is_meant);
  if (reply.pins().empty()) {
    return absl::NotFoundError(fmt::format(
        "unpin: no pin of '{}'{}; {}", request.owner(),
        request.step() == 0 ? "" : fmt::format(" on step {}", request.step()), Describe(record)));
  }
  auto& pins = *record.mutable_pins();
  pins.erase(std::remove_if(pins.begin(), pins.end(), is_meant), pins.end());
  return reply;
}

absl::Status CheckRoom(const PinRequest& request, Version version, uint32_t slots,
                       const PinRecord& record) {
  std::set<Version> pinned;
  for (const Pin& pin : record.pins()) pinned.insert(VersionOf(pin));
  const bool needs_slot = !pinned.contains(version);
  if (needs_slot && pinned.size() >= slots) {
    return absl::ResourceExhaustedError(
        fmt::format("pin of version {} for '{}': 1 pin slot needed, 0 of {} free: {}{}", version,
                    request.owner(), slots, Describe(record),
                    slots == 0 ? "; start unreftd with --pins 1 or more" : ""));
  }
  if (record.pins_size() >= kPinsKept) {
    return absl::ResourceExhaustedError(
        fmt::format("pin of version {} for '{}': {} pins, the "
                    "limit is {}",
                    version, request.owner(), record.pins_size(), kPinsKept));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsPinned(const PinRecord& record, Version version) {
  return std::any_of(record.pins().begin(), record.pins().end(),
                     [&](const Pin& pin) { return VersionOf(pin) == version; });
}

absl::StatusOr<PinReply> ChangePins(const PinRequest& request, Version committed, uint64_t world,
                                    uint32_t slots, PinRecord& record) {
  if (request.owner().empty() || request.owner().size() > kPinOwnerBytesMax) {
    return absl::InvalidArgumentError(
        fmt::format("pin: an owner of 1 to {} bytes is needed, found {}", kPinOwnerBytesMax,
                    request.owner().size()));
  }
  if (request.unpin()) return Remove(request, record);
  if (request.for_ms() == 0) {
    return absl::InvalidArgumentError(
        fmt::format("pin for '{}': it needs a time of 1 ms or more", request.owner()));
  }
  if (world == 0) {
    return absl::NotFoundError(fmt::format("pin for '{}': nothing is committed", request.owner()));
  }
  // One's own pin is renewed where it is, also when a newer version is committed by now.
  auto& pins = *record.mutable_pins();
  auto own = std::find_if(pins.begin(), pins.end(), [&](const Pin& pin) {
    return pin.owner() == request.owner() &&
           (request.step() == 0 ? VersionOf(pin) == committed : pin.step() == request.step());
  });
  if (own == pins.end()) {
    if (request.step() != 0 && request.step() != committed.step.value) {
      return absl::FailedPreconditionError(
          fmt::format("pin of step {} for '{}': only what was committed last can be pinned, that "
                      "is {}",
                      request.step(), request.owner(), committed));
    }
    if (absl::Status status = CheckRoom(request, committed, slots, record); !status.ok()) {
      return status;
    }
    SetVersion(committed, *pins.Add());
    own = std::prev(pins.end());
    own->set_owner(request.owner());
  }
  own->set_for_ms(request.for_ms());
  record.set_newest_number(record.newest_number() + 1);
  own->set_number(record.newest_number());
  PinReply reply;
  *reply.add_pins() = *own;
  return reply;
}

bool DropPins(const std::set<uint64_t>& is_over, const recovery::TimelineChain& chain,
              PinRecord& record) {
  auto& pins = *record.mutable_pins();
  const int before = pins.size();
  pins.erase(std::remove_if(pins.begin(), pins.end(),
                            [&](const Pin& pin) {
                              return is_over.contains(pin.number()) ||
                                     !chain.IsLive(VersionOf(pin));
                            }),
             pins.end());
  return pins.size() < before;
}

PinClock::~PinClock() {
  for (const auto& [number, timer] : running_) executor_.Cancel(timer);
}

void PinClock::Follow(const PinRecord& record) {
  std::set<uint64_t> numbers;
  for (const Pin& pin : record.pins()) {
    numbers.insert(pin.number());
    if (over_.contains(pin.number()) || running_.contains(pin.number())) continue;
    // What no clock counts to is as good as for ever.
    const auto time =
        std::chrono::milliseconds(std::min<uint64_t>(pin.for_ms(), uint64_t{1} << 42));
    running_[pin.number()] = executor_.After(time, [this, number = pin.number()] {
      running_.erase(number);
      over_.insert(number);
      on_over_();
    });
  }
  std::erase_if(over_, [&](uint64_t number) { return !numbers.contains(number); });
  std::erase_if(running_, [&](const auto& entry) {
    if (numbers.contains(entry.first)) return false;
    executor_.Cancel(entry.second);
    return true;
  });
}

}  // namespace unreft::smp
