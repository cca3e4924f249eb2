// ClusterOptions: how large a simulated cluster is and how its parts are set, drawn from the seed.
//
// Most clusters are small and quick, so that many seeds run; some have up to 16 nodes of up to
// 64 KiB, in blocks of 64 bytes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "smp/core/node_options.h"
#include "tests/sim/model.h"
#include "tests/sim/trainer_process.h"

namespace unreft::sim {

struct ClusterOptions {
  smp::NodeOptions node;  // of each, but for its slot
  TrainerOptions trainer;
  TensorModel tensors;
  bool replicated = false;      // some tensors are on all ranks
  std::vector<uint64_t> ranks;  // of each node
  uint64_t spares = 0;          // hosts beside the nodes'
  // Of each host, the nodes' first; empty: none is named.
  std::vector<std::string> failure_domains;
  Duration fault_pause_max{0};
  // Nodes that the job begins without, and when they come.
  std::map<NodeSlot, Duration> late;
  // The most that a message may have; none: what the network allows.
  std::optional<size_t> message_bytes_max;
  bool has_copies = false;       // daemons know of a directory of durable copies
  bool is_memory_tight = false;  // as much as the largest node needs, with one node left out

  // The slot of each rank's node; ranks beyond these begin again with the first.
  std::vector<uint64_t> Homes() const;
  // Of a restart with another number of ranks.
  uint64_t world_max() const { return trainer.world + 2; }
};

ClusterOptions DrawClusterOptions(Random& random);

}  // namespace unreft::sim
