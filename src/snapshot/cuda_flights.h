// CudaFlights: what was given to one stream and has not happened yet, in order.
//
// A flight is an event behind some work and what is to be done once the work is over. A thread of
// its own waits for the events, since CUDA's own callbacks would hold up the stream. Thread-safe.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "snapshot/cuda_device.h"

namespace unreft::snapshot {

class CudaFlights {
 public:
  using Landed = absl::AnyInvocable<void(absl::Status)>;

  // `stream` outlives the flights.
  CudaFlights(std::shared_ptr<const CudaDevice> device, cudaStream_t stream);
  // Waits until all have landed.
  ~CudaFlights();
  CudaFlights(const CudaFlights&) = delete;
  CudaFlights& operator=(const CudaFlights&) = delete;

  // Calls `landed` on the thread of the flights once what the stream was given so far is over, with
  // `issued` if that is an error, or else with what the device says. In a CudaScope.
  void Launch(const CudaScope& scope, absl::Status issued, Landed landed);

  // Makes `other` wait for what was launched. In a CudaScope; never blocks the host.
  absl::Status MakeWait(const CudaScope& scope, cudaStream_t other) const;

  // Whose work is not over.
  size_t count() const;
  // Until all have landed.
  void WaitUntilNone() const;

 private:
  struct Flight {
    cudaEvent_t event = nullptr;  // null: there is nothing to wait for
    absl::Status issued;
    Landed landed;
  };

  absl::StatusOr<cudaEvent_t> RecordLocked(const CudaScope& scope);
  void Run();
  absl::Status Await(const Flight& flight) const;

  const std::shared_ptr<const CudaDevice> device_;
  const cudaStream_t stream_;

  mutable std::mutex mutex_;  // covers all below
  mutable std::condition_variable changed_;
  std::deque<Flight> flights_;  // the first stays until it has landed
  size_t landing_ = 0;          // 1: the first is
  std::vector<cudaEvent_t> spare_;
  bool ending_ = false;

  std::thread thread_;
};

}  // namespace unreft::snapshot
