// DecodedBlocks: the blocks of lost slabs that this node decodes for other nodes, so that each is
// decoded once for all of them (docs/protocol.md, rule 31).
//
// They lie in the staging area, where this node's own ranks find them, too. Who asks waits for
// nothing else than the decoding: what could wait for the asker, a place or another decoder, is
// refused instead, and the asker decodes the block itself; where this node is not ready yet it is
// answered NotFound, and asks again for a while.
#pragma once

#include <unreft/cluster.pb.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/lifetime.h"
#include "smp/desk/node_state.h"
#include "smp/protect/slab_source.h"
#include "smp/restore/block_reader.h"
#include "smp/restore/restore_catalog.h"
#include "smp/restore/staged_blocks.h"

namespace unreft::smp {

// Single-threaded on the node's executor. All references outlive it.
class DecodedBlocks {
 public:
  // Where they lie now; null without a staging area, and the same as long as anybody takes of it.
  using Blocks = std::function<StagedBlocks*()>;

  DecodedBlocks(NodeState& state, BlockReader& reader, const RestoreCatalog& catalog, Blocks blocks)
      : state_(state), reader_(reader), catalog_(catalog), blocks_(std::move(blocks)) {}

  // Of one block.
  void OnRead(const ReadRequest& request, uint64_t bytes, SlabSource::ReadDone done);

 private:
  absl::Status CheckRequest(const ReadRequest& request, uint64_t bytes) const;
  void Serve(BlockId id, SlabSource::ReadDone done);
  void OnBlock(BlockId id, StagedBlocks& blocks, const absl::StatusOr<StagedBlocks::Hold>& block);
  void Send(const StagedBlocks::Hold& block, StagedBlocks& blocks, SlabSource::ReadDone done);
  void OnServed(StagedBlocks& blocks);

  NodeState& state_;
  BlockReader& reader_;
  const RestoreCatalog& catalog_;
  const Blocks blocks_;
  uint64_t taker_ = 0;    // while there are
  uint64_t serving_ = 0;  // reads that are under way
  // Each is held once for all that read it.
  std::map<BlockId, std::vector<SlabSource::ReadDone>> waiting_;  // until it is there
  std::map<BlockId, std::weak_ptr<const StagedBlocks::Block>> lent_;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
