// The state that simulated trainers train: which tensors each rank holds, and what their bytes are.
//
// The bytes are a pure function of who wrote them: the version's name and the attempt whose
// training reached it. So anybody can tell what a restore must return, and bytes of another
// timeline, step, rank or attempt are told apart. Stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/tensor_spec.h"

namespace unreft::sim {

// Who trained the state to this version.
struct Author {
  Version version;
  Attempt attempt;
  uint64_t salt = 0;  // of a rank that has gone astray: its bytes are not those of its replicas
  friend bool operator==(const Author&, const Author&) = default;
};

// The tensors of one rank of a world of so many: of any world the same ones, otherwise shared out.
using TensorModel = std::function<std::vector<TensorSpec>(Rank rank, uint64_t world)>;

// Some held by all ranks, some by pairs, some by it alone, one volatile.
std::vector<TensorSpec> TensorsOf(Rank rank, uint64_t world);
// None held by two ranks, and ranks of very different size: up to so many rows of 64 bytes.
TensorModel ShardedTensors(uint64_t rows_max);
// Some held by all ranks, large enough to be cut among them and not, and as many rows of its own.
TensorModel ReplicatedTensors(uint64_t rows);
// Of so many ranks each holds as many rows of its own, as tensor parallel ones do; of any other
// number each holds everything, as data parallel ones do.
TensorModel TensorParallelAmong(uint64_t world, uint64_t rows);

// Of the tensors; which rows a rank has depends on the world, not what is in them.
inline constexpr size_t kRowBytes = 64;

// Bytes [begin, begin + bytes.size()) of the shard.
void FillShard(std::span<std::byte> bytes, uint64_t begin, const TensorSpec& spec,
               const Author& author);

// Of a length that changes from step to step.
std::vector<std::byte> ExtrasOf(Rank rank, const Author& author);

}  // namespace unreft::sim
