// A kernel of a job that goes wrong, by name: for the job and for the fake runtime.
//
//   extern "C" __global__ void unreft_test_out_of_bounds(int* memory, unsigned long long offset)
#pragma once

namespace unreft {

inline constexpr char kOutOfBoundsKernel[] = "unreft_test_out_of_bounds";

}  // namespace unreft
