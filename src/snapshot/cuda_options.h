// CudaOptions: every limit of the CUDA copier, by name.
#pragma once

#include <cstddef>
#include <cstdint>

namespace unreft::snapshot {

struct CudaOptions {
  // Pinned buffers, for what is not registered yet and for restores: a copy of 1 MiB alone reaches
  // less of the copy engine's rate.
  size_t buffer_bytes = size_t{2} << 20;
  size_t buffers = 32;
  // Registered in one call, which holds up other CUDA calls for some ms.
  size_t pin_chunk_bytes = size_t{32} << 20;
  // Buckets on the side stream at a time: fewer than the driver takes without blocking.
  size_t enqueued_max = 1024;
  // On the device, for volatile tensors: as much as they have, if the device gives it.
  uint64_t staging_bytes_max = UINT64_MAX;
  // Whether CRCs are computed on the device: of what is copied from it for those who ask, and after
  // a restore of all that was copied to it.
  bool checksum = false;
  // Chunks (CudaChecksum) under way: 20 bytes of pinned memory and 4 of the device's each. As many
  // as `enqueued_max` buckets of 8 MiB have, and again as many for small tensors.
  size_t checksum_chunks = size_t{512} << 10;
  size_t restore_checksum_chunks = size_t{64} << 10;
};

}  // namespace unreft::snapshot
