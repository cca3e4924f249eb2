#include "tools/bench/probes_bench.h"

#include <emmintrin.h>
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <string>

#include "base/check.h"
#include "layout/tensor_table.h"
#include "snapshot/client_options.h"
#include "snapshot/probed_state.h"
#include "tools/bench/measure.h"

namespace unreft::bench {
namespace {

constexpr double kTarget = 3.0;
constexpr int kTimesMore = 5;  // repetitions: each takes less than a millisecond or a few
constexpr size_t kCacheBytes = size_t{64} << 20;
constexpr size_t kLine = snapshot::TensorProbes::kLineBytes;

// A weight, its two moments and its step count, again and again.
class ManyTensors {
 public:
  ManyTensors(size_t count, uint64_t weight_bytes)
      : memory_(count * (weight_bytes / kLine + 1)), caches_(new std::byte[kCacheBytes]) {
    std::vector<TensorSpec> specs;
    auto shards = std::make_shared<std::vector<snapshot::ShardMemory>>();
    std::byte* at = memory_.front().bytes;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t elements = i % 4 == 3 ? 1 : weight_bytes / 4;
      specs.push_back({.name = fmt::format("optimizer/model.layers.{}.weight/{}", i / 4, i % 4),
                       .global_shape = {elements},
                       .offset = {0},
                       .extent = {elements}});
      shards->push_back({at});
      at += weight_bytes + kLine;
    }
    probes_ = std::make_shared<const snapshot::TensorProbes>(
        *layout::TensorTable::Create(std::move(specs)), *shards,
        snapshot::CaptureOptions{}.probe_lines);
    shards_ = std::move(shards);
    for (size_t i = 0; i < probes_->host_count(); ++i) {
      const std::byte* const data = (*shards_)[probes_->host_tensor(i)].data;
      for (const auto& range : probes_->HostRanges(i, Step{1}))
        lines_.push_back(data + range.begin);
    }
  }

  void Probe() {
    const snapshot::ProbedPtr before =
        snapshot::Probe(probes_, shards_, Step{1}, /*and_device=*/false);
    const auto written = snapshot::FindWritten(*before, 0, before->host.size(), {});
    UNREFT_CHECK(written.count == 0, "nobody writes");
  }
  void Read() {
    for (int pass = 0; pass < 2; ++pass) {
      uint64_t sum = 0;
      for (const std::byte* line : lines_) {
        uint32_t word = 0;
        std::memcpy(&word, line, sizeof(word));
        sum += word;
      }
      sink_ = sink_ + sum;
    }
  }
  // The lines are flushed by name: what a large memset leaves in the last cache, and whether it
  // goes through it at all, depends on the processor.
  void EmptyCaches() {
    std::memset(caches_.get(), static_cast<int>(++turn_), kCacheBytes);
    for (const std::byte* line : lines_) {
      _mm_clflush(line);
    }
    _mm_mfence();
  }

 private:
  struct alignas(kLine) Line {
    std::byte bytes[kLine];
  };

  std::vector<Line> memory_;  // as frameworks allocate tensors, each begins with a line
  std::unique_ptr<std::byte[]> caches_;
  snapshot::MemoryPtr shards_;
  snapshot::ProbesPtr probes_;
  std::vector<const std::byte*> lines_;
  volatile uint64_t sink_ = 0;
  uint64_t turn_ = 0;
};

}  // namespace

std::vector<Record> RunProbes(int repetitions) {
  std::vector<Record> records;
  for (const auto& [count, weight_bytes] :
       {std::pair<size_t, uint64_t>{1936, 128 << 10}, {133'328, 2 << 10}}) {
    ManyTensors tensors(count, weight_bytes);
    const auto cold = [&](auto timed) {
      return Body([&] { tensors.EmptyCaches(); }, timed, [] {});
    };
    const std::vector<Seconds> seconds = MedianSeconds(
        kTimesMore * repetitions, {cold([&] { tensors.Probe(); }), cold([&] { tensors.Read(); })});
    records.push_back({.name = fmt::format("probes_{}", count),
                       .value = seconds[0].cpu * 1e3,
                       .unit = "ms",
                       .reference_name = "reading the lines",
                       .reference = seconds[1].cpu * 1e3,
                       .target = kTarget,
                       .less_is_better = true});
    Print(records.back());
  }
  return records;
}

}  // namespace unreft::bench
