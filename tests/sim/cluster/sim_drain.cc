#include "tests/sim/cluster/sim_drain.h"

#include <absl/strings/escaping.h>

#include <memory>
#include <utility>

#include "base/check.h"
#include "durable/copy_restore.h"

namespace unreft::sim {
namespace {

using std::chrono::milliseconds;

}  // namespace

absl::Status SimDrain::Start(const std::string& bytes,
                             absl::AnyInvocable<void(const std::string& line)> on_line,
                             absl::AnyInvocable<void()> on_end) {
  if (runs_) return absl::FailedPreconditionError("the drain runs");
  runs_ = true;
  is_stopped_ = false;
  CopyPartRequest order;
  UNREFT_CHECK(order.ParseFromString(bytes));
  // What it writes to slots is there some time before it says so.
  const Duration works = milliseconds(1 + random_.Below(50));
  const Duration says = works + milliseconds(random_.Below(20));
  auto last = std::make_shared<CopyPartReply>();
  executor_.After(works, lifetime_.Bind([this, last, order = std::move(order)] {
    absl::StatusOr<CopyPartReply> done =
        is_stopped_ ? absl::CancelledError("the copy was cancelled") : CarryOut(order);
    if (done.ok()) {
      *last = *std::move(done);
      return;
    }
    last->set_error(std::string(done.status().message()));
    last->set_is_damaged(absl::IsDataLoss(done.status()));
  }));
  executor_.After(says, lifetime_.Bind([this, last, on_line = std::move(on_line),
                                        on_end = std::move(on_end)]() mutable {
    on_line(absl::BytesToHexString(last->SerializeAsString()));
    runs_ = false;
    on_end();
  }));
  return absl::OkStatus();
}

absl::StatusOr<CopyPartReply> SimDrain::CarryOut(const CopyPartRequest& order) {
  switch (order.what()) {
    case CopyPartRequest::SURVEY: {
      // There is one, and it is new: the daemon writes none by itself.
      CopyPartReply reply;
      reply.set_is_done(true);
      reply.mutable_newest()->set_timeline(1);
      return reply;
    }
    case CopyPartRequest::SEARCH:
      return durable::SearchShelf(shelf_.store(), DurableShelf::kDirectory, kJob);
    case CopyPartRequest::DESCRIBE:
      return durable::DescribeSlabs(*shelf_.CopyAt(order.directory()), order);
    case CopyPartRequest::LOAD:
      return durable::FillSlots(*shelf_.CopyAt(order.directory()), segments_, order,
                                [](uint64_t, uint64_t) { return true; });
    default:
      return absl::UnimplementedError("the simulated drain writes no copies");
  }
}

}  // namespace unreft::sim
