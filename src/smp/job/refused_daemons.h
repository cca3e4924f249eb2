// RefusedDaemons: says of each daemon that was not let into the job which one it is, and why.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/log.h"
#include "meta/job_store.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class RefusedDaemons {
 public:
  // Both outlive this.
  RefusedDaemons(Log& log, const meta::JobState& job) : log_(log), job_(job) {}

  // The records are others. One that a supervisor starts again and again says the same: it is said
  // once.
  void Follow();

 private:
  Log& log_;
  const meta::JobState& job_;
  std::map<uint64_t, std::string> said_;  // why, by place
};

}  // namespace unreft::smp
