// ClusterDesk: questions about the whole job, answered by whichever node is asked
// (docs/operations.md, "Several nodes").
//
// What the records and the leader say is in "cluster" (smp/node/cluster_status.h). With {"of":
// VERB} it also has what each daemon answers to that verb itself, asked by Peers and bounded in
// time: one that does not answer is named. What comes from other nodes is checked and cleaned.
#pragma once

#include <absl/functional/any_invocable.h>

#include <memory>
#include <string>

#include "base/session_frames.h"
#include "smp/desk/node_state.h"
#include "smp/job/member.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class ClusterDesk {
 public:
  using Reply = absl::AnyInvocable<void(AdminReply)>;
  // Answers for this node alone.
  using Own = absl::AnyInvocable<void(const AdminRequest&, Reply)>;

  // Other nodes' questions are answered from now on. Both outlive this.
  ClusterDesk(NodeState& state, Member& member, Own own);

  // Of the verb "cluster". Calls `reply` once, in this turn or a later one.
  void Answer(const AdminRequest& request, Reply reply);

 private:
  struct Gathering;

  void OnQuestion(const QuestionRequest& request,
                  absl::AnyInvocable<void(absl::StatusOr<QuestionReply>)> done);
  void Ask(const std::string& address, Duration timeout,
           const std::shared_ptr<Gathering>& gathering);

  NodeState& state_;
  Member& member_;
  Own own_;
};

}  // namespace unreft::smp
