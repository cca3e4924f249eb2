// Capture's fences, and its other waits for copies.

#include <utility>

#include "base/check.h"
#include "snapshot/capture.h"

namespace unreft::snapshot {
namespace {

long long Milliseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

}  // namespace

std::string Capture::LateMessage() const {
  return fmt::format("a fence waited {} ms for its copies", Milliseconds(options_.fence_timeout));
}

absl::Status Capture::Fence(void* stream) {
  UNREFT_CHECK(!executor_.InTurn());
  const Time since = executor_.Now();
  absl::Status status;
  {
    std::unique_lock lock(mutex_);
    fenced_ = true;
    unfenced_.clear();
    const RunPtr run = run_;
    if (run && run->layout->on_device()) status = FenceDevice(run, stream, since, lock);
    WaitLocked(run, since, /*for_host_only=*/true, lock);
  }
  RecordWait(since);
  return status;
}

// Until the device has all copies, or there is no need: a host that runs ahead of its device gets
// to the fence before that, and would give up every snapshot otherwise.
void Capture::AwaitEnqueued(const RunPtr& run, Time since, std::unique_lock<std::mutex>& lock) {
  const auto handed_over = [&] {
    return !run->closed.empty() ||
           (!run->preparing && run->device.all_taken() && run->handing_over == 0);
  };
  const Time until = since + options_.fence_timeout;
  ended_.wait_for(lock, until - executor_.Now(), handed_over);
  if (!run->closed.empty()) return;
  lock.unlock();
  copier_.AwaitEnqueued(until - executor_.Now());
  lock.lock();
}

// Also of a snapshot that is given up already: copies of it may still be reading.
absl::Status Capture::FenceDevice(const RunPtr& run, void* stream,
                                  Time since, std::unique_lock<std::mutex>& lock) {
  AwaitEnqueued(run, since, lock);
  // What came to the copier after its fence would be read when it may change.
  run->fencing = true;
  ended_.wait(lock, [&] { return run->handing_over == 0; });
  if (!run->device.all_taken() || run->preparing) {
    CloseLocked(run, fmt::format("the fence came when {} of {} copies from the device were queued",
                                 run->device.taken(), run->device.size()));
  }
  lock.unlock();
  absl::Status status = copier_.Fence(stream);
  lock.lock();
  if (!status.ok()) {
    CloseLocked(run, fmt::format("no fence: {}", std::string(status.message())));
  }
  return status;
}

void Capture::WaitForCopies() {
  UNREFT_CHECK(!executor_.InTurn());
  std::unique_lock lock(mutex_);
  WaitLocked(run_, executor_.Now(), /*for_host_only=*/false, lock);
}

void Capture::WaitLocked(const RunPtr& waited_for, Time since, bool for_host_only,
                         std::unique_lock<std::mutex>& lock) {
  const RunPtr run = waited_for;  // run_ itself may be what is referred to
  while (run && run_ == run && !(for_host_only && run->host_over())) {
    const Duration left = since + options_.fence_timeout - executor_.Now();
    if (run->closed.empty() && left <= Duration::zero()) {
      CloseLocked(run, LateMessage());
    } else if (run->closed.empty() && options_.fence_helps && !run->preparing &&
               run->host.ready()) {
      Help(lock);
    } else if (run->closed.empty()) {
      ended_.wait_for(lock, left);
    } else {
      ended_.wait(lock);  // for the copies that are under way: they end without anybody's help
    }
  }
}

void Capture::RecordWait(Time since) {
  const Duration waited = executor_.Now() - since;
  board_.Edit([&](ClientStatus& status) {
    status.last_fence_wait = waited;
    status.total_fence_wait += waited;
  });
}

void Capture::FenceThen(Task done) {
  {
    std::lock_guard lock(mutex_);
    fenced_ = true;
    unfenced_.clear();
  }
  WhenCopied(std::move(done));
}

void Capture::WhenCopied(Task done) {
  const Time since = executor_.Now();
  Task finish = lifetime_.Bind([this, since, done = std::move(done)]() mutable {
    RecordWait(since);
    done();
  });
  std::lock_guard lock(mutex_);
  if (!run_) return executor_.Post(std::move(finish));
  const uint64_t id = ++last_waiting_;
  const TimerId timer =
      executor_.After(options_.fence_timeout, lifetime_.Bind([this, id] { FenceTimedOut(id); }));
  waiting_.push_back({id, std::move(finish), timer});
}

void Capture::FenceTimedOut(uint64_t waiting_id) {
  std::lock_guard lock(mutex_);
  for (const Waiting& waiting : waiting_) {
    if (waiting.id == waiting_id) return CloseLocked(run_, LateMessage());
  }
}

}  // namespace unreft::snapshot
