#include "meta/job_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/format.h"
#include "meta/record_checks.h"

namespace unreft::meta {

Stamp JobState::stamp() const {
  Revision newest;
  ForEachShared(
      [&](const char*, auto record, auto) { newest = std::max(newest, (this->*record).modified); });
  return {IsSeeded() ? seed.value.epoch() : 0, newest.value};
}

bool IsOfAnotherJob(const TimelineRecord& decided, const TimelineRecord& known) {
  const uint64_t first = decided.first_timeline();
  return first != 0 && known.first_timeline() != 0 && first != known.first_timeline();
}

absl::Status CheckChange(const JobChange& change) {
  absl::Status status;
  ForEachShared([&](const char* name, auto, auto record) {
    if (!(change.*record) || !status.ok()) return;
    if (absl::Status wrong = CheckRecord(*(change.*record)); !wrong.ok()) {
      status = absl::InvalidArgumentError(
          fmt::format("the record {} to be written is wrong: {}", name, wrong.message()));
    }
  });
  return status;
}

}  // namespace unreft::meta
