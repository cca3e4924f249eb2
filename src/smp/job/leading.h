// Leading: this node's Leader, as long as the leader key is its own, and the answers to what other
// nodes send to whoever leads. While this node does not lead, each is refused.
#pragma once

#include <absl/status/status.h>
#include <unreft/cluster.pb.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/executor.h"
#include "base/fault_points.h"
#include "base/log.h"
#include "base/random.h"
#include "meta/job_store.h"
#include "meta/leased_key.h"
#include "smp/core/node_options.h"
#include "smp/job/leader.h"
#include "smp/job/peers.h"
#include "smp/job/seat.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class Leading {
 public:
  struct Seams {
    Executor& executor;
    meta::JobStore& store;
    Seat& seat;
    Peers& peers;
    Random& random;
    Log& log;
    FaultPoints* faults = nullptr;
  };

  // Answers from now on. All outlive this.
  Leading(Seams seams, const NodeOptions& options);

  // None unless it is said before this node leads for the first time; null when they are no more.
  bool knows_copies() const { return copies_ != nullptr; }
  void set_copies(DurableCopies* copies) {
    copies_ = copies;
    if (copies == nullptr && leader_ != nullptr) leader_->ForgetCopies();
  }

  // The seat may have the leader key now, or not any more, or another one. Where nobody has it, it
  // is looked for.
  void Follow();
  // The records are others.
  void RunRules();

  bool leads() const { return leader_ != nullptr; }
  // Versions that nothing but version_deadline_s has ended, of all the times that this node led.
  uint64_t deadlines_used() const;
  // None while another leads.
  std::optional<ExposureReply> Exposure() const;

 private:
  void Serve();
  void OnReport(NodeSlot from, const std::string& body, Transport::CallDone done);
  absl::Status NotLeading() const;
  void End();

  Seams seams_;
  const NodeOptions& options_;
  DurableCopies* copies_ = nullptr;
  std::unique_ptr<Leader> leader_;
  meta::HeldKey key_;            // by which it leads
  uint64_t deadlines_used_ = 0;  // before the present leadership
};

}  // namespace unreft::smp
