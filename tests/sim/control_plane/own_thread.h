// OwnThread: a thread that runs what it is given, one task after the other, while who gives it
// waits. In a process of its own a daemon has its heap to itself; in one thread with a thousand
// others it would search what they have freed. A thread has an arena of its own in glibc's malloc.
// Between two turns of a daemon, ranks train on the processors that it shares with them, and fill
// their caches with what is theirs: a task can be run as it is after that.
#pragma once

#include <cstddef>
#include <semaphore>
#include <thread>
#include <vector>

#include "base/executor.h"

namespace unreft::sim {

class OwnThread {
 public:
  OwnThread();
  ~OwnThread();
  OwnThread(const OwnThread&) = delete;
  OwnThread& operator=(const OwnThread&) = delete;

  // Returns when `task` has run and is destroyed, both on the thread.
  void Run(Task task);
  // As if others had used so many bytes of memory here: what was in the caches is there no more, as
  // far as these do not have room for both. Never less than what fills the second-level cache.
  void LetOthersUse(size_t bytes);
  // Of the thread's CPU time, what all that was run has taken.
  double cpu_ms() const { return cpu_ms_; }

 private:
  void Hand(Task task);  // null: the thread ends
  void Loop();

  Task task_;
  double cpu_ms_ = 0;
  std::vector<std::byte> others_;  // what others use; twice as much as all caches hold
  size_t next_ = 0;                // in these: the one that was used longest ago
  std::binary_semaphore given_{0};
  std::binary_semaphore done_{0};
  std::thread thread_;  // last: it uses all of these
};

}  // namespace unreft::sim
