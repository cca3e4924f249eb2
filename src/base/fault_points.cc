#include "base/fault_points.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

namespace unreft {

absl::Status FaultPoints::Parse(std::string_view part, Points& points) {
  const auto bad = [&] {
    return absl::InvalidArgumentError(fmt::format(
        "fault point \"{}\": needs NAME=fail[:N], NAME=crash[:N] or NAME=off, N from 1", part));
  };
  const size_t equals = part.find('=');
  if (equals == std::string_view::npos || equals == 0) return bad();
  std::string_view action = part.substr(equals + 1);
  Point point;
  if (const size_t colon = action.find(':'); colon != std::string_view::npos) {
    const std::string count(action.substr(colon + 1));
    if (!absl::SimpleAtoi(count, &point.at) || point.at == 0) return bad();
    action = action.substr(0, colon);
  }
  if (action == "fail") {
    point.action = Action::kFail;
  } else if (action == "crash") {
    point.action = Action::kCrash;
  } else if (action != "off" || point.at != 0) {
    return bad();
  }
  points[std::string(part.substr(0, equals))] = point;
  return absl::OkStatus();
}

absl::Status FaultPoints::Arm(std::string_view spec) {
  Points points;
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(spec.data(), spec.size()), ',', absl::SkipEmpty());
  for (const std::string& part : parts) {
    if (absl::Status status = Parse(part, points); !status.ok()) return status;
  }
  std::lock_guard lock(mutex_);
  for (auto& [name, point] : points) points_[name] = point;
  if (!points_.empty()) armed_ = true;
  return absl::OkStatus();
}

absl::Status FaultPoints::CheckArmed(std::string_view name) {
  std::lock_guard lock(mutex_);
  auto found = points_.find(name);
  if (found == points_.end()) found = points_.emplace(name, Point{}).first;
  Point& point = found->second;
  ++point.passed;
  if (point.action == Action::kOff || (point.at != 0 && point.at != point.passed)) {
    return absl::OkStatus();
  }
  if (point.action == Action::kCrash) kill(getpid(), SIGKILL);
  return absl::AbortedError(fmt::format("fault point {}", name));
}

uint64_t FaultPoints::passed(std::string_view name) const {
  std::lock_guard lock(mutex_);
  const auto found = points_.find(name);
  return found == points_.end() ? 0 : found->second.passed;
}

}  // namespace unreft
