// GuardReads: the reads of one part of a guarding that are on their way from other members.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <cstdint>
#include <set>
#include <span>
#include <string>

#include "base/lifetime.h"
#include "smp/protect/guard_activity.h"
#include "smp/protect/guard_task.h"
#include "transport/transport.h"

namespace unreft::smp {

// Single-threaded on the node's executor. Each read counts as activity until it has ended.
class GuardReads {
 public:
  // `header`: of the answer, as bytes.
  using Done = absl::AnyInvocable<void(absl::StatusOr<std::string> header)>;

  GuardReads(const GuardTask& task, GuardActivity& activity) : task_(task), activity_(activity) {}
  ~GuardReads() { Cancel(); }
  GuardReads(const GuardReads&) = delete;
  GuardReads& operator=(const GuardReads&) = delete;

  // `done` is not called once the activity is cancelled; what it holds is kept until the last touch
  // of `into`.
  void Read(uint32_t member, const ReadRequest& request, std::span<std::byte> into, Done done);

  // Lets all of them end soon, with Cancelled.
  void Cancel();

 private:
  const GuardTask& task_;
  GuardActivity& activity_;
  std::set<TransferId> transfers_;
  Lifetime lifetime_;
};

// The header of one block and of that many that it was encoded of. DataLoss.
absl::StatusOr<ReadHeader> ParseBlockHeader(const std::string& bytes, size_t inputs);

}  // namespace unreft::smp
