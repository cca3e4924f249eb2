// ControlJob: the control path of a whole job in one process, one turn after the other. Members,
// their leader, the network and the meta store are real or simulated in full; no byte of a tensor
// exists.
//
// What the leader's process computes is measured: the CPU of the thread that runs all its turns,
// those of the member in the same process included. Virtual time does not pass while a turn
// computes.
#pragma once

#include <memory>
#include <vector>

#include "base/random.h"
#include "smp/core/node_options.h"
#include "smp/job/member.h"
#include "tests/fakes/capture_log_sink.h"
#include "tests/fakes/fake_kv.h"
#include "tests/fakes/fake_segment_store.h"
#include "tests/fakes/sim_transport.h"
#include "tests/sim/control_plane/own_thread.h"
#include "tests/sim/control_plane/stand_ins.h"

namespace unreft::sim {

class ControlJob {
 public:
  // What something has cost.
  struct Cost {
    double leader_ms = 0;   // of CPU
    uint64_t messages = 0;  // between nodes, answers included; those to the meta store are not
    Cost operator-(const Cost& before) const {
      return {leader_ms - before.leader_ms, messages - before.messages};
    }
  };

  // Of `nodes` nodes of `ranks` ranks, in groups RS(6,2). All are members when this returns.
  ControlJob(uint64_t nodes, uint64_t ranks);
  ~ControlJob();

  // From now on ranks train beside the leader, and its turns find in the processor's caches what
  // these have used since the turn before: as much memory as one processor copies in that time.
  void TrainBesideLeader() { trains_ = true; }

  // All ranks register and ask, and train on when all nodes have heard of the decision.
  Cost Decide();
  // All ranks seal the next step, all guards become complete, and all nodes hear of the commit.
  Cost CommitNext();

 private:
  struct Node;

  // In no order, but for the one that comes to lead.
  void StartAll();
  void Start(Node& node);
  // Since the beginning.
  Cost Spent() const;
  void Run(absl::FunctionRef<bool()> until, const char* what);
  void RunLeader(Task turn);
  void Protect(Node& node, Version version);
  bool IsWholeOf(const Node& node, Version version) const;

  OwnThread leader_thread_;
  bool trains_ = false;
  Duration trained_until_{0};
  SimScheduler scheduler_{1};
  Random random_{2};
  CaptureLogSink sink_;
  Log log_{sink_};
  RandomId boot_id_;
  SimNetwork network_;
  FakeKvStore store_;
  std::vector<std::unique_ptr<Node>> nodes_;
  const uint64_t ranks_;
  uint64_t attempt_ = 0;
  Version newest_;
};

}  // namespace unreft::sim
