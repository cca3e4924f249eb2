// Reporter: tells the leader this node's whole state: when that has changed, at a pace
// (smp/core/pace.h), and now and then; and hears from it what the job waits for, and whether the
// ranks' registrations fit together.
//
// One report is due at a time, and one under way: what changes meanwhile is in the next.
#pragma once

#include <absl/functional/any_invocable.h>
#include <unreft/cluster.pb.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/executor.h"
#include "base/ids.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "meta/leased_key.h"
#include "smp/core/node_options.h"
#include "smp/job/coordinator.h"
#include "smp/job/peers.h"
#include "smp/job/report_maker.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class Reporter {
 public:
  // Who leads, and by which key.
  struct Listener {
    NodeSlot slot;
    meta::HeldKey key;
  };
  // Looked for before each report; none when nobody is known to lead, or this node is not present.
  using FindListener = absl::AnyInvocable<std::optional<Listener>()>;

  struct Seams {
    Executor& executor;
    Peers& peers;
    Log& log;
  };

  // All references outlive this.
  Reporter(Seams seams, ReportMaker& reports, Coordinator::Node& node, const NodeOptions& options,
           FindListener find_listener);
  ~Reporter();

  // The node's state is another, and somebody may wait for it. Told in a turn of its own.
  void Report();
  // It is another, and nothing waits for it: told with what comes next, or a little later.
  void ReportSoon();
  // Whoever leads does it by this key now. An answer of an earlier leader is not waited for.
  void FollowLeader(const meta::HeldKey& key);

 private:
  void ReportLater(Duration delay);
  void Send();
  void OnReply(const NodeReport& report, const absl::StatusOr<std::string>& bytes);
  bool TakeReply(const NodeReport& report, const std::string& bytes);

  Seams seams_;
  ReportMaker& reports_;
  Coordinator::Node& node_;
  const NodeOptions& options_;
  FindListener find_listener_;

  bool wanted_ = false;       // something has changed since the last that somebody may wait for
  bool wanted_soon_ = false;  // or something else
  TimerId soon_ = TimerId::kNone;
  TimerId later_ = TimerId::kNone;  // though nothing changes until then
  std::optional<Time> reported_at_;
  bool is_running_ = false;  // an answer is waited for
  uint64_t sent_ = 0;        // number of the last
  meta::HeldKey sent_to_;    // to which leader
  Lifetime lifetime_;
};

}  // namespace unreft::smp
