// Writes where it has no memory.

extern "C" __global__ void unreft_test_out_of_bounds(int* memory, unsigned long long offset) {
  memory[offset + threadIdx.x] = 1;
}
