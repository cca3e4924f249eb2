#include "transport/local_transport.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/format.h"

namespace unreft {
namespace {

constexpr char kRead[] = "read";

}  // namespace

LocalTransport::~LocalTransport() {
  for (const auto& [number, asked] : asked_) executor_.Cancel(asked.deadline);
}

uint64_t LocalTransport::Begin(const std::string& address, const std::string& method,
                               std::span<std::byte> into, Duration timeout, CallDone done) {
  const uint64_t number = ++last_;
  Asked& asked = asked_[number];
  asked.name = fmt::format("{}: {}", address, method);
  asked.into = into;
  asked.done = std::move(done);
  asked.deadline = executor_.After(timeout, [this, number, timeout] {
    End(number, absl::DeadlineExceededError(fmt::format(
                    "no answer within {} ms",
                    std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count())));
  });
  if (address != address_) {
    EndSoon(number, absl::UnavailableError("a job of one node has no other"));
  }
  return number;
}

void LocalTransport::Call(const std::string& address, const std::string& method,
                          std::string request, Duration timeout, CallDone done) {
  const uint64_t number = Begin(address, method, {}, timeout, std::move(done));
  if (address != address_) return;
  executor_.Post(lifetime_.Bind([this, number, method, request = std::move(request)]() mutable {
    const auto found = calls_.find(method);
    if (found == calls_.end()) return End(number, absl::UnimplementedError("no such method"));
    const std::shared_ptr<CallHandler> handler = found->second;
    (*handler)(std::move(request),
               lifetime_.Bind([this, number](absl::StatusOr<std::string> reply) {
                 EndSoon(number, std::move(reply));
               }));
  }));
}

TransferId LocalTransport::Read(const std::string& address, std::string request,
                                std::span<std::byte> into, Duration timeout, ReadDone done) {
  const uint64_t number = Begin(address, kRead, into, timeout, std::move(done));
  if (address != address_) return TransferId{number};
  executor_.Post(
      lifetime_.Bind([this, number, request = std::move(request), bytes = into.size()]() mutable {
        const std::shared_ptr<ReadHandler> handler = reads_;
        if (handler == nullptr) return End(number, absl::UnimplementedError("no reads are served"));
        (*handler)(std::move(request), bytes,
                   lifetime_.Bind([this, number](absl::StatusOr<ReadSource> source) {
                     TakeBytes(number, std::move(source));
                   }));
      }));
  return TransferId{number};
}

void LocalTransport::TakeBytes(uint64_t asked, absl::StatusOr<ReadSource> source) {
  const auto found = asked_.find(asked);
  if (found == asked_.end()) return;  // its memory is not ours any more
  if (!source.ok()) return EndSoon(asked, source.status());
  const std::span<std::byte> into = found->second.into;
  size_t bytes = 0;
  for (const std::span<const std::byte> part : source->parts) bytes += part.size();
  if (bytes != into.size()) {
    return EndSoon(asked, absl::DataLossError(
                              fmt::format("{} bytes came, {} were asked for", bytes, into.size())));
  }
  std::byte* to = into.data();
  for (const std::span<const std::byte> part : source->parts) {
    if (part.empty()) continue;
    std::memcpy(to, part.data(), part.size());
    to += part.size();
  }
  EndSoon(asked, std::move(source->header));
}

void LocalTransport::EndSoon(uint64_t asked, absl::StatusOr<std::string> reply) {
  executor_.Post(lifetime_.Bind(
      [this, asked, reply = std::move(reply)]() mutable { End(asked, std::move(reply)); }));
}

void LocalTransport::End(uint64_t asked, absl::StatusOr<std::string> reply) {
  auto found = asked_.extract(asked);
  if (found.empty()) return;
  executor_.Cancel(found.mapped().deadline);
  if (!reply.ok()) {
    reply = absl::Status(reply.status().code(),
                         fmt::format("{}: {}", found.mapped().name, reply.status().message()));
  }
  found.mapped().done(std::move(reply));
}

void LocalTransport::Cancel(TransferId transfer) {
  EndSoon(static_cast<uint64_t>(transfer), absl::CancelledError("cancelled"));
}

void LocalTransport::Serve(const std::string& method, CallHandler handler) {
  if (handler == nullptr) {
    calls_.erase(method);
  } else {
    calls_[method] = std::make_shared<CallHandler>(std::move(handler));
  }
}

void LocalTransport::ServeReads(ReadHandler handler) {
  reads_ = handler == nullptr ? nullptr : std::make_shared<ReadHandler>(std::move(handler));
}

}  // namespace unreft
