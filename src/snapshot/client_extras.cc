// What a rank had stored beside its tensors: this one's comes with the decision, those of others
// are asked for.
#include <utility>

#include "base/crc32c.h"
#include "snapshot/client_actor.h"

namespace unreft::snapshot {

void ClientActor::RestoreExtras(Rank rank,
                                absl::AnyInvocable<void(absl::StatusOr<StoredExtras>)> done) {
  absl::Status status = refused_;
  if (status.ok() && !restore_open_) {
    status = absl::FailedPreconditionError(
        fmt::format("the extras of rank {}: needed a restore that has begun and has not ended, and "
                    "that is of a version",
                    rank));
  }
  if (!status.ok()) {
    return executor_.Post(
        [done = std::move(done), status = std::move(status)]() mutable { done(status); });
  }
  extras_waiter_.Wait(
      options_.restore_timeout,
      [this, rank] {
        return fmt::format(
            "no extras of rank {} within {} s ({})", rank,
            std::chrono::duration_cast<std::chrono::seconds>(options_.restore_timeout).count(),
            session_.Connection());
      },
      std::move(done));
  session_.Ask(ExtrasRequest{.request = ++last_request_, .rank = rank});
  TellIfItKnowsNoExtras();
}

void ClientActor::TellIfItKnowsNoExtras() {
  if (!session_.connected() || session_.knows(FrameType::kExtrasRequest)) return;
  extras_waiter_.Answer(absl::UnavailableError(
      "the daemon of this node is of an older release, which does not give the extras of other "
      "ranks: start the present one in its place"));
}

void ClientActor::OnExtras(Extras extras) {
  if (!extras_waiter_.waiting()) return;
  if (absl::Status status = extras.status.ToStatus(); !status.ok()) {
    return extras_waiter_.Answer(std::move(status));
  }
  StoredExtras stored;
  const RestoreReport report = TakeExtras(extras.extras, stored);
  ReportRead(report);
  if (!report.status.ok()) return extras_waiter_.Answer(Advised(report.status));
  extras_waiter_.Answer(std::move(stored));
}

RestoreReport ClientActor::TakeExtras(const WireExtras& stored, StoredExtras& extras) const {
  if (stored.slot.generation != Generation{}) {
    return restorer_.ReadExtras(stored.slot, extras.emplace());
  }
  if (!stored.has_remote) return {};
  const auto bytes = std::as_bytes(std::span(stored.remote));
  if (const uint32_t found = Crc32c(bytes); found != stored.remote_crc) {
    return {.status = absl::DataLossError(
                fmt::format("{} bytes of extras of another node need CRC {:08x}, found {:08x}",
                            bytes.size(), stored.remote_crc, found))};
  }
  extras.emplace(bytes.begin(), bytes.end());
  return {};
}

}  // namespace unreft::snapshot
