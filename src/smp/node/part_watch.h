// PartWatch: asks the nodes that have a part in a durable copy, writing it or loading it, how far
// they are, twice a second until all is done or something has failed.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/copy.pb.h>

#include <map>
#include <set>
#include <string>

#include "base/lifetime.h"
#include "smp/desk/node_state.h"
#include "smp/job/peers.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class PartWatch {
 public:
  struct Events {
    // Before they are asked; false ends the asking.
    absl::AnyInvocable<bool()> before_asking;
    // Some node has said something.
    absl::AnyInvocable<void()> on_said;
    // A part has failed, a node does not answer, or nothing moves for too long: said once. The
    // node is named; DataLoss when it has found the copy damaged.
    absl::AnyInvocable<void(const absl::Status&)> on_failed;
  };
  // Whether an order may be sent again to a node that has not answered: who has it already says how
  // far it is.
  enum class Orders { kOnce, kAgain };

  // `method`: what the nodes answer to. All outlive this.
  PartWatch(NodeState& state, Peers& peers, std::string method, std::string id, Duration stall_max,
            Orders orders, Events events);
  ~PartWatch();

  // Orders each of these nodes' part, and begins to ask them.
  void Begin(const std::map<NodeSlot, CopyPartRequest>& orders);
  // Asks no more.
  void End();
  // Ends the parts, too.
  void Stop();
  // What a node has to say anew that is not asked any more.
  void Note(NodeSlot node, const CopyPartReply& said) { said_[node] = said; }

  const std::map<NodeSlot, CopyPartReply>& said() const { return said_; }
  bool AreAllDone() const;

  // Asks a node something; `done` is not called once this is gone.
  void Call(NodeSlot node, const CopyPartRequest& request,
            absl::AnyInvocable<void(absl::StatusOr<CopyPartReply>)> done);

 private:
  void AskLater();
  void AskAll();
  void OnSaid(NodeSlot node, const absl::StatusOr<CopyPartReply>& reply);
  void OnSilent(NodeSlot node, const absl::Status& why);
  void Fail(NodeSlot node, const absl::Status& why);

  NodeState& state_;
  Peers& peers_;
  const std::string method_;
  const std::string id_;
  const Duration stall_max_;
  const Orders orders_;
  Events events_;
  std::map<NodeSlot, CopyPartRequest> unanswered_;  // that may be sent again
  std::map<NodeSlot, CopyPartReply> said_;
  std::map<NodeSlot, int> silent_;  // how often one in a row did not answer
  Time moved_{};                    // when some node last had done more
  bool is_asking_ = false;
  TimerId timer_ = TimerId::kNone;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
