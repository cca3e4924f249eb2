// What the benchmarks on a GPU measure with.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"

namespace unreft::bench {

using Clock = std::chrono::steady_clock;

inline void Must(cudaError_t error, const char* what) {
  UNREFT_CHECK(error == cudaSuccess, "{}: {}", what, cudaGetErrorString(error));
}

inline double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Memory as a slot is: shared, mapped, populated; of huge pages where they are asked for and the
// host gives them.
class Slot {
 public:
  explicit Slot(size_t bytes, bool huge = false) : bytes_(bytes) {
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    UNREFT_CHECK(mapped != MAP_FAILED, "{} bytes of memory", bytes);
    memory_ = std::shared_ptr<std::byte>(static_cast<std::byte*>(mapped),
                                         [bytes](std::byte* at) { munmap(at, bytes); });
    madvise(mapped, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    for (size_t at = 0; at < bytes; at += kPage) memory_.get()[at] = std::byte{1};
  }
  std::byte* data() const { return memory_.get(); }
  std::span<std::byte> bytes() const { return {memory_.get(), bytes_}; }
  std::shared_ptr<const void> owner() const { return memory_; }

  // As the kernel says in /proc/self/smaps.
  size_t huge_bytes() const {
    const std::string begin = fmt::format("{:x}-", reinterpret_cast<uintptr_t>(data()));
    std::ifstream smaps("/proc/self/smaps");
    std::string line;
    bool here = false;
    while (std::getline(smaps, line)) {
      if (line.starts_with(begin)) here = true;
      if (!here || !line.starts_with("ShmemPmdMapped:")) continue;
      return std::strtoull(line.c_str() + line.find(':') + 1, nullptr, 10) << 10;
    }
    return 0;
  }

 private:
  static constexpr size_t kPage = 4096;
  const size_t bytes_;
  std::shared_ptr<std::byte> memory_;
};

// Small launches on a stream of its own, one after the other, as a training thread makes them.
class Launcher {
 public:
  Launcher() {
    Must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    Must(cudaMalloc(&memory_, 256), "device memory");
  }
  ~Launcher() {
    Must(cudaStreamDestroy(stream_), "the stream's end");
    Must(cudaFree(memory_), "freeing");
  }
  // Until `done`; the longest call, in milliseconds.
  template <typename Done>
  double WorstMs(Done done) {
    double worst = 0;
    for (int launches = 1; !done(launches); ++launches) {
      const Clock::time_point begin = Clock::now();
      Must(cudaMemsetAsync(memory_, 0, 256, stream_), "a launch");
      worst = std::max(worst, SecondsSince(begin));
      // So that it is not its own queue that holds it up.
      if (launches % 64 == 0) Must(cudaStreamSynchronize(stream_), "launches");
    }
    return worst * 1e3;
  }

 private:
  cudaStream_t stream_ = nullptr;
  void* memory_ = nullptr;
};

}  // namespace unreft::bench
