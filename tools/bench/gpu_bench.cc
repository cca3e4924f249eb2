// unreft_gpu_bench: the CUDA copier against the copy engine's peak, on device 0. JSON on stdout;
// ends with 77 where no device is.
//
//   unreft_gpu_bench [BYTES] [ROUNDS]
//
// Peaks are those of one cudaMemcpyAsync of 64 MiB after another with memory of cudaHostAlloc.
// Medians, but for the launches: how long the call of a small one took that another thread makes
// meanwhile, at worst.

#include <atomic>
#include <cstdio>
#include <future>
#include <thread>

#include "base/asio_executor.h"
#include "snapshot/cuda_copier.h"
#include "snapshot/stream_copy.h"
#include "tools/bench/gpu_measure.h"

namespace unreft::bench {
namespace {

using snapshot::CopyOp;
using snapshot::CudaCopier;

constexpr size_t kBucketBytes = size_t{8} << 20;
constexpr size_t kPeakBytes = size_t{64} << 20;
constexpr size_t kRestoreBytes = size_t{1} << 20;  // a block
constexpr size_t kRestoreThreads = 8;
constexpr int kEnqueued = 1024;  // CudaOptions::enqueued_max
constexpr int kLaunchesIdle = 10000;
constexpr size_t kTinyPiecesBytes = size_t{64} << 20;

class GpuBench {
 public:
  GpuBench(size_t bytes, int rounds) : bytes_(bytes), rounds_(rounds), slot_(bytes) {
    Must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    Must(cudaMalloc(&tensors_, bytes), "device memory");
    Must(cudaMemsetAsync(tensors_, 1, bytes, stream_), "filling");
    Must(cudaStreamSynchronize(stream_), "filling");
    auto made = CudaCopier::Create(thread_.executor(), 0, {});
    UNREFT_CHECK(made.ok(), "{}", std::string(made.status().message()));
    copier_ = *std::move(made);
  }
  ~GpuBench() {
    pin_.reset();
    copier_.reset();
    thread_.Join();
    Must(cudaFree(tensors_), "freeing");
    Must(cudaStreamDestroy(stream_), "the stream's end");
  }

  std::string Run() {
    const double d2h = Peak(cudaMemcpyDeviceToHost);
    const double h2d = Peak(cudaMemcpyHostToDevice);
    const double by_buffers = Capture(bytes_);
    Launcher launcher;
    const double launch_idle =
        launcher.WorstMs([](int launches) { return launches > kLaunchesIdle; });
    const std::string huge = OfHugePages(launcher);
    const Pinning pinning = Pin(slot_, launcher);
    pin_ = pinning.pin;
    const Enqueued enqueued = EnqueueMany(launcher);
    const double straight = Capture(bytes_);
    const double block_ms = Median(block_s_) * 1e3;
    const double fence_ms = FenceMs();
    const double small = Capture(size_t{16} << 10);
    // One word of a list for each: not of all that there is.
    const size_t tiny_bytes = std::min(bytes_, kTinyPiecesBytes);
    const double tiny = Capture(64, tiny_bytes);
    const double restore = Restore();
    return fmt::format(
        "{{\"bytes\": {}, \"rounds\": {}, \"copier\": \"{}\",\n"
        " \"pinned_d2h_peak_gb_s\": {:.2f}, \"pinned_h2d_peak_gb_s\": {:.2f},\n"
        " \"pinning_s\": {:.3f}, \"pinned_bytes\": {},\n"
        " \"launch_idle_ms_max\": {:.4f}, \"launch_while_pinning_ms_max\": {:.4f},\n{}"
        " \"copies_enqueued\": {}, \"copies_enqueued_in_ms\": {:.3f},\n"
        " \"copies_done_in_ms\": {:.3f}, \"enqueue_call_ms_max\": {:.4f},\n"
        " \"launch_while_enqueuing_ms_max\": {:.4f},\n"
        " \"capture_gb_s\": {:.2f}, \"capture_of_peak\": {:.3f},\n"
        " \"capture_16_kib_pieces_gb_s\": {:.2f}, \"capture_16_kib_pieces_of_peak\": {:.3f},\n"
        " \"capture_64_b_pieces_gb_s\": {:.3f}, \"capture_64_b_pieces_of_peak\": {:.4f},\n"
        " \"capture_64_b_pieces_bytes\": {}, \"capture_by_buffers_gb_s\": {:.2f},\n"
        " \"host_blocked_by_snapshot_ms\": {:.4f}, \"host_blocked_by_fence_ms\": {:.4f},\n"
        " \"restore_gb_s\": {:.2f}, \"restore_of_peak\": {:.3f}}}\n",
        bytes_, rounds_, copier_->Describe(), d2h, h2d, pinning.seconds, pinning.bytes, launch_idle,
        pinning.launch_ms_max, huge, kEnqueued, enqueued.enqueued_ms, enqueued.done_ms,
        enqueued.call_ms_max, enqueued.launch_ms_max, straight, straight / d2h, small, small / d2h,
        tiny, tiny / d2h, tiny_bytes, by_buffers, block_ms, fence_ms, restore, restore / h2d);
  }

