// unreft_gpu_job_fault: a training process whose own kernel writes out of bounds while snapshots
// are taken. One line of JSON on stdout; ends with 77 where no device is.
//
//   unreft_gpu_job_fault fault     step 1 is committed, the kernel of step 2 goes wrong
//   unreft_gpu_job_fault resume    the next attempt: what it restores
//
// The daemon is that of UNREFT_SOCKET. What is said is judged by who runs it.

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/out_of_bounds_kernel.h"
#include "unreft/unreft.h"

extern "C" {
extern const unsigned char unreft_out_of_bounds_image[];
}

namespace {

constexpr uint64_t kBytes = 48'000'001;
constexpr int64_t kTimeoutMs = 30'000;
// Beyond what any device has.
constexpr unsigned long long kFar = 1ULL << 40;

// What is not to go wrong: ends the process with its name.
void Must(bool right, const std::string& what) {
  if (right) return;
  std::fprintf(stderr, "%s: %s (%s)\n", what.c_str(), unreft_error(),
               cudaGetErrorName(cudaPeekAtLastError()));
  std::exit(1);
}
void Must(cudaError_t error, const char* what) { Must(error == cudaSuccess, what); }

// As a JSON string; of messages, which have no control characters.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c == '\n' ? ' ' : c;
  }
  return quoted + "\"";
}

class Job {
 public:
  explicit Job(int64_t attempt) {
    Must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    Must(cudaMalloc(&data_, kBytes), "device memory");
    unreft::OpenOptions options;
    options.rank = 0;
    options.world = 1;
    options.attempt = attempt;
    auto opened = unreft::Client::Open(options);
    Must(opened.ok(), "the client");
    client_ = std::make_unique<unreft::Client>(std::move(*opened));
  }

  std::vector<unreft::Tensor> Tensors() const {
    unreft::Tensor tensor;
    tensor.name = "w";
    tensor.dtype = UNREFT_UINT8;
    tensor.global_shape = {kBytes};
    tensor.data = data_;
    tensor.device_kind = UNREFT_CUDA;
    return {tensor};
  }
  void Write(int value) { Must(cudaMemsetAsync(data_, value, kBytes, stream_), "a step"); }
  // Until no copy of a snapshot runs.
  void AwaitCopies() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kTimeoutMs);
    while (client_->GetStatus()->copying) {
      Must(std::chrono::steady_clock::now() < deadline, "the copies end");
      std::this_thread::yield();
    }
  }
  void AwaitReady() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kTimeoutMs);
    while (!client_->GetStatus()->ready) {
      Must(std::chrono::steady_clock::now() < deadline, "a slot is granted");
      std::this_thread::yield();
    }
  }
  // Returns at once, as every launch.
  void LaunchOutOfBounds() {
    cudaLibrary_t library = nullptr;
    cudaKernel_t kernel = nullptr;
    Must(cudaLibraryLoadData(&library, unreft_out_of_bounds_image, nullptr, nullptr, 0, nullptr,
                             nullptr, 0),
         "loading the job's kernel");
    Must(cudaLibraryGetKernel(&kernel, library, unreft::kOutOfBoundsKernel), "the job's kernel");
    unsigned long long offset = kFar;
    void* arguments[] = {&data_, &offset};
    cudaLaunchConfig_t config{};
    config.gridDim = {1, 1, 1};
    config.blockDim = {32, 1, 1};
    config.stream = stream_;
    Must(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments),
         "launching the job's kernel");
  }

  unreft::Client& client() { return *client_; }
  cudaStream_t stream() const { return stream_; }
  void Close() { client_.reset(); }

  // Whether every byte is `value`, by way of pinned memory.
  bool IsAll(int value) {
    void* pinned = nullptr;
    Must(cudaHostAlloc(&pinned, kBytes, cudaHostAllocDefault), "pinned memory");
    Must(cudaMemcpyAsync(pinned, data_, kBytes, cudaMemcpyDeviceToHost, stream_), "copying");
    Must(cudaStreamSynchronize(stream_), "copying");
    const auto* bytes = static_cast<const unsigned char*>(pinned);
    bool all = true;
    for (uint64_t i = 0; i < kBytes && all; ++i) all = bytes[i] == value;
    Must(cudaFreeHost(pinned), "freeing");
    return all;
  }

 private:
  cudaStream_t stream_ = nullptr;
  void* data_ = nullptr;
  std::unique_ptr<unreft::Client> client_;
};

int Fault() {
  Job job(0);
  Must(job.client().Restore().ok(), "a fresh start");
  Must(job.client().Register(job.Tensors(), 0).ok(), "the registration");
  job.AwaitReady();
  job.Write(1);
  auto first = job.client().Snapshot(1, {}, job.stream());
  Must(first.ok() && first->started, "the first snapshot");
  job.AwaitCopies();
  Must(job.client().WaitCommitted(1, kTimeoutMs).ok(), "the first commit");
  Must(job.client().Fence(job.stream()).ok(), "a fence");
  job.AwaitReady();

  job.LaunchOutOfBounds();
  // It may be seen by the snapshot, or by its copies, which come behind the kernel.
  auto second = job.client().Snapshot(2, {}, job.stream());
  std::string said = second.ok() ? "" : second.error().message;
  job.AwaitCopies();
  const bool fenced = job.client().Fence(job.stream()).ok();
  // The error is the job's to read, as if there were no snapshots.
  const cudaError_t own = cudaStreamSynchronize(job.stream());
  auto status = *job.client().GetStatus();
  if (said.empty()) said = status.last_problem;
  auto committed = job.client().WaitCommitted(2, kTimeoutMs);
  job.Close();  // returns, too
  std::printf(
      "{\"own_error\": %d, \"own_error_name\": %s, \"said\": %s, \"committed\": %llu, "
      "\"second_committed\": %s, \"second_fenced\": %s}\n",
      static_cast<int>(own), Quoted(cudaGetErrorName(own)).c_str(), Quoted(said).c_str(),
      static_cast<unsigned long long>(status.last_committed_step),
      committed.ok() ? "true" : "false", fenced ? "true" : "false");
  return 0;
}

int Resume() {
  Job job(1);
  job.Write(9);
  auto restored = job.client().Restore();
  Must(restored.ok() && !restored->fresh, "a restore");
  Must(job.client().Read(job.Tensors()).ok(), "the restore's bytes");
  const bool equal = job.IsAll(static_cast<int>(restored->step));
  std::printf("{\"restored\": %llu, \"equal\": %s}\n",
              static_cast<unsigned long long>(restored->step), equal ? "true" : "false");
  job.Close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "skipped: no CUDA device\n");
    return 77;
  }
  const std::string what = argc == 2 ? argv[1] : "";
  if (what == "fault") return Fault();
  if (what == "resume") return Resume();
  std::fprintf(stderr, "needed fault or resume\n");
  return 2;
}
