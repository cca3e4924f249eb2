#include "tests/sim/device.h"

#include <cstring>
#include <utility>

namespace unreft::sim {
namespace {

void CopyHalf(std::span<const snapshot::CopyOp> ops, bool first) {
  for (const snapshot::CopyOp& op : ops) {
    const size_t half = op.bytes / 2;
    const size_t begin = first ? 0 : half;
    std::memcpy(op.target + begin, op.source + begin, first ? half : op.bytes - half);
  }
}

}  // namespace

struct Device::Copy {
  std::vector<snapshot::CopyOp> ops;
  std::shared_ptr<void> keep;
  Done done;
  bool fails = false;
};

void Device::Queue(std::vector<snapshot::CopyOp> ops, std::shared_ptr<void> keep, Done done) {
  auto copy = std::make_shared<Copy>(Copy{std::move(ops), std::move(keep), std::move(done)});
  copy->fails = failing_ > 0 && failing_-- > 0;
  SimScheduler& scheduler = kernel_.scheduler();
  const Duration now = scheduler.now();
  const Duration begin = std::max(due_, now) + scheduler.RandomDelay(options_.copy_max / 2);
  due_ = begin + scheduler.RandomDelay(options_.copy_max / 2) + Duration(1);
  ++queued_;
  if (options_.says_done_early) std::exchange(copy->done, [](absl::Status) {})(absl::OkStatus());
  kernel_.Deliver(begin - now, [copy] { CopyHalf(copy->ops, true); });
  kernel_.Deliver(due_ - now, [self = shared_from_this(), copy] { self->End(copy); });
}

void Device::End(const std::shared_ptr<Copy>& copy) {
  if (!copy->fails) CopyHalf(copy->ops, false);
  --queued_;
  copy->done(copy->fails ? absl::InternalError("the device failed") : absl::OkStatus());
  if (queued_ == 0 && idle_) std::exchange(idle_, nullptr)();
}

void Device::WhenIdle(Task idle) {
  if (queued_ == 0) return idle();
  idle_ = std::move(idle);
}

absl::Status SimCopier::CopyNow(std::span<const snapshot::CopyOp> ops) {
  for (const snapshot::CopyOp& op : ops) std::memcpy(op.target, op.source, op.bytes);
  return absl::OkStatus();
}

void SimCopier::CopyBucket(std::vector<snapshot::CopyOp> ops,
                           absl::AnyInvocable<void(absl::Status)> done) {
  device_->Queue(std::move(ops), memory_,
                 [process = &process_, done = std::move(done)](absl::Status status) mutable {
                   process->Post([done = std::move(done), status]() mutable { done(status); });
                 });
}

absl::Status SimCopier::Restore(std::span<const snapshot::CopyOp> ops) { return CopyNow(ops); }

}  // namespace unreft::sim
