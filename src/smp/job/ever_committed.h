// EverCommittedQuestions: whether anything was ever committed in the job, for those who ask before
// that is known.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>

#include "base/executor.h"
#include "meta/job_store.h"
#include "smp/core/node_options.h"
#include "smp/job/coordinator.h"
#include "smp/job/kept_records.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class EverCommittedQuestions {
 public:
  // All outlive this.
  EverCommittedQuestions(Executor& executor, const meta::JobStore& store, const KeptRecords& kept,
                         const NodeOptions& options)
      : executor_(executor), store_(store), kept_(kept), options_(options) {}
  ~EverCommittedQuestions();

  // Answered once the store was read; Unavailable to one that has waited for call_timeout.
  void Ask(Coordinator::EverCommittedDone done);
  // The store was read.
  void Follow();

 private:
  struct Question {
    Coordinator::EverCommittedDone done;
    TimerId timer = TimerId::kNone;
  };

  bool EverCommitted() const;
  absl::Status WhyNotKnown() const;
  void Answer(uint64_t number, absl::StatusOr<bool> answer);

  Executor& executor_;
  const meta::JobStore& store_;
  const KeptRecords& kept_;
  const NodeOptions& options_;
  std::map<uint64_t, Question> questions_;
  uint64_t last_ = 0;
};

}  // namespace unreft::smp
