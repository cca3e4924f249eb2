// OwnCopies: when the job is due a durable copy that nobody has asked for, by whichever daemon
// leads it, and which is the newest that there is.
#pragma once

#include <unreft/copy.pb.h>

#include <optional>
#include <string>

#include "base/lifetime.h"
#include "smp/core/drain_process.h"
#include "smp/desk/node_state.h"
#include "smp/job/member.h"
#include "smp/node/export_run.h"

namespace unreft::smp {

struct ExportPolicy {
  std::string directory;  // in which each copy has one of its own; empty: nothing is
  Duration every = std::chrono::minutes(30);  // from one copy to the next
  uint64_t keep = 3;                          // complete copies
  uint64_t bytes_per_s = 0;
};

// Single-threaded on the node's executor.
class OwnCopies {
 public:
  // The newest complete copy in the policy's directory, of whoever leads.
  struct Newest {
    Version version;  // 0:0: there is no copy
    Time ordered;
  };

  // All outlive this; without a drain nothing is ever due.
  OwnCopies(NodeState& state, Member& member, DrainProcess* drain, ExportPolicy policy);

  // The copy that is due, if none is `under_way`; looks first what there is. To be called every
  // second.
  std::optional<ExportWish> Due(bool under_way);
  // A run of what was due has ended.
  void OnEnded(const ExportRun& run);

  const ExportPolicy& policy() const { return policy_; }
  // None while that is not known.
  const std::optional<Newest>& newest() const { return newest_; }
  Duration AgeOf(const Newest& newest) const;
  // Why the last copy that was due was not made, or the directory not read; empty: it was.
  const std::string& last_error() const { return last_error_; }
  // Looks at the directory that have failed.
  uint64_t failed_surveys() const { return failed_surveys_; }

 private:
  void Survey();
  void OnSurveyed(const CopyPartReply& said);
  void SetSurveyError(const std::string& error);

  NodeState& state_;
  Member& member_;
  DrainProcess* const drain_;
  const ExportPolicy policy_;
  std::optional<Newest> newest_;
  bool is_surveying_ = false;
  Time survey_began_{};
  bool is_survey_error_ = false;  // what last_error_ is
  Time not_before_{};             // the next attempt
  std::string last_error_;
  uint64_t failed_surveys_ = 0;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
