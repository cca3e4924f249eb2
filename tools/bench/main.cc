// unreft_bench: what the hot paths reach of memcpy, on one machine, in one run.
//
//   unreft_bench [--out DIR] [--mib N] [--repetitions N]
//
// A reference is memcpy in its best form here: the same bytes between the same touched pages, on as
// many threads, in one call per tensor or in calls of 256 KiB, whichever is faster. Tensors begin
// on a cache line, as those of PyTorch do. What an aggregator computes is measured against its own
// parts.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/check.h"
#include "base/crc32c.h"
#include "snapshot/stream_copy.h"
#include "tools/bench/bench_state.h"
#include "tools/bench/measure.h"
#include "tools/bench/probes_bench.h"
#include "tools/bench/protection_bench.h"
#include "tools/bench/record.h"
#include "tools/bench/transport_bench.h"

namespace unreft::bench {
namespace {

constexpr size_t kCallBytes = size_t{256} << 10;
constexpr double kTarget = 0.90;

void MemcpyInCalls(std::byte* target, const std::byte* source, size_t bytes, size_t call_bytes) {
  for (size_t at = 0; at < bytes; at += call_bytes) {
    std::memcpy(target + at, source + at, std::min(call_bytes, bytes - at));
  }
}

enum class Direction { kCapture, kRestore };

// Tensors first, first + stride, ...
void CopyTensors(const BenchState& state, Direction direction, size_t call_bytes, size_t first = 0,
                 size_t stride = 1) {
  for (size_t i = first; i < state.tensors().size(); i += stride) {
    const snapshot::BoundTensor& tensor = state.tensors()[i];
    std::byte* from = direction == Direction::kCapture ? tensor.data : state.slab(i);
    std::byte* to = direction == Direction::kCapture ? state.slab(i) : tensor.data;
    MemcpyInCalls(to, from, ShardBytes(tensor.spec), call_bytes);
  }
}

void CopyTensorsOnTwoThreads(const BenchState& state, Direction direction, size_t call_bytes) {
  std::jthread other([&] { CopyTensors(state, direction, call_bytes, 1, 2); });
  CopyTensors(state, direction, call_bytes, 0, 2);
}

uint64_t SumWords(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof(word));
    sum += word;
  }
  return sum;
}

class Bench {
 public:
  Bench(BenchState& state, int repetitions) : state_(state), repetitions_(repetitions) {}

  std::vector<Record> Run() {
    Capture("capture_host", "memcpy, 1 thread", false,
            [this](size_t call_bytes) { CopyTensors(state_, Direction::kCapture, call_bytes); });
    Capture("capture_host_fence_helps", "memcpy, 2 threads", true, [this](size_t call_bytes) {
      CopyTensorsOnTwoThreads(state_, Direction::kCapture, call_bytes);
    });
    Restart();
    Checksum();
    return std::move(records_);
  }

 private:
  void Capture(const std::string& name, const std::string& reference, bool helping,
               const std::function<void(size_t)>& memcpy_all) {
    Compare(name, reference, kTarget,
            {[&] { state_.CaptureOnce(helping); }, [&] { memcpy_all(SIZE_MAX); },
             [&] { memcpy_all(kCallBytes); }});
    state_.CaptureOnce(helping);
    UNREFT_CHECK(state_.SlabEqualsTensors(), "the capture has the tensors' bytes");
  }

