// SlotReading: the work pool reads a sealed slot, and ends early when the slot is wanted back.
//
//   kWaiting ──Begin──▶ kReading ──Stop──▶ kStopped
//      └───────Stop──────────────────────────▲
//
// Whoever frees the slot stops its readings. One that has not begun never touches the slot any
// more; one that has ends after the block that it is at, and until then the slot is not given to
// another version (docs/protocol.md, rule 6). So a capture waits for one checksum at most, however
// large the slab is and whatever stands before it in the pool.
#pragma once

#include <atomic>

namespace unreft::smp {

// Made for one reading. Thread-safe.
class SlotReading {
 public:
  // By the pool, before it touches the slot: whether it may.
  bool Begin() {
    State expected = State::kWaiting;
    return state_.compare_exchange_strong(expected, State::kReading);
  }
  // By the pool, between blocks.
  bool stopped() const { return state_.load(std::memory_order_relaxed) == State::kStopped; }

  // By the slot's owner. Whether it had begun: then the pool's `done` says when it has ended.
  bool Stop() { return state_.exchange(State::kStopped) != State::kWaiting; }

 private:
  enum class State { kWaiting, kReading, kStopped };

  std::atomic<State> state_ = State::kWaiting;
};

}  // namespace unreft::smp
