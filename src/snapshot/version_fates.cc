#include "snapshot/version_fates.h"

#include <fmt/format.h>

#include <utility>

namespace unreft::snapshot {

VersionFates::Fate* VersionFates::Find(Version version) {
  for (Fate& fate : fates_) {
    if (fate.version == version) return &fate;
  }
  return nullptr;
}

VersionFates::Fate& VersionFates::At(Version version) {
  if (Fate* fate = Find(version)) return *fate;
  if (fates_.size() >= versions_max_) fates_.pop_front();
  return fates_.emplace_back(Fate{.version = version});
}

void VersionFates::Started(Version version) { At(version); }

void VersionFates::Committed(Version version) {
  // A version that was never committed will not be once a newer one is.
  for (Fate& fate : fates_) {
    if (fate.version < version && !fate.known) {
      Settle(fate.version, absl::AbortedError(fmt::format(
                               "the snapshot of step {} is not committed: step {} was before it",
                               fate.version.step, version.step)));
    }
  }
  Settle(version, absl::OkStatus());
}

void VersionFates::Failed(Version version, const std::string& why) {
  Settle(version, absl::AbortedError(fmt::format("the snapshot of step {} is not committed: {}",
                                                 version.step, why)));
}

void VersionFates::Settle(Version version, const absl::Status& status) {
  Fate& fate = At(version);
  if (fate.known && (fate.status.ok() || !status.ok())) return;
  fate.known = true;
  fate.status = status;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    auto waiting = it++;
    if (waiting->version == version) Answer(waiting, status);
  }
}

void VersionFates::Wait(Version version, Duration timeout, Done done) {
  const Fate* fate = Find(version);
  waiting_.push_back({++last_id_, version, std::move(done)});
  auto waiting = std::prev(waiting_.end());
  if (fate == nullptr) {
    return Answer(waiting, absl::NotFoundError(
                               fmt::format("there was no snapshot of step {}", version.step)));
  }
  if (fate->known) return Answer(waiting, fate->status);
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
