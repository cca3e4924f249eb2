#include "transport/peer_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace unreft {

absl::StatusOr<uint64_t> PeerPlaces::Take(const std::string& peer, End end) {
  Places::node_type ended;  // called and destroyed without the lock
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (taken_ >= most_) {
      const auto own = peers_.find(peer);
      const size_t held = own == peers_.end() ? 0 : own->second.size();
      const auto greediest = std::ranges::max_element(
          peers_, {}, [](const auto& other) { return other.second.size(); });
      if (greediest == peers_.end() || greediest->second.size() <= held + 1) {
        return absl::ResourceExhaustedError(
            fmt::format("{} places are taken, {} of them by this peer, {} is {}", taken_, held,
                        option_, most_));
      }
      ended = greediest->second.extract(std::prev(greediest->second.end()));
      --taken_;
    }
    number = ++last_number_;
    peers_[peer][number] = std::move(end);
    ++taken_;
  }
  if (ended) {
    ended.mapped()(absl::ResourceExhaustedError(fmt::format(
        "this peer holds the most places, and others need one, {} is {}", option_, most_)));
  }
  return number;
}

void PeerPlaces::Give(const std::string& peer, uint64_t number) {
  Places::node_type place;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  place = found->second.extract(number);
  if (place) --taken_;
  if (found->second.empty()) peers_.erase(found);
}

}  // namespace unreft
