// SilentRequests: requests of others that have begun and whose message has not come. They take no
// place from those that say something: each is ended after a while, and the oldest when there are
// too many. Thread-safe.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "base/executor.h"

namespace unreft {

class SilentRequests : public std::enable_shared_from_this<SilentRequests> {
 public:
  using End = std::function<void(const absl::Status&)>;

  // `executor` outlives this.
  SilentRequests(Executor& executor, Duration timeout, size_t most);

  // `end` is called at most once, on any thread. The number is for Remove.
  uint64_t Add(End end);
  // It has said something, or is over; `end` may be under way.
  void Remove(uint64_t number);

 private:
  struct Request {
    Time since;
    End end;
  };

  void Sweep();

  Executor& executor_;
  const Duration timeout_;
  const size_t most_;
  std::mutex mutex_;                      // covers the rest
  std::map<uint64_t, Request> requests_;  // the oldest first
  uint64_t last_number_ = 0;
  bool will_sweep_ = false;
};

}  // namespace unreft
