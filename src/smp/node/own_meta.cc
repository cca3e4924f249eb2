#include "smp/node/own_meta.h"

#include <utility>

#include "base/check.h"

namespace unreft::smp {
namespace {

// Whoever watches is told in the turn of the change, and asks for nothing that is long past.
constexpr meta::StoreLimits kLimits{.history_events_max = 64};

}  // namespace

OwnMeta::OwnMeta(Executor& executor, Random& random)
    : records_(executor),
      engine_(executor, records_, random, log_, {.limits = kLimits}),
      kv_(executor, engine_),
      transport_(executor) {}

void OwnMeta::Start(absl::AnyInvocable<void()> done) {
  engine_.Start([done = std::move(done)](const absl::Status& status) mutable {
    UNREFT_CHECK(status.ok(), "records in memory are read: {}", status.ToString());
    done();
  });
}

}  // namespace unreft::smp
