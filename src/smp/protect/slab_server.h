// SlabServer: answers what other nodes ask of this node's slabs: blocks, and what describes them.
//
// A restore on another node asks so, in a job without parities, too. What this node keeps of other
// nodes' slabs is served from its guards, where there are any.
#pragma once

#include <unreft/cluster.pb.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "smp/desk/node_state.h"
#include "smp/job/peers.h"
#include "smp/protect/slab_source.h"

namespace unreft::smp {

// Called in turns of the node's executor.
class GuardedSlabs {
 public:
  virtual ~GuardedSlabs() = default;

  // Of any kind but DATA and DECODED.
  virtual void ReadParity(const ReadRequest& request, uint64_t bytes,
                          SlabSource::ReadDone done) = 0;
  // What is held of other slots' slabs of a version; null without a complete guard of it.
  virtual std::shared_ptr<const GuardRecord> RecordOf(Version version) = 0;
};

// Single-threaded on the node's executor. Serves "meta" and reads from its construction on; all
// references outlive it.
class SlabServer {
 public:
  SlabServer(NodeState& state, Peers& peers);

  // Answers reads of DECODED, and outlives this. Without one they are answered NotFound.
  using Decoded =
      std::function<void(const ReadRequest& request, uint64_t bytes, SlabSource::ReadDone done)>;
  void set_decoded(Decoded decoded) { decoded_ = std::move(decoded); }

  // Outlives this. None, before: questions about parities and descriptions are answered NotFound.
  void set_guarded(GuardedSlabs* guarded) { guarded_ = guarded; }

  // What another node would be answered.
  void Read(const ReadRequest& request, uint64_t bytes, SlabSource::ReadDone done);

  // A slot has more blocks ready, was sealed or given up.
  void OnSlotChange() { source_.OnChange(); }

 private:
  void OnRead(const std::string& body, uint64_t bytes, SlabSource::ReadDone done);
  void OnMeta(const MetaRequest& request, SlabSource::MetaDone done);

  const NodeSlot self_;
  SlabSource source_;
  GuardedSlabs* guarded_ = nullptr;
  Decoded decoded_;
};

}  // namespace unreft::smp
