#include "snapshot/open_rank.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>
#include <utility>

namespace unreft::snapshot {

struct OpenRank::Open {
  const pid_t pid = getpid();
  std::mutex mutex;
  std::set<std::string> keys;  // guarded by mutex
};

// The one of a process before the fork may be locked for ever; it is left.
OpenRank::Open& OpenRank::OfThisProcess() {
  static std::atomic<Open*> present = nullptr;
  Open* found = present.load();
  while (found == nullptr || found->pid != getpid()) {
    auto made = std::make_unique<Open>();
    if (present.compare_exchange_strong(found, made.get())) return *made.release();
  }
  return *found;
}

absl::StatusOr<std::unique_ptr<OpenRank>> OpenRank::Claim(const ClientIdentity& identity) {
  std::string key = fmt::format("{} {} {}", identity.job, identity.rank, identity.socket);
  Open& open = OfThisProcess();
  std::lock_guard lock(open.mutex);
  if (!open.keys.insert(key).second) {
    return absl::FailedPreconditionError(
        fmt::format("rank {} of job {} has a client in this process already: needed one at a time; "
                    "close that one first",
                    identity.rank, identity.job));
  }
  return std::unique_ptr<OpenRank>(new OpenRank(open, std::move(key)));
}

OpenRank::~OpenRank() {
  std::lock_guard lock(open_.mutex);
  open_.keys.erase(key_);
}

}  // namespace unreft::snapshot
