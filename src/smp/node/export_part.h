// ExportPart: what one node does for a durable copy, whoever runs that: says which slabs it has,
// decodes what it is told to of those that no node has any more, and starts and watches the drain
// that writes them.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/copy.pb.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/lifetime.h"
#include "smp/core/drain_process.h"
#include "smp/desk/node_state.h"
#include "smp/job/peers.h"
#include "smp/protect/block_reads.h"
#include "smp/restore/decoded_slabs.h"

namespace unreft::smp {

// What nodes ask each other about a copy, and who answers.
inline constexpr char kCopyPartMethod[] = "copy-part";

// Single-threaded on the node's executor.
class ExportPart {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<CopyPartReply>)>;
  // Told when a part has ended, of the copy `id`.
  using Ended = absl::AnyInvocable<void(const std::string& id, const CopyPartReply& said)>;

  // What lost slabs are decoded from: blocks of other nodes and, by `own`, of this one.
  struct Sources {
    Peers& peers;
    const meta::JobRecords& job;
    BlockReads::Own own;
  };

  // Others' questions are answered from now on. All outlive this; without a drain this node writes
  // nothing.
  ExportPart(NodeState& state, Sources sources, DrainProcess* drain, Ended ended);

  // Ends what nobody asks for any more: when the daemon that runs the copy has died nobody stops
  // the others. To be called every second.
  void Tick();

 private:
  struct Part {
    std::string id;
    CopyPartReply said;
    Time asked;  // when somebody last asked how far it is
    bool is_draining = false;
  };

  void OnRequest(const CopyPartRequest& request, Done done);
  CopyPartReply Look(Version version) const;
  absl::Status Start(const CopyPartRequest& request);
  void Decode(const CopyPartRequest& request);
  void OnDecoded(CopyPartRequest request, const absl::StatusOr<DecodedSlabs::Segments>& segments);
  absl::Status StartDrain(const CopyPartRequest& request);
  void Stop();
  void OnDrainEnded();
  void End();

  NodeState& state_;
  Sources sources_;
  DrainProcess* const drain_;
  Ended ended_;
  std::optional<Part> part_;                            // that this node writes, or wrote last
  std::unique_ptr<DecodedSlabs> decoded_;               // for it
  std::vector<std::unique_ptr<DecodedSlabs>> retired_;  // until nothing of them is on its way
  Lifetime lifetime_;
};

}  // namespace unreft::smp
