// Random: the only source of randomness; comes by constructor like time does.
#pragma once

#include <array>
#include <cstdint>
#include <random>

namespace unreft {

// A 128-bit random name, for lives that must never be taken for one another.
using RandomId = std::array<uint8_t, 16>;

// Deterministic from its seed, the same on every platform (the standard fixes mt19937_64).
// Not thread-safe; not for secrets.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  // Seeded from the operating system.
  static Random FromEntropy() {
    std::random_device device;
    return Random((uint64_t{device()} << 32) ^ device());
  }

  uint64_t Next() { return engine_(); }

  // Uniform in [0, bound); bound > 0.
  uint64_t Below(uint64_t bound) {
    const uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
    uint64_t value = Next();
    while (value >= limit) value = Next();
    return value % bound;
  }

  // True once in `n` times on average.
  bool OneIn(uint64_t n) { return Below(n) == 0; }

  RandomId NextId() {
    RandomId id;
    for (size_t i = 0; i < id.size(); ++i) id[i] = static_cast<uint8_t>(Next() >> 56);
    return id;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace unreft
