// unreft_gpu_checksum_bench: checksums on device 0 against those of the CPU, and what they cost.
// JSON on stdout; ends with 77 where no device is, with 1 if a checksum is wrong.
//
//   unreft_gpu_checksum_bench [BYTES] [ROUNDS]
//
// Medians. `alone` is the kernel over all bytes and the results' way to the host; the capture is
// that of the copier in blocks of 1 MiB, with checksums and without.

#include <cstdio>
#include <cstring>
#include <future>
#include <random>
#include <thread>

#include "base/asio_executor.h"
#include "base/crc32c.h"
#include "snapshot/cuda_copier.h"
#include "tools/bench/gpu_measure.h"

namespace unreft::bench {
namespace {

using snapshot::CopyOp;
using snapshot::CudaCopier;

constexpr size_t kBucketBytes = size_t{8} << 20;
constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr size_t kFillBytes = size_t{64} << 20;
constexpr size_t kOddPiecesMax = 20000;

class ChecksumBench {
 public:
  ChecksumBench(size_t bytes, int rounds) : bytes_(bytes), rounds_(rounds), slot_(bytes) {
    Must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    Must(cudaMalloc(&tensors_, bytes), "device memory");
    Fill();
  }
  ~ChecksumBench() {
    thread_.Join();
    Must(cudaFree(tensors_), "freeing");
    Must(cudaStreamDestroy(stream_), "the stream's end");
  }

  // Empty if all checksums are right, or else which is not.
  std::string Run(std::string& json) {
    const double plain = Capture(/*checksum=*/false);
    const double checked = Capture(/*checksum=*/true);
    const double restore_plain = Restore(/*checksum=*/false);
    const double restore_checked = Restore(/*checksum=*/true);
    const size_t odd = OddPieces();
    const double alone = Alone();
    json = fmt::format(
        "{{\"bytes\": {}, \"rounds\": {}, \"pieces_compared\": {}, \"wrong\": \"{}\",\n"
        " \"capture_gb_s\": {:.2f}, \"capture_checked_gb_s\": {:.2f},\n"
        " \"capture_checked_of_plain\": {:.4f}, \"checksum_alone_gb_s\": {:.2f},\n"
        " \"restore_gb_s\": {:.2f}, \"restore_checked_gb_s\": {:.2f}}}\n",
        bytes_, rounds_, compared_ + odd, wrong_, plain, checked, checked / plain, alone,
        restore_plain, restore_checked);
    return wrong_;
  }

 private:
  // Bytes that are not all alike, by way of pinned memory; the same are kept in `here_`.
  void Fill() {
    here_.resize(bytes_);
    std::mt19937_64 random(1);
    for (size_t at = 0; at + 8 <= bytes_; at += 8) {
      const uint64_t word = random();
      std::memcpy(&here_[at], &word, 8);
    }
    void* pinned = nullptr;
    Must(cudaHostAlloc(&pinned, kFillBytes, cudaHostAllocDefault), "pinned memory");
    for (size_t at = 0; at < bytes_; at += kFillBytes) {
      const size_t run = std::min(kFillBytes, bytes_ - at);
      std::memcpy(pinned, &here_[at], run);
      Must(cudaMemcpyAsync(On(at), pinned, run, cudaMemcpyHostToDevice, stream_), "filling");
      Must(cudaStreamSynchronize(stream_), "filling");
    }
    Must(cudaFreeHost(pinned), "freeing");
  }
  std::byte* On(size_t at) const { return static_cast<std::byte*>(tensors_) + at; }

  void MakeCopier(bool checksum) {
    auto made = CudaCopier::Create(thread_.executor(), 0, {.checksum = checksum});
    UNREFT_CHECK(made.ok(), "{}", std::string(made.status().message()));
    copier_ = *std::move(made);
    pin_ = copier_->Pin(slot_.owner(), slot_.bytes());
    while (copier_->pins().progress().busy) std::this_thread::yield();
  }
  void EndCopier() {
    pin_.reset();
    copier_.reset();
  }

  void Compare(size_t begin, size_t bytes, uint32_t found) {
    const uint32_t needed = Crc32c(std::span(here_).subspan(begin, bytes));
    if (found == needed || !wrong_.empty()) return;
    wrong_ =
        fmt::format("{} bytes at {}: found {:08x}, needed {:08x}", bytes, begin, found, needed);
  }

  double Capture(bool checksum) {
    MakeCopier(checksum);
    std::vector<uint32_t> crcs(bytes_ / kBlockBytes + 1);
    std::vector<double> seconds;
    for (int round = 0; round < rounds_; ++round) {
      const Clock::time_point begin = Clock::now();
      UNREFT_CHECK(copier_->Begin(stream_).ok(), "a snapshot begins");
      std::vector<std::future<absl::Status>> answers;
      for (size_t at = 0; at < bytes_; at += kBucketBytes) {
        std::vector<CopyOp> ops;
        for (size_t block = at; block < std::min(at + kBucketBytes, bytes_); block += kBlockBytes) {
          ops.push_back({On(block), slot_.data() + block, std::min(kBlockBytes, bytes_ - block),
                         true, checksum ? &crcs[block / kBlockBytes] : nullptr});
        }
        answers.push_back(Queue(std::move(ops)));
      }
      for (auto& answer : answers) Await(answer);
      seconds.push_back(SecondsSince(begin));
    }
    for (size_t at = 0; at < bytes_ && checksum; at += kBlockBytes, ++compared_) {
      Compare(at, std::min(kBlockBytes, bytes_ - at), crcs[at / kBlockBytes]);
    }
    EndCopier();
    return static_cast<double>(bytes_) / Median(seconds) / 1e9;
  }

