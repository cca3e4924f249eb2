#include "meta/run_forget.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "base/asio_executor.h"
#include "meta/forget_job.h"

namespace unreft::meta {
namespace {

// Nothing but this waits: a store that elects its leader is waited for.
constexpr Duration kCallTimeoutMin = std::chrono::seconds(10);

}  // namespace

absl::StatusOr<std::vector<std::string>> RunForget(EtcdKvOptions options, const std::string& job,
                                                   bool although_present) {
  options.call_timeout = std::max(options.call_timeout, kCallTimeoutMin);
  AsioExecutor executor;
  absl::StatusOr<std::unique_ptr<EtcdKv>> kv = EtcdKv::Create(std::move(options), executor);
  if (!kv.ok()) return kv.status();
  std::optional<absl::StatusOr<std::vector<std::string>>> result;
  executor.Post([&] {
    ForgetJob(**kv, job, although_present, [&](absl::StatusOr<std::vector<std::string>> removed) {
      result = std::move(removed);
      executor.Stop();
    });
  });
  executor.Run();
  return *std::move(result);
}

}  // namespace unreft::meta
