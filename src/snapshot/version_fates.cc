#include "snapshot/version_fates.h"

#include <fmt/format.h>

#include <utility>

namespace unreft::snapshot {

void VersionFates::Started(Version version) {
  fates_[version];
  ForgetOldest();
}

void VersionFates::Committed(Version version) {
  // A version that was never committed will not be once a newer one is.
  for (auto it = fates_.begin(); it != fates_.end() && it->first < version; ++it) {
    if (it->second.known) continue;
    Settle(it->first, absl::AbortedError(fmt::format(
                          "the snapshot of step {} is not committed: step {} was before it",
                          it->first.step, version.step)));
  }
  Settle(version, absl::OkStatus());
  ForgetOldest();
}

void VersionFates::Failed(Version version, const std::string& why) {
  Settle(version, absl::AbortedError(fmt::format("the snapshot of step {} is not committed: {}",
                                                 version.step, why)));
  ForgetOldest();
}

// What is heard of late must not take the place of what has just begun.
void VersionFates::ForgetOldest() {
  while (fates_.size() > versions_max_) fates_.erase(fates_.begin());
}

void VersionFates::Settle(Version version, const absl::Status& status) {
  Fate& fate = fates_[version];
  if (fate.known && (fate.status.ok() || !status.ok())) return;
  fate.known = true;
  fate.status = status;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    auto waiting = it++;
    if (waiting->version == version) Answer(waiting, status);
  }
}

void VersionFates::Wait(Version version, Duration timeout, Done done) {
  const auto fate = fates_.find(version);
  waiting_.push_back({++last_id_, version, std::move(done)});
  auto waiting = std::prev(waiting_.end());
  if (fate == fates_.end()) {
    return Answer(waiting, absl::NotFoundError(
                               fmt::format("there was no snapshot of step {}", version.step)));
  }
  if (fate->second.known) return Answer(waiting, fate->second.status);
  waiting->timer = executor_.After(
      timeout, lifetime_.Bind([this, id = last_id_, timeout] { Expire(id, timeout); }));
}

void VersionFates::Answer(std::list<Waiting>::iterator waiting, absl::Status status) {
  executor_.Cancel(waiting->timer);
  executor_.Post([done = std::move(waiting->done), status = std::move(status)]() mutable {
    done(std::move(status));
  });
  waiting_.erase(waiting);
}

void VersionFates::Expire(uint64_t id, Duration timeout) {
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    if (it->id != id) continue;
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
    return Answer(it, absl::DeadlineExceededError(fmt::format(
                          "the snapshot of step {} was not committed by all ranks within {} ms",
                          it->version.step, ms)));
  }
}

}  // namespace unreft::snapshot