 private:
  struct Pinning {
    std::shared_ptr<void> pin;
    double seconds = 0;
    size_t bytes = 0;
    double launch_ms_max = 0;  // of another thread meanwhile
  };
  struct Enqueued {
    double enqueued_ms = 0;  // all of them
    double done_ms = 0;
    double call_ms_max = 0;
    double launch_ms_max = 0;  // of another thread meanwhile
  };

  Pinning Pin(const Slot& slot, Launcher& launcher) {
    const size_t before = copier_->pins().progress().pinned;
    const Clock::time_point begin = Clock::now();
    Pinning pinning{.pin = copier_->Pin(slot.owner(), slot.bytes())};
    pinning.launch_ms_max =
        launcher.WorstMs([this](int) { return !copier_->pins().progress().busy; });
    pinning.seconds = SecondsSince(begin);
    pinning.bytes = copier_->pins().progress().pinned - before;
    return pinning;
  }

  // The same of a slot in huge pages, as far as the host gives any.
  std::string OfHugePages(Launcher& launcher) {
    const auto slot = std::make_unique<Slot>(bytes_, /*huge=*/true);
    const size_t huge_bytes = slot->huge_bytes();
    if (huge_bytes == 0) return " \"huge_page_bytes\": 0, \"pinning_huge_s\": null,\n";
    Pinning pinning = Pin(*slot, launcher);
    pinning.pin.reset();
    while (copier_->pins().progress().busy) std::this_thread::yield();
    return fmt::format(
        " \"huge_page_bytes\": {}, \"pinning_huge_s\": {:.3f}, \"pinned_huge_bytes\": {},\n"
        " \"launch_while_pinning_huge_ms_max\": {:.4f},\n",
        huge_bytes, pinning.seconds, pinning.bytes, pinning.launch_ms_max);
  }

  double Rate(const std::vector<double>& seconds, size_t bytes) const {
    return static_cast<double>(bytes) / Median(seconds) / 1e9;
  }

  double Peak(cudaMemcpyKind kind) {
    void* pinned = nullptr;
    const size_t chunk = std::min(kPeakBytes, bytes_);
    Must(cudaHostAlloc(&pinned, chunk, cudaHostAllocDefault), "pinned memory");
    std::vector<double> seconds;
    const bool to_host = kind == cudaMemcpyDeviceToHost;
    for (int round = 0; round < rounds_; ++round) {
      const Clock::time_point begin = Clock::now();
      for (size_t at = 0; at + chunk <= bytes_; at += chunk) {
        std::byte* tensor = static_cast<std::byte*>(tensors_) + at;
        Must(cudaMemcpyAsync(to_host ? pinned : tensor, to_host ? tensor : pinned, chunk, kind,
                             stream_),
             "copying");
      }
      Must(cudaStreamSynchronize(stream_), "copying");
      seconds.push_back(SecondsSince(begin));
    }
    Must(cudaFreeHost(pinned), "freeing");
    return Rate(seconds, bytes_ / chunk * chunk);
  }

  // Whether so many copies can be given to a stream without being held up, or holding up others.
  Enqueued EnqueueMany(Launcher& launcher) {
    Enqueued result;
    std::atomic<bool> done = false;
    std::jthread other(
        [&] { result.launch_ms_max = launcher.WorstMs([&](int) { return done.load(); }); });
    const size_t chunk = std::min(kBucketBytes, bytes_ / 32);
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < kEnqueued; ++i) {
      const size_t at = static_cast<size_t>(i) % (bytes_ / chunk) * chunk;
      const Clock::time_point call = Clock::now();
      Must(cudaMemcpyAsync(slot_.data() + at, static_cast<std::byte*>(tensors_) + at, chunk,
                           cudaMemcpyDeviceToHost, stream_),
           "copying");
      result.call_ms_max = std::max(result.call_ms_max, SecondsSince(call) * 1e3);
    }
    result.enqueued_ms = SecondsSince(begin) * 1e3;
    Must(cudaStreamSynchronize(stream_), "copying");
    result.done_ms = SecondsSince(begin) * 1e3;
    done = true;
    other.join();
    return result;
  }

