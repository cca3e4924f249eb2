// SlabRebuilder: makes this node's lost slabs of the restored version anew, by decoding them into
// slots of its own. The first blocks are served to others while the last are still decoded.
#pragma once

#include <absl/functional/any_invocable.h>

#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/lifetime.h"
#include "smp/core/shortage_retry.h"
#include "smp/desk/node_state.h"
#include "smp/restore/block_reader.h"
#include "smp/restore/restore_catalog.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class SlabRebuilder {
 public:
  // `on_done`, once, in a turn of its own: all slabs are sealed (at once when none is lost).
  SlabRebuilder(NodeState& state, BlockReader& reader, const RestoreCatalog& catalog,
                absl::AnyInvocable<void()> on_done);
  // What is not sealed is given back; nothing may be on its way in `reader` any more.
  ~SlabRebuilder();

  // Slots may have become free.
  void RunRules();
  bool done() const { return todo_.empty(); }

 private:
  struct Slab {
    Slot* slot = nullptr;  // null until there is a free one
    uint64_t blocks = 0;
    uint64_t next = 0;
    uint64_t running = 0;
    std::set<uint64_t> finished;  // beyond blocks_done
    std::set<uint64_t> failed;    // to be tried again
  };

  void Provide(Rank rank);
  void ProvideAgain();
  void RunSlab(Rank rank, Slab& slab);
  void OnBlock(Rank rank, uint64_t block, const absl::Status& status);
  void Seal(Rank rank, Slab& slab);

  NodeState& state_;
  BlockReader& reader_;
  const RestoreCatalog& catalog_;
  absl::AnyInvocable<void()> on_done_;
  std::map<Rank, Slab> todo_;
  std::string last_refusal_;
  ShortageRetry shortage_;
  bool is_refused_ = false;  // a slab that cannot be rebuilt on this node: it is never done
  Lifetime lifetime_;
};

}  // namespace unreft::smp
