// CudaOptions: every limit of the CUDA copier, by name.
#pragma once

#include <cstddef>
#include <cstdint>

namespace unreft::snapshot {

struct CudaOptions {
  // Pinned buffers, for what is not registered yet and for restores.
  size_t buffer_bytes = size_t{1} << 20;
  size_t buffers = 32;
  // Registered in one call, which holds up other CUDA calls for some ms.
  size_t pin_chunk_bytes = size_t{32} << 20;
  // Buckets on the side stream at a time: fewer than the driver takes without blocking.
  size_t enqueued_max = 1024;
  // On the device, for volatile tensors.
  uint64_t staging_bytes_max = uint64_t{64} << 20;
};

}  // namespace unreft::snapshot