  void Restart() {
    state_.CaptureOnce(false);
    state_.Seal();
    const auto nothing = [] {};
    const auto map = [this] { state_.MapAhead(); };
    const auto restore = [this] { state_.RestoreOnce(); };
    const auto unmap = [this] { state_.Unmap(); };
    const Body in_one_call = [this] { CopyTensors(state_, Direction::kRestore, SIZE_MAX); };
    const Body in_calls = [this] { CopyTensors(state_, Direction::kRestore, kCallBytes); };
    // What the trainer waits for once there is a decision: it was mapped during the wait for it,
    // and is unmapped when the trainer has its bytes.
    const std::vector<Seconds> local = Compare("restart_local", "memcpy, 1 thread", kTarget,
                                               {Body(map, restore, unmap), in_one_call, in_calls});
    // What other work on the machine changes less.
    Add("restart_local_cpu", "GB/CPU s", "memcpy, 1 thread", std::nullopt, local, &Seconds::cpu);
    Compare("restart_local_cold", "memcpy, 1 thread", std::nullopt,
            {Body(nothing, restore, unmap), in_one_call, in_calls});
    Compare("restart_local_map_ahead", "memcpy, 1 thread", std::nullopt,
            {Body(nothing, map, unmap), in_one_call, in_calls});
    Compare("restart_local_unmap", "memcpy, 1 thread", std::nullopt,
            {Body(
                 [&] {
                   map();
                   restore();
                 },
                 unmap, nothing),
             in_one_call, in_calls});
    // All of it, against a process that maps and unmaps too.
    Compare("restart_local_new_mapping", "mmap + memcpy, 1 thread", kTarget,
            {Body([&] {
               restore();
               unmap();
             }),
             Body([this] { state_.MapAndCopyOnce(); })});
    UNREFT_CHECK(state_.SlabEqualsTensors(), "the restart has the slab's bytes");
  }

  void Checksum() {
    const std::span<const std::byte> slab = state_.slab();
    volatile uint64_t sink = 0;
    Compare("crc32c", "reading alone", std::nullopt,
            {[&] {
               for (size_t at = 0; at < slab.size(); at += 1 << 20) {
                 sink = sink + Crc32c(slab.subspan(at, 1 << 20));
               }
             },
             [&] { sink = sink + SumWords(slab); }});
  }

  // The first body against the fastest of the others.
  std::vector<Seconds> Compare(const std::string& name, const std::string& reference,
                               std::optional<double> target, const std::vector<Body>& bodies) {
    const std::vector<Seconds> seconds = MedianSeconds(repetitions_, bodies);
    Add(name, "GB/s", reference, target, seconds, &Seconds::wall);
    return seconds;
  }

  void Add(const std::string& name, const std::string& unit, const std::string& reference,
           std::optional<double> target, const std::vector<Seconds>& seconds,
           double Seconds::* clock) {
    const auto best = std::ranges::min_element(seconds.begin() + 1, seconds.end(), {}, clock);
    const auto rate = [this](double s) { return static_cast<double>(state_.bytes()) / s / 1e9; };
    records_.push_back({.name = name,
                        .value = rate(seconds[0].*clock),
                        .unit = unit,
                        .reference_name = reference,
                        .reference = rate((*best).*clock),
                        .target = target});
    Print(records_.back());
  }

  BenchState& state_;
  const int repetitions_;
  std::vector<Record> records_;
};

int Main(int argc, char** argv) {
  CLI::App app("Capture and restart against memcpy");
  std::string out = "build/bench";
  uint64_t mib = 1024;
  int repetitions = 7;
  app.add_option("--out", out, "directory of the JSON records");
  app.add_option("--mib", mib, "bytes of state, in MiB")->check(CLI::Range(64, 1 << 20));
  app.add_option("--repetitions", repetitions, "of each measurement")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);

  absl::StatusOr<std::unique_ptr<BenchState>> state = BenchState::Make(mib << 20);
  if (!state.ok()) {
    fmt::print(stderr, "unreft_bench: {}\n", state.status().ToString());
    return 1;
  }
  fmt::print("{} tensors, {:.2f} GB, {} copies, checked {}, medians of {}\n",
             (*state)->tensors().size(), static_cast<double>((*state)->bytes()) / 1e9,
             snapshot::StreamCopyKind(),
             snapshot::StreamCopyCrc32cIsFused() ? "in the same loop" : "in tiles", repetitions);
  const std::vector<Record> client = Bench(**state, repetitions).Run();
  state->reset();  // its memory is room for the next
  const std::vector<Record> probes = RunProbes(repetitions);
  const std::vector<Record> protection = RunProtection(repetitions);
  const std::vector<Record> transport = RunTransport(repetitions);
  std::error_code error;
  std::filesystem::create_directories(out, error);
  absl::Status status = Write(client, out + "/client.json");
  status.Update(Write(probes, out + "/probes.json"));
  status.Update(Write(protection, out + "/protection.json"));
  status.Update(Write(transport, out + "/transport.json"));
  if (!status.ok()) fmt::print(stderr, "unreft_bench: {}\n", status.ToString());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace unreft::bench

int main(int argc, char** argv) { return unreft::bench::Main(argc, argv); }
