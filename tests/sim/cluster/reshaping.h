// Reshaping: a simulated job that goes on in another layout, tensor parallel before, of one rank a
// node, and data parallel after it, of two. Real daemon core and real client.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>

#include "tests/sim/cluster/cluster.h"

namespace unreft::sim {

struct ReshapingOptions {
  uint64_t nodes = 8;
  uint32_t data_chunks = 2;
  uint32_t parity_chunks = 2;
  uint64_t rows = 2;               // of each of the model's layers, on each node before
  bool with_loss = false;          // of a node, with its memory, that has no rank after it
  uint32_t reads_busy_one_in = 0;  // reads that who serves them has no room for; 0: never
  uint64_t answer_page_bytes = smp::NodeOptions().answer_page_bytes;
  std::optional<size_t> message_bytes_max;  // of the network; none: what it allows
  uint64_t seed = 1;
  PlantedBug bug = PlantedBug::kNone;
};

// Bytes, of all nodes together.
struct ReshapingReads {
  double needed = 0;  // what lies on another node than who wants it, or nowhere
  double read = 0;
  double lost = 0;
};

// Runs until all train in the other layout. Internal: what kept them from it, or the rule that was
// broken.
absl::StatusOr<ReshapingReads> Reshape(const ReshapingOptions& options);

}  // namespace unreft::sim
