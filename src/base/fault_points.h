// FaultPoints: named places where a test makes the program fail.
//
// Compiled always, so that what is tested is what runs; an object given by constructor, where null
// or an unarmed one costs a load. Arming "crash" kills the calling process: only the mains of real
// processes do it, from --fault-points or UNREFT_FAULT_POINTS.
//
//   if (absl::Status status = CheckFault(faults_, "slot.seal"); !status.ok()) return status;
#pragma once

#include <absl/status/status.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace unreft {

// Thread-safe.
class FaultPoints {
 public:
  // Comma-separated, each added to what is armed:
  //   NAME=fail     every passing of the point fails
  //   NAME=fail:3   the third passing from now fails, once
  //   NAME=crash    the process ends by SIGKILL at the next passing; crash:3 at the third
  //   NAME=off
  // InvalidArgument names the part that is none of these, and then nothing was armed.
  absl::Status Arm(std::string_view spec);

  // Passes the point `name`: Aborted, naming it, when it is armed to fail now.
  absl::Status Check(std::string_view name) {
    if (!armed_.load(std::memory_order_relaxed)) return absl::OkStatus();
    return CheckArmed(name);
  }

  // How often `name` was passed since anything was armed.
  uint64_t passed(std::string_view name) const;

 private:
  enum class Action { kOff, kFail, kCrash };
  struct Point {
    Action action = Action::kOff;
    uint64_t at = 0;  // acts on this passing only; 0 = on each
    uint64_t passed = 0;
  };
  using Points = std::map<std::string, Point, std::less<>>;

  static absl::Status Parse(std::string_view part, Points& points);
  absl::Status CheckArmed(std::string_view name);

  std::atomic<bool> armed_ = false;  // whether anything ever was
  mutable std::mutex mutex_;         // covers the one below
  Points points_;
};

// Check for those who may have been given none.
inline absl::Status CheckFault(FaultPoints* points, std::string_view name) {
  return points == nullptr ? absl::OkStatus() : points->Check(name);
}

}  // namespace unreft