  // In buckets, each of pieces of so many bytes at most.
  double Capture(size_t piece_bytes) { return Capture(piece_bytes, bytes_); }
  double Capture(size_t piece_bytes, size_t bytes) {
    std::vector<double> seconds;
    block_s_.clear();
    for (int round = 0; round < rounds_; ++round) {
      const Clock::time_point begin = Clock::now();
      UNREFT_CHECK(copier_->Begin(stream_).ok(), "a snapshot begins");
      block_s_.push_back(SecondsSince(begin));
      std::vector<std::future<absl::Status>> answers = QueueBuckets(piece_bytes, bytes);
      for (auto& answer : answers) {
        const absl::Status status = answer.get();
        UNREFT_CHECK(status.ok(), "{}", std::string(status.message()));
      }
      seconds.push_back(SecondsSince(begin));
    }
    return Rate(seconds, bytes);
  }

  // While copies are under way; those that are not enqueued by then are given up.
  double FenceMs() {
    std::vector<double> seconds;
    for (int round = 0; round < rounds_; ++round) {
      UNREFT_CHECK(copier_->Begin(stream_).ok(), "a snapshot begins");
      std::vector<std::future<absl::Status>> answers = QueueBuckets(kBucketBytes, bytes_);
      const Clock::time_point fence = Clock::now();
      UNREFT_CHECK(copier_->Fence(stream_).ok(), "a fence");
      seconds.push_back(SecondsSince(fence));
      for (auto& answer : answers) {
        const absl::Status status = answer.get();
        UNREFT_CHECK(status.ok() || absl::IsAborted(status), "{}", std::string(status.message()));
      }
    }
    return Median(seconds) * 1e3;
  }

  std::vector<std::future<absl::Status>> QueueBuckets(size_t piece_bytes, size_t bytes) {
    std::vector<std::future<absl::Status>> answers;
    for (size_t at = 0; at < bytes; at += kBucketBytes) {
      const size_t end = std::min(at + kBucketBytes, bytes);
      std::vector<CopyOp> ops;
      for (size_t piece = at; piece < end; piece += piece_bytes) {
        ops.push_back({static_cast<std::byte*>(tensors_) + piece, slot_.data() + piece,
                       std::min(piece_bytes, end - piece), true});
      }
      auto answer = std::make_shared<std::promise<absl::Status>>();
      answers.push_back(answer->get_future());
      copier_->CopyBucket(std::move(ops),
                          [answer](absl::Status status) { answer->set_value(std::move(status)); });
    }
    return answers;
  }

  // Verified on so many threads while it is copied to the copier's rooms, as a restart does it.
  double Restore() {
    std::vector<double> seconds;
    for (int round = 0; round < rounds_; ++round) {
      const Clock::time_point begin = Clock::now();
      UNREFT_CHECK(copier_->BeginRestore().ok(), "a restore begins");
      {
        std::vector<std::jthread> threads;
        for (size_t i = 0; i < kRestoreThreads; ++i) {
          threads.emplace_back([this, i] { RestoreShare(i); });
        }
      }
      UNREFT_CHECK(copier_->EndRestore().ok(), "a restore ends");
      seconds.push_back(SecondsSince(begin));
    }
    return Rate(seconds, bytes_);
  }

  void RestoreShare(size_t share) {
    const size_t blocks = bytes_ / kRestoreBytes;
    const size_t end = blocks * (share + 1) / kRestoreThreads;
    for (size_t block = blocks * share / kRestoreThreads; block < end;) {
      const std::span<std::byte> room = copier_->TakeRoom();
      std::vector<snapshot::RoomPiece> pieces;
      for (size_t used = 0; block < end && used + kRestoreBytes <= room.size();
           used += kRestoreBytes, ++block) {
        const size_t at = block * kRestoreBytes;
        const uint32_t crc =
            snapshot::StreamCopyCrc32c(0, room.data() + used, slot_.data() + at, kRestoreBytes);
        snapshot::StreamFence();
        pieces.push_back({used, kRestoreBytes, static_cast<std::byte*>(tensors_) + at, crc});
      }
      UNREFT_CHECK(copier_->Send(room, pieces).ok(), "block {}", block);
    }
  }

  const size_t bytes_;
  const int rounds_;
  Slot slot_;
  cudaStream_t stream_ = nullptr;
  void* tensors_ = nullptr;
  ExecutorThread thread_{"copier"};
  std::unique_ptr<CudaCopier> copier_;
  std::shared_ptr<void> pin_;
  std::vector<double> block_s_;
};

}  // namespace
}  // namespace unreft::bench

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "skipped: no CUDA device\n");
    return 77;
  }
  const size_t bytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : size_t{4} << 30;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  if (bytes < (1 << 20) || rounds < 1) {
    std::fprintf(stderr, "needed 1 MiB or more and 1 round or more\n");
    return 2;
  }
  std::fputs(unreft::bench::GpuBench(bytes, rounds).Run().c_str(), stdout);
  return 0;
}