  double Restore(bool checksum) {
    MakeCopier(checksum);
    std::vector<double> seconds;
    for (int round = 0; round < rounds_; ++round) {
      const Clock::time_point begin = Clock::now();
      UNREFT_CHECK(copier_->BeginRestore().ok(), "a restore begins");
      for (size_t at = 0; at < bytes_; at += kBlockBytes) {
        const CopyOp op{slot_.data() + at, On(at), std::min(kBlockBytes, bytes_ - at), true};
        UNREFT_CHECK(copier_->Restore({&op, 1}).ok(), "block at {}", at);
      }
      const absl::Status ended = copier_->EndRestore();
      if (!ended.ok() && wrong_.empty()) wrong_ = std::string(ended.message());
      seconds.push_back(SecondsSince(begin));
    }
    EndCopier();
    return static_cast<double>(bytes_) / Median(seconds) / 1e9;
  }

  // Of every alignment and many sizes, thousands in a launch.
  size_t OddPieces() {
    MakeCopier(/*checksum=*/true);
    std::mt19937_64 random(2);
    std::vector<CopyOp> ops;
    std::vector<uint32_t> crcs(kOddPiecesMax);
    size_t at = 0;
    while (ops.size() < kOddPiecesMax) {
      const size_t bytes = ops.size() % 100 == 0 ? random() % 300'000 : random() % 700;
      if (at + bytes > bytes_) break;
      ops.push_back({On(at), slot_.data() + at, bytes, true, &crcs[ops.size()]});
      at += bytes + random() % 3;
    }
    UNREFT_CHECK(copier_->Begin(stream_).ok(), "a snapshot begins");
    std::future<absl::Status> answer = Queue(ops);
    Await(answer);
    for (const CopyOp& op : ops) {
      Compare(static_cast<size_t>(op.source - On(0)), op.bytes, *op.crc);
    }
    EndCopier();
    return ops.size();
  }

  double Alone() {
    auto api = snapshot::CudaApi::Load();
    UNREFT_CHECK(api.ok(), "the runtime was loaded before");
    auto device = snapshot::CudaDevice::Open(*api, 0);
    UNREFT_CHECK(device.ok(), "{}", std::string(device.status().message()));
    auto kernel = snapshot::CudaChecksum::LoadKernel(*device, stream_);
    UNREFT_CHECK(kernel.ok(), "{}", std::string(kernel.status().message()));
    auto checksum = snapshot::CudaChecksum::Create(*device, *kernel, size_t{512} << 10);
    UNREFT_CHECK(checksum.ok(), "{}", std::string(checksum.status().message()));
    std::vector<CopyOp> ops;
    std::vector<uint32_t> crcs(bytes_ / kBlockBytes + 1);
    for (size_t at = 0; at < bytes_; at += kBlockBytes) {
      ops.push_back(
          {On(at), nullptr, std::min(kBlockBytes, bytes_ - at), true, &crcs[at / kBlockBytes]});
    }
    std::vector<double> seconds;
    for (int round = 0; round < rounds_; ++round) {
      const snapshot::CudaScope scope(**device);
      const Clock::time_point begin = Clock::now();
      UNREFT_CHECK((*checksum)->ComputeNow(scope, ops, stream_).ok(), "checksums");
      seconds.push_back(SecondsSince(begin));
    }
    return static_cast<double>(bytes_) / Median(seconds) / 1e9;
  }

  std::future<absl::Status> Queue(std::vector<CopyOp> ops) {
    auto answer = std::make_shared<std::promise<absl::Status>>();
    std::future<absl::Status> future = answer->get_future();
    copier_->CopyBucket(std::move(ops),
                        [answer](absl::Status status) { answer->set_value(std::move(status)); });
    return future;
  }
  static void Await(std::future<absl::Status>& answer) {
    const absl::Status status = answer.get();
    UNREFT_CHECK(status.ok(), "{}", std::string(status.message()));
  }

  const size_t bytes_;
  const int rounds_;
  Slot slot_;
  std::vector<std::byte> here_;
  cudaStream_t stream_ = nullptr;
  void* tensors_ = nullptr;
  ExecutorThread thread_{"copier"};
  std::unique_ptr<CudaCopier> copier_;
  std::shared_ptr<void> pin_;
  size_t compared_ = 0;
  std::string wrong_;  // the first
};

}  // namespace
}  // namespace unreft::bench

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "skipped: no CUDA device\n");
    return 77;
  }
  const size_t bytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : size_t{2} << 30;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  if (bytes < (1 << 20) || rounds < 1) {
    std::fprintf(stderr, "needed 1 MiB or more and 1 round or more\n");
    return 2;
  }
  std::string json;
  const std::string wrong = unreft::bench::ChecksumBench(bytes, rounds).Run(json);
  std::fputs(json.c_str(), stdout);
  if (!wrong.empty()) std::fprintf(stderr, "wrong: %s\n", wrong.c_str());
  return wrong.empty() ? 0 : 1;
}
