// RoundQuestions: answers what other nodes ask of this one for a decision or for what follows from
// it: whether what it holds of a version verifies, and the manifests of what it holds.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/lifetime.h"
#include "smp/core/node_options.h"
#include "smp/job/coordinator.h"
#include "smp/job/follower.h"
#include "smp/job/node_record.h"
#include "smp/job/peers.h"
#include "smp/job/protection.h"
#include "smp/job/report_maker.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class RoundQuestions {
 public:
  struct Parts {
    const NodeRecord& record;
    const Follower& follower;
    ReportMaker& reports;
    Coordinator::Node& node;
    Protection& protection;
  };

  // Answers from now on. All outlive this.
  RoundQuestions(Peers& peers, Parts parts, const NodeOptions& options);

 private:
  using VerifyDone = absl::AnyInvocable<void(absl::StatusOr<VerifyReply>)>;
  struct Question {
    bool wants_manifests = false;
    VerifyDone done;
  };

  void OnVerify(const VerifyRequest& request, VerifyDone done);
  absl::Status CheckAsked(const VerifyRequest& request) const;
  void OnVerified(uint64_t round, Version version, const absl::Status& problem);
  std::vector<std::string> ManifestsOf(Version version) const;
  ManifestReply OnManifests(const ManifestRequest& request) const;
  std::string RegisteredManifest(const RegisteredTrainer& trainer) const;

  Parts parts_;
  const NodeOptions& options_;
  // What is being read for a round's question: who asks again waits for the same reading, as one
  // that takes longer than a question waits would never be answered.
  std::map<std::pair<uint64_t, Version>, std::vector<Question>> verifying_;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
