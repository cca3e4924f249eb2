// The kernel behind CudaChecksum: a warp takes piece after piece (cuda_checksum_lanes.h says how).
// Compiled to a fat binary that libunreft carries as bytes; nothing here runs on the host.

#include "snapshot/cuda_checksum_kernel.h"

namespace unreft::snapshot::checksum {

__device__ const RowTable kDeviceRowTable = kRowTable;
__device__ const UndoTable kDeviceUndoTable = kUndoTable;

}  // namespace unreft::snapshot::checksum

using namespace unreft::snapshot::checksum;  // NOLINT: an entry point has no namespace

// `pieces` may be host memory: it is read once, in order.
extern "C" __global__ void __launch_bounds__(kThreads)
    unreft_crc32c(const Piece* pieces, uint32_t* remainders, uint32_t count) {
  __shared__ uint32_t table[sizeof(RowTable) / sizeof(uint32_t)];
  const auto* rows = reinterpret_cast<const uint32_t*>(&kDeviceRowTable);
  const auto* undo = reinterpret_cast<const uint32_t*>(&kDeviceUndoTable);
  for (uint32_t i = threadIdx.x; i < sizeof(RowTable) / sizeof(uint32_t); i += kThreads) {
    table[i] = rows[i];
  }
  __syncthreads();
  const uint32_t lane = threadIdx.x % kLanes;
  const uint32_t warps = gridDim.x * (kThreads / kLanes);
  for (uint32_t at = (blockIdx.x * kThreads + threadIdx.x) / kLanes; at < count; at += warps) {
    const uint32_t share = LaneRemainder(pieces[at], lane, table, undo);
    const uint32_t remainder = __reduce_xor_sync(0xffffffffU, share);
    if (lane == 0) remainders[at] = remainder;
  }
}
