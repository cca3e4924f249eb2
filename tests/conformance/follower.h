// Follower: what the key "k" was set to, in order, as a user of a Kv follows it: a watch that ends
// with its connection is made again from behind its last event.
#pragma once

#include <absl/status/status.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/lifetime.h"
#include "meta/kv.h"

namespace unreft::meta {

// Destroyed in a turn, or when none runs.
class Follower {
 public:
  Follower(Kv& kv, Executor& executor) : kv_(kv), executor_(executor) {}
  // In a turn; follows from `start` on.
  void Start(Revision start) {
    kv_.Watch(
        {"k"}, start,
        [this](std::vector<WatchEvent> events) {
          values_.push_back(events.front().kv.value);
          last_ = events.front().kv.mod_revision;
        },
        [this, start](absl::Status status) {
          ++ends_;
          if (!absl::IsUnavailable(status)) {
            end_ = std::move(status);
            return;
          }
          const Revision next = last_.value == 0 ? start : Revision{last_.value + 1};
          executor_.After(std::chrono::milliseconds(5),
                          lifetime_.Bind([this, next] { Start(next); }));
        });
  }

  const std::vector<std::string>& values() const { return values_; }
  size_t ends() const { return ends_; }  // of watches, for whatever reason
  // Why it follows no more.
  const std::optional<absl::Status>& end() const { return end_; }

 private:
  Kv& kv_;
  Executor& executor_;
  Revision last_;
  std::vector<std::string> values_;
  size_t ends_ = 0;
  std::optional<absl::Status> end_;
  Lifetime lifetime_;
};

}  // namespace unreft::meta
