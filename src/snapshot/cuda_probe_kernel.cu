// The kernel behind CudaProbes: a thread takes tensor after tensor, since few lines of each are
// read. Compiled to a fat binary that libunreft carries as bytes; nothing here runs on the host.

#include "snapshot/cuda_probe_kernel.h"

using namespace unreft::snapshot::probing;  // NOLINT: an entry point has no namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    unreft_probe(const Shard* shards, uint64_t* digests, uint32_t* began, uint32_t count,
                 uint32_t lines, uint64_t step) {
  if (threadIdx.x == 0) {
    *static_cast<volatile uint32_t*>(began) = 1;
    __threadfence_system();
  }
  __syncthreads();
  const uint32_t threads = gridDim.x * kThreads;
  for (uint32_t at = blockIdx.x * kThreads + threadIdx.x; at < count; at += threads) {
    digests[at] = DigestShard(shards[at], step, lines);
  }
}
