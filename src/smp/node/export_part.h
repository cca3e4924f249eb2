// ExportPart: what one node does for a durable copy, whoever runs that: says which slabs it has,
// and starts and watches the drain that writes them.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/copy.pb.h>

#include <optional>
#include <string>

#include "base/lifetime.h"
#include "smp/core/drain_process.h"
#include "smp/desk/node_state.h"
#include "smp/job/peers.h"

namespace unreft::smp {

// What nodes ask each other about a copy, and who answers.
inline constexpr char kCopyPartMethod[] = "copy-part";

// Single-threaded on the node's executor.
class ExportPart {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<CopyPartReply>)>;
  // Told when a part has ended, of the copy `id`.
  using Ended = absl::AnyInvocable<void(const std::string& id, const CopyPartReply& said)>;

  // Others' questions are answered from now on. All outlive this; without a drain this node writes
  // nothing.
  ExportPart(NodeState& state, Peers& peers, DrainProcess* drain, Ended ended);

  // Ends what nobody asks for any more: when the daemon that runs the copy has died nobody stops
  // the others. To be called every second.
  void StopUnasked();

 private:
  struct Part {
    std::string id;
    CopyPartReply said;
    Time asked;  // when somebody last asked how far it is
  };

  void OnRequest(const CopyPartRequest& request, Done done);
  CopyPartReply Look(Version version) const;
  absl::Status Start(const CopyPartRequest& request);
  void OnEnded();

  NodeState& state_;
  DrainProcess* const drain_;
  Ended ended_;
  std::optional<Part> part_;  // that the drain writes, or wrote last
  Lifetime lifetime_;
};

}  // namespace unreft::smp
