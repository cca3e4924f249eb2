// What a host has to know to launch the kernel that looks at tensors (probe_digest.h).
//
//   extern "C" __global__ void unreft_probe(const Shard* shards, uint64_t* digests,
//                                           uint32_t* began, uint32_t count, uint32_t lines,
//                                           uint64_t step)
//
// All may be host memory. `began` is 1 there before a byte of any shard is read.
#pragma once

#include "snapshot/probe_digest.h"

namespace unreft::snapshot::probing {

inline constexpr char kKernelName[] = "unreft_probe";
inline constexpr uint32_t kThreads = 256;  // of a block

}  // namespace unreft::snapshot::probing
