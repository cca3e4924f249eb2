// Node 0, whose pieces a test makes, and node 1, which the test speaks for: both have Peers over a
// simulated network, and the same records, which the test writes as it likes.
#pragma once

#include <memory>
#include <string>

#include "smp/job/peers.h"
#include "tests/fakes/sim_transport.h"
#include "tests/unit/smp/job_records_testing.h"
#include "tests/unit/smp/recording_node.h"
#include "tests/unit/smp/recording_protection.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {

class TwoPeersFixture : public SmpFixture {
 protected:
  TwoPeersFixture() {
    job_.store_id = "store";
    for (const uint64_t slot : {0, 1}) {
      job_.present[NodeSlot{slot}].set_address(fmt::format("node{}", slot));
    }
  }
  // Before what timers and transports belong to is destroyed.
  ~TwoPeersFixture() override {
    executor_->Kill();
    other_executor_->Kill();
  }

  // What node 1 is answered.
  template <typename Reply, typename Request>
  absl::StatusOr<Reply> Ask(const std::string& method, const Request& request) {
    absl::StatusOr<Reply> answer = absl::UnknownError("no answer yet");
    other_executor_->Deliver(Duration{}, [&] {
      other_peers_.Ask<Reply>(NodeSlot{0}, method, request, std::chrono::seconds(1),
                              [&](absl::StatusOr<Reply> reply) { answer = std::move(reply); });
    });
    Settle();
    return answer;
  }

  std::unique_ptr<NodeRecord> record_ = NewRecord();
  meta::JobState job_;
  RecordingNode node_;
  RecordingProtection protection_;
  SimNetwork network_{scheduler_};
  std::unique_ptr<Transport> transport_ = *network_.NewTransport(*executor_, "node0");
  Peers peers_{*executor_, *transport_, job_, "job", NodeSlot{0}, RandomId{}};
  std::unique_ptr<SimExecutor> other_executor_ = scheduler_.NewExecutor("node1");
  std::unique_ptr<Transport> other_transport_ = *network_.NewTransport(*other_executor_, "node1");
  Peers other_peers_{*other_executor_, *other_transport_, job_, "job", NodeSlot{1}, RandomId{1}};
};

}  // namespace unreft::smp
