#include "snapshot/cuda_flights.h"

#include <utility>

namespace unreft::snapshot {

CudaFlights::CudaFlights(std::shared_ptr<const CudaDevice> device, cudaStream_t stream)
    : device_(std::move(device)), stream_(stream), thread_([this] { Run(); }) {}

CudaFlights::~CudaFlights() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  const CudaScope scope(*device_);
  if (!scope.status().ok()) return;  // the events are gone
  for (cudaEvent_t event : spare_) {
    scope.Check(device_->api().cudaEventDestroy(event), "destroying an event").IgnoreError();
  }
}

void CudaFlights::Launch(const CudaScope& scope, absl::Status issued, Landed landed) {
  {
    std::lock_guard lock(mutex_);
    absl::StatusOr<cudaEvent_t> event = RecordLocked(scope);
    if (issued.ok()) issued = event.status();
    flights_.push_back({event.ok() ? *event : nullptr, std::move(issued), std::move(landed)});
  }
  changed_.notify_all();
}

absl::StatusOr<cudaEvent_t> CudaFlights::RecordLocked(const CudaScope& scope) {
  if (!scope.status().ok()) return scope.status();
  const CudaApi& api = device_->api();
  cudaEvent_t event = nullptr;
  absl::Status status;
  if (!spare_.empty()) {
    event = spare_.back();
    spare_.pop_back();
  } else {
    status = scope.Check(
        api.cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
        "making an event");
  }
  if (status.ok()) status = scope.Check(api.cudaEventRecord(event, stream_), "recording an event");
  if (status.ok()) return event;
  // Nothing tells when the work is over but the stream itself.
  scope.Check(api.cudaStreamSynchronize(stream_), "waiting for the copies").IgnoreError();
  return status;
}

absl::Status CudaFlights::MakeWait(const CudaScope& scope, cudaStream_t other) const {
  std::lock_guard lock(mutex_);
  if (flights_.empty() || flights_.back().event == nullptr) return absl::OkStatus();
  return scope.Check(device_->api().cudaStreamWaitEvent(other, flights_.back().event, 0),
                     "making the training stream wait");
}

size_t CudaFlights::count() const {
  std::lock_guard lock(mutex_);
  return flights_.size() - landing_;
}

void CudaFlights::WaitUntilNone() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return flights_.empty(); });
}

void CudaFlights::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !flights_.empty(); });
    if (flights_.empty()) return;
    Flight& flight = flights_.front();
    lock.unlock();
    // The deque grows behind it meanwhile, which leaves it in place.
    const absl::Status status = Await(flight);
    lock.lock();
    landing_ = 1;
    lock.unlock();
    std::exchange(flight.landed, nullptr)(status);
    lock.lock();
    landing_ = 0;
    if (flight.event != nullptr) spare_.push_back(flight.event);
    flights_.pop_front();
    changed_.notify_all();
  }
}

absl::Status CudaFlights::Await(const Flight& flight) const {
  if (flight.event == nullptr) return flight.issued;
  const CudaScope scope(*device_);
  if (!scope.status().ok()) return flight.issued.ok() ? scope.status() : flight.issued;
  const absl::Status over =
      scope.Check(device_->api().cudaEventSynchronize(flight.event), "waiting for a copy");
  return flight.issued.ok() ? over : flight.issued;
}

}  // namespace unreft::snapshot
