// RestoreForecast: what the ranks of this node would restore if all began anew now, and from where
// (docs/operations.md, `unreft plan`). It reads descriptions and changes nothing.
//
// It is of the version that is committed, and of the tensors that the ranks have registered; or of
// a layout that comes with the question, whose ranks may be on any node and need not run.
#pragma once

#include <absl/functional/any_invocable.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/lifetime.h"
#include "base/session_frames.h"
#include "smp/desk/node_state.h"
#include "smp/job/member.h"
#include "smp/node/forecast.h"
#include "smp/restore/restore_catalog.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class RestoreForecast {
 public:
  // Both outlive this.
  RestoreForecast(NodeState& state, Member& member);
  ~RestoreForecast();

  using Reply = absl::AnyInvocable<void(AdminReply)>;

  // Replies within call_timeout of the slabs' being described, or of asking in vain.
  void Answer(Reply reply) { Ask("", std::move(reply)); }
  // The same for the ranks of a layout, whose text may be anybody's.
  void AnswerOfLayout(std::string layout, Reply reply);

 private:
  struct Question {
    std::string layout;  // empty: of the registered ranks
    Reply reply;
  };

  void Ask(std::string layout, Reply reply);
  void OnDescribed();
  void OnTimeout();
  std::shared_ptr<Forecast> NewForecast() const;
  void Compute(Question question);
  void ReplyToAll(const AdminReply& answer);

  NodeState& state_;
  Member& member_;
  std::vector<Question> asking_;               // for a description of the slabs
  std::unique_ptr<RestoreCatalog> catalog_;    // while somebody does
  std::vector<recovery::SlabHolder> holders_;  // of the version that it is of
  TimerId timer_ = TimerId::kNone;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
