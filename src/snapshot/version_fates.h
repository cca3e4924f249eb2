// VersionFates: what became of the last versions, and who waits to know. Single-threaded.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <list>
#include <map>
#include <string>

#include "base/executor.h"
#include "base/ids.h"
#include "base/lifetime.h"

namespace unreft::snapshot {

class VersionFates {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  // Remembers the newest `versions_max` versions, whatever order they are heard of in.
  VersionFates(Executor& executor, size_t versions_max)
      : executor_(executor), versions_max_(versions_max) {}

  void Started(Version version);
  void Committed(Version version);
  // Skipped, given up or abandoned; what was committed stays so.
  void Failed(Version version, const std::string& why);

  // Answers, in a turn of its own, once the fate is known: OK, or Aborted; NotFound for a version
  // that never was; DeadlineExceeded.
  void Wait(Version version, Duration timeout, Done done);

 private:
  struct Fate {
    bool known = false;
    absl::Status status;  // once known
  };
  struct Waiting {
    uint64_t id = 0;
    Version version;
    Done done;
    TimerId timer = TimerId::kNone;
  };

  void ForgetOldest();
  void Settle(Version version, const absl::Status& status);
  void Answer(std::list<Waiting>::iterator waiting, absl::Status status);
  void Expire(uint64_t id, Duration timeout);

  Executor& executor_;
  const size_t versions_max_;
  std::map<Version, Fate> fates_;
  std::list<Waiting> waiting_;
  uint64_t last_id_ = 0;
  Lifetime lifetime_;
};

}  // namespace unreft::snapshot
