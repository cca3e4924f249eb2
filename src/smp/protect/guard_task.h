// GuardTask: what one guard is to be filled with, and by what means.
#pragma once

#include <memory>

#include "base/executor.h"
#include "base/log.h"
#include "base/work_pool.h"
#include "smp/core/node_options.h"
#include "smp/job/peers.h"
#include "smp/memory/tile_pool.h"
#include "smp/protect/coded_version.h"
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
  };

  Seams seams;
  const NodeOptions& options;
  std::shared_ptr<const CodedVersion> coded;
  Guard& guard;
};

}  // namespace unreft::smp
