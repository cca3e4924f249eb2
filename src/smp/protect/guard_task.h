// GuardTask: what one guard is to be filled with, and by what means.
#pragma once

#include <memory>

#include "base/executor.h"
#include "base/log.h"
#include "base/work_pool.h"
#include "ec/erasure_code.h"
#include "smp/core/node_options.h"
#include "smp/job/peers.h"
#include "smp/memory/tile_pool.h"
#include "smp/protect/group_view.h"
#include "smp/protect/guard_store.h"

namespace unreft::smp {

// What it refers to outlives it.
struct GuardTask {
  struct Seams {
    Executor& executor;
    WorkPool& pool;
    Peers& peers;
    Log& log;
    TilePool& tiles;
    std::shared_ptr<const ec::ErasureCode> code;
  };

  Seams seams;
  const NodeOptions& options;
  Version version;
  GroupView group;
  GroupSlabs slabs;
  Guard& guard;
  uint64_t coding = 0;  // which slabs are encoded (CodingOf)
};

}  // namespace unreft::smp
