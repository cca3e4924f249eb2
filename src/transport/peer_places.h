// PeerPlaces: the places of a server that its peers share. As long as some are free anybody gets
// one; when none is, a peer that holds fewer than another gets one of that other's, so that nobody
// is shut out by what one peer holds. Thread-safe.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

namespace unreft {

class PeerPlaces {
 public:
  using End = std::function<void(const absl::Status&)>;

  // `option`: what limits them, for messages.
  PeerPlaces(std::string option, size_t most) : option_(std::move(option)), most_(most) {}

  // A place for `peer`, numbered for Give. When all are taken, the newest one of the peer that
  // holds the most is ended and goes to this one; ResourceExhausted if that peer would then hold
  // fewer than this one. `end` is called at most once, on the thread of whoever takes the place.
  absl::StatusOr<uint64_t> Take(const std::string& peer, End end);
  // It is free; `end` may be under way. One that was ended, or 0, is none any more.
  void Give(const std::string& peer, uint64_t number);

 private:
  using Places = std::map<uint64_t, End>;  // the newest last

  const std::string option_;
  const size_t most_;
  std::mutex mutex_;                     // covers the rest
  std::map<std::string, Places> peers_;  // those that hold any
  size_t taken_ = 0;
  uint64_t last_number_ = 0;
};

}  // namespace unreft
