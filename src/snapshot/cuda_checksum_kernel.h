// What a host has to know to launch the checksum's kernel.
//
//   extern "C" __global__ void unreft_crc32c(const Piece* pieces, uint32_t* remainders,
//                                            uint32_t count)
#pragma once

#include "snapshot/cuda_checksum_lanes.h"

namespace unreft::snapshot::checksum {

inline constexpr char kKernelName[] = "unreft_crc32c";
inline constexpr uint32_t kThreads = 256;  // of a block
inline constexpr uint32_t kWarps = kThreads / kLanes;

}  // namespace unreft::snapshot::checksum
