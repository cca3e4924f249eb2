#include "transport/faulty_transport.h"

#include <fmt/format.h>

#include <utility>

#include "base/format.h"

namespace unreft {
namespace {

absl::Status Injected(const std::string& address, const std::string& method,
                      const absl::Status& status) {
  return {status.code(), fmt::format("{} {}: {}", address, method, status.message())};
}

absl::Status Late(const std::string& address, const std::string& method) {
  return Injected(address, method, absl::DeadlineExceededError("delayed beyond the deadline"));
}

}  // namespace

FaultyTransport::FaultyTransport(Executor& executor, std::unique_ptr<Transport> inner)
    : executor_(executor),
      self_(std::make_shared<FaultyTransport*>(this)),
      inner_(std::move(inner)) {}

FaultyTransport::~FaultyTransport() = default;

void FaultyTransport::Add(TransportFault fault) { rules_.push_back({std::move(fault)}); }

void FaultyTransport::Clear() { rules_.clear(); }

const TransportFault* FaultyTransport::Strike(const std::string& method,
                                              const std::string& address) {
  const TransportFault* striking = nullptr;
  for (Rule& rule : rules_) {
    const TransportFault& fault = rule.fault;
    if (fault.method != method) continue;
    if (!fault.address.empty() && fault.address != address) continue;
    ++rule.seen;
    const bool strikes = rule.seen >= fault.first && rule.seen - fault.first < fault.count;
    if (strikes && striking == nullptr) striking = &fault;
  }
  if (striking != nullptr) ++faults_struck_;
  return striking;
}

void FaultyTransport::Post(Task task) {
  executor_.Post([self = std::weak_ptr(self_), task = std::move(task)]() mutable {
    if (!self.expired()) task();
  });
}

void FaultyTransport::After(Duration delay, Task task) {
  executor_.After(delay, [self = std::weak_ptr(self_), task = std::move(task)]() mutable {
    if (!self.expired()) task();
  });
}

void FaultyTransport::Delay(Duration delay, Duration timeout,
                            absl::AnyInvocable<void(Duration left)> start, Task late) {
  if (delay >= timeout) return After(timeout, std::move(late));
  After(delay, [left = timeout - delay, start = std::move(start)]() mutable { start(left); });
}

void FaultyTransport::Call(const std::string& address, const std::string& method,
                           std::string request, Duration timeout, CallDone done) {
  using Kind = TransportFault::Kind;
  const TransportFault* fault = Strike(method, address);
  if (fault == nullptr) {
    return inner_->Call(address, method, std::move(request), timeout, std::move(done));
  }
  const absl::Status status = Injected(address, method, fault->status);
  switch (fault->kind) {
    case Kind::kRefuse:
      return Post([done = std::move(done), status]() mutable { done(status); });
    case Kind::kLoseAnswer:
      return inner_->Call(
          address, method, std::move(request), timeout,
          [done = std::move(done), status](absl::StatusOr<std::string> reply) mutable {
            done(reply.ok() ? status : reply.status());
          });
    case Kind::kDelay: {
      // Shared by the two ends that it may come to.
      auto shared = std::make_shared<CallDone>(std::move(done));
      return Delay(
          fault->delay, timeout,
          [this, address, method, request = std::move(request), shared](Duration left) mutable {
            inner_->Call(address, method, std::move(request), left, std::move(*shared));
          },
          [address, method, shared] { (*shared)(Late(address, method)); });
    }
  }
}

TransferId FaultyTransport::Read(const std::string& address, std::string request,
                                 std::span<std::byte> into, Duration timeout, ReadDone done) {
  using Kind = TransportFault::Kind;
  const TransferId id{++last_id_};
  reads_[id].done = std::move(done);
  const TransportFault* fault = Strike("", address);
  if (fault == nullptr) {
    Send(id, address, std::move(request), into, timeout, absl::OkStatus());
    return id;
  }
  const absl::Status status = Injected(address, "Read", fault->status);
  switch (fault->kind) {
    case Kind::kRefuse:
      Post([this, id, status] { EndRead(id, status); });
      break;
    case Kind::kLoseAnswer:
      Send(id, address, std::move(request), into, timeout, status);
      break;
    case Kind::kDelay:
      Delay(
          fault->delay, timeout,
          [this, id, address, request = std::move(request), into](Duration left) mutable {
            if (!reads_.contains(id)) return;  // cancelled meanwhile
            Send(id, address, std::move(request), into, left, absl::OkStatus());
          },
          [this, id, address] { EndRead(id, Late(address, "Read")); });
      break;
  }
  return id;
}

void FaultyTransport::Send(TransferId id, const std::string& address, std::string request,
                           std::span<std::byte> into, Duration timeout, absl::Status lose) {
  reads_[id].inner =
      inner_->Read(address, std::move(request), into, timeout,
                   [this, id, lose = std::move(lose)](absl::StatusOr<std::string> header) {
                     if (header.ok() && !lose.ok()) header = lose;
                     EndRead(id, std::move(header));
                   });
}

void FaultyTransport::EndRead(TransferId id, absl::StatusOr<std::string> header) {
  auto node = reads_.extract(id);
  if (node) node.mapped().done(std::move(header));  // last: it may destroy the transport
}

void FaultyTransport::Cancel(TransferId transfer) {
  const auto found = reads_.find(transfer);
  if (found == reads_.end()) return;
  if (found->second.inner != TransferId::kNone) return inner_->Cancel(found->second.inner);
  Post([this, transfer] {
    const auto waiting = reads_.find(transfer);
    if (waiting == reads_.end()) return;
    if (waiting->second.inner != TransferId::kNone) return inner_->Cancel(waiting->second.inner);
    EndRead(transfer, absl::CancelledError("cancelled"));
  });
}

void FaultyTransport::Serve(const std::string& method, CallHandler handler) {
  inner_->Serve(method, std::move(handler));
}

void FaultyTransport::ServeReads(ReadHandler handler) { inner_->ServeReads(std::move(handler)); }

}  // namespace unreft
