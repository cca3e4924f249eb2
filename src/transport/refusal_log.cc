#include "transport/refusal_log.h"

#include <utility>

namespace unreft {

void RefusalLog::Call(const std::string& address, const std::string& method, std::string request,
                      Duration timeout, CallDone done) {
  inner_->Call(address, method, std::move(request), timeout, Watched(address, std::move(done)));
}

TransferId RefusalLog::Read(const std::string& address, std::string request,
                            std::span<std::byte> into, Duration timeout, ReadDone done) {
  return inner_->Read(address, std::move(request), into, timeout,
                      Watched(address, std::move(done)));
}

Transport::CallDone RefusalLog::Watched(const std::string& address, CallDone done) {
  return [this, address, done = std::move(done)](absl::StatusOr<std::string> reply) mutable {
    const absl::Status& status = reply.status();
    if (absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status)) {
      log_.WarnEvery("refusal " + address, interval_, executor_.Now(), "refused: {}",
                     status.message());
    }
    done(std::move(reply));
  };
}

}  // namespace unreft
