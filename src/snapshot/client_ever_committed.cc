// Whether anything was ever committed: a question of the client that decides nothing.
#include <utility>

#include "snapshot/client_actor.h"

namespace unreft::snapshot {

void ClientActor::EverCommitted(absl::AnyInvocable<void(absl::StatusOr<bool>)> done) {
  if (!refused_.ok()) {
    return executor_.Post(
        [done = std::move(done), why = refused_]() mutable { done(std::move(why)); });
  }
  auto unavailable = [done = std::move(done)](absl::StatusOr<bool> answer) mutable {
    if (absl::IsDeadlineExceeded(answer.status())) {
      answer = absl::UnavailableError(answer.status().message());
    }
    done(std::move(answer));
  };
  ever_committed_waiter_.Wait(
      options_.connect_timeout,
      Late("no answer whether anything was ever committed", options_.connect_timeout),
      std::move(unavailable));
  session_.Ask(EverCommittedRequest{.request = ++last_request_});
  TellIfItCannotBeAsked();
}

void ClientActor::TellIfItCannotBeAsked() {
  if (!session_.connected() || session_.knows(FrameType::kEverCommittedRequest)) return;
  ever_committed_waiter_.Answer(absl::UnavailableError(
      "the daemon of this node is of an older release, which cannot say whether anything was ever "
      "committed: start the present one in its place"));
}

void ClientActor::OnEverCommitted(const unreft::EverCommitted& answer) {
  const absl::Status status = answer.status.ToStatus();
  ever_committed_waiter_.Answer(status.ok() ? absl::StatusOr<bool>(answer.ever) : status);
}

}  // namespace unreft::snapshot
