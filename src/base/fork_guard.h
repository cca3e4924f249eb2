// Keeps descriptors of ours out of forked children, which would keep alive what they stand for: the
// memory of a segment that was removed, the connection of a trainer that is gone.
//
// A child of fork closes what is listed; close-on-exec does not help where nothing is executed. Any
// thread. The handlers of fork are installed with the first use.
#pragma once

namespace unreft {

// No thread of the process forks while one lives: for descriptors that are open for a moment only,
// or not listed yet. One per thread at a time; short.
class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
};

// Lists a descriptor. Destroyed before the descriptor is closed; a fork in between is kept out by a
// ForkGuard, or hands on the descriptor.
class ClosedInChildren {
 public:
  // A table that is full, with 256, leaves it out.
  explicit ClosedInChildren(int fd);
  ~ClosedInChildren();
  ClosedInChildren(const ClosedInChildren&) = delete;
  ClosedInChildren& operator=(const ClosedInChildren&) = delete;

 private:
  int place_ = -1;
};

}  // namespace unreft
