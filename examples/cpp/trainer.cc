// A training loop in C++ that survives kill -9: `unreft run --up -- build/trainer` goes on at the
// step that was committed last, with the same bits. Prints each step and a checksum of the weights.
#include <unreft/unreft.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

template <typename Result>
auto Need(Result result) {  // a real trainer may go on without snapshots instead
  if (!result) std::fprintf(stderr, "trainer: %s\n", result.error().message.c_str()), std::exit(1);
  return *std::move(result);
}

int main(int argc, char** argv) {
  const uint64_t steps = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1000;
  std::vector<float> weights(1 << 16, 1.0f), momentum(weights.size(), 0.0f);
  const std::vector<uint64_t> shape = {weights.size()};
  const std::vector<unreft::Tensor> state = {
      {.name = "weights", .global_shape = shape, .data = weights.data()},
      {.name = "momentum", .global_shape = shape, .data = momentum.data()}};

  auto client = Need(unreft::Client::Open());
  const unreft::Restored restored = Need(client.Restore());
  if (!restored.fresh) Need(client.Read(state));
  Need(client.Register(state, 0));
  for (uint64_t step = restored.fresh ? 0 : restored.step; step < steps;) {
    std::mt19937 batch(static_cast<uint32_t>(step));  // stands for the step's data
    Need(client.Fence());                             // before the tensors change
    for (size_t i = 0; i < weights.size(); ++i) {
      momentum[i] = 0.9f * momentum[i] + 1e-9f * static_cast<float>(batch());
      weights[i] -= 0.01f * momentum[i] * weights[i];
    }
    Need(client.Snapshot(++step));  // returns at once; a step may be left out
    uint64_t sum = 0;
    for (float weight : weights) sum = sum * 31 + static_cast<uint64_t>(weight * 1e9f);
    std::printf("step %llu sum %016llx\n", (unsigned long long)step, (unsigned long long)sum);
    std::fflush(stdout);
  }
}
