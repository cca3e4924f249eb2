#include "transport/grpc_client.h"

#include <fmt/format.h>
#include <grpc/support/time.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "transport/grpc_bytes.h"
#include "transport/grpc_status.h"

namespace unreft {
namespace {

constexpr Duration kTimeoutMax = std::chrono::hours(24 * 365);

gpr_timespec DeadlineIn(Duration timeout) {
  const Duration bounded = std::clamp(timeout, Duration::zero(), kTimeoutMax);
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(bounded.count(), GPR_TIMESPAN));
}

}  // namespace

// One RPC, as far as gRPC's threads see it. Constant from Start on but for what gRPC writes.
// Destroyed in turns: its context owns the channel, and gRPC 1.51 joins its threads when the last
// channel or server goes, so that must not happen on one of them.
class GrpcClient::Rpc {
 public:
  Rpc(std::string address, std::string method, Duration timeout)
      : address_(std::move(address)), method_(std::move(method)), timeout_(timeout) {
    context_.set_deadline(DeadlineIn(timeout));
  }

  void SetCall(std::string request) {
    path_ = "/unreft.Call/" + method_;
    request_ = grpc_bytes::FromString(std::move(request));
  }
  void SetRead(const std::string& request, std::span<std::byte> into) {
    path_ = "/unreft.Read/" + method_;
    request_ = grpc_bytes::EncodeReadRequest(request, into.size());
    into_ = into;
    is_read_ = true;
  }

  void Start(GrpcChannel& channel, const std::string& job, std::function<void(grpc::Status)> end) {
    refusal_ = channel.refusal;
    context_.AddMetadata(grpc_status::kJobKey, job);
    channel.stub.UnaryCall(&context_, path_, {}, &request_, &reply_, std::move(end));
  }

  // Thread-safe, as long as the client has it.
  void Cancel() {
    cancelled_.store(true);
    context_.TryCancel();
  }

  // What the RPC came to; called once, when gRPC has ended it. Copies what was read into place.
  absl::StatusOr<std::string> TakeResult(const grpc::Status& status) {
    if (!status.ok()) return Describe(Failure(status));
    absl::StatusOr<std::string> reply =
        is_read_ ? grpc_bytes::DecodeReadReply(reply_, into_) : grpc_bytes::ToString(reply_);
    reply_.Clear();
    if (!reply.ok()) return Describe(reply.status());
    return reply;
  }

  // Names the address and the method.
  absl::Status Describe(const absl::Status& why) const {
    return {why.code(), fmt::format("{} {}: {}", address_, method_, why.message())};
  }

  const std::string& address() const { return address_; }

 private:
  absl::Status Failure(const grpc::Status& status) const {
    const bool answered = context_.GetServerTrailingMetadata().contains(grpc_status::kAnsweredKey);
    absl::Status failure = grpc_status::FromGrpc(status, answered);
    if (answered) return failure;
    if (cancelled_.load()) return absl::CancelledError("cancelled");
    if (absl::IsDeadlineExceeded(failure)) {
      return absl::DeadlineExceededError(
          fmt::format("no answer within {} ms",
                      std::chrono::duration_cast<std::chrono::milliseconds>(timeout_).count()));
    }
    if (absl::IsUnavailable(failure)) return WithIdentity(std::move(failure));
    return failure;
  }

  // gRPC tells a failed handshake as a connection that did not come about.
  absl::Status WithIdentity(absl::Status unavailable) const {
    const absl::Status refused = refusal_->Get();
    if (!refused.ok() && unavailable.message().find("erif") != std::string_view::npos) {
      return refused;
    }
    if (unavailable.message().find("andshake failed") != std::string_view::npos) {
      return absl::UnauthenticatedError(unavailable.message());
    }
    return unavailable;
  }

  const std::string address_;
  const std::string method_;
  const Duration timeout_;
  std::string path_;
  bool is_read_ = false;
  std::span<std::byte> into_;
  std::shared_ptr<const ServerRefusal> refusal_;  // the channel may be dropped
  std::atomic<bool> cancelled_ = false;
  // In this order: the context ends the call that uses the buffers.
  grpc::ByteBuffer request_;
  grpc::ByteBuffer reply_;
  grpc::ClientContext context_;
};

void GrpcClient::InFlight::Enter() {
  const std::lock_guard lock(mutex_);
  ++count_;
}

void GrpcClient::InFlight::Leave() {
  const std::lock_guard lock(mutex_);
  // Under the lock, since the one that waits destroys this when it has it.
  if (--count_ == 0) none_.notify_all();
}

void GrpcClient::InFlight::WaitForNone() {
  std::unique_lock lock(mutex_);
  none_.wait(lock, [this] { return count_ == 0; });
}

GrpcClient::GrpcClient(Executor& executor, const GrpcTransportOptions& options,
                       const GrpcIdentity& identity)
    : executor_(executor),
      options_(options),
      channels_(options, identity),
      self_(std::make_shared<GrpcClient*>(this)) {}

GrpcClient::~GrpcClient() {
  for (auto& [id, pending] : pending_) pending.rpc->Cancel();
  in_flight_.WaitForNone();
}

void GrpcClient::Call(const std::string& address, const std::string& method, std::string request,
                      Duration timeout, Done done) {
  auto rpc = std::make_unique<Rpc>(address, method, timeout);
  const size_t bytes = request.size();
  rpc->SetCall(std::move(request));
  Start(TransferId{++last_id_}, std::move(rpc), /*is_read=*/false, bytes, std::move(done));
}

TransferId GrpcClient::Read(const std::string& address, std::string request,
                            std::span<std::byte> into, Duration timeout, Done done) {
  const TransferId id{++last_id_};
  auto rpc = std::make_unique<Rpc>(address, "Read", timeout);
  rpc->SetRead(request, into);
  Start(id, std::move(rpc), /*is_read=*/true, std::max(into.size(), request.size()),
        std::move(done));
  return id;
}

void GrpcClient::Cancel(TransferId transfer) {
  const auto found = pending_.find(transfer);
  if (found != pending_.end() && found->second.is_read) found->second.rpc->Cancel();
}

absl::Status GrpcClient::CheckLimits(size_t message_bytes, bool is_read) const {
  if (message_bytes > options_.message_bytes_max) {
    return absl::ResourceExhaustedError(fmt::format("{} bytes, message_bytes_max is {}",
                                                    message_bytes, options_.message_bytes_max));
  }
  if (is_read && reads_in_flight_ >= options_.reads_in_flight_max) {
    return absl::ResourceExhaustedError(fmt::format("{} reads in flight, reads_in_flight_max is {}",
                                                    reads_in_flight_,
                                                    options_.reads_in_flight_max));
  }
  const size_t calls = pending_.size() - reads_in_flight_;
  if (!is_read && calls >= options_.calls_in_flight_max) {
    return absl::ResourceExhaustedError(fmt::format("{} calls in flight, calls_in_flight_max is {}",
                                                    calls, options_.calls_in_flight_max));
  }
  return absl::OkStatus();
}

void GrpcClient::Start(TransferId id, std::unique_ptr<Rpc> rpc, bool is_read, size_t message_bytes,
                       Done done) {
  UNREFT_CHECK(executor_.InTurn(), "a transport is used in turns");
  const absl::Status allowed = CheckLimits(message_bytes, is_read);
  if (!allowed.ok()) return Refuse(*rpc, allowed, std::move(done));
  const absl::StatusOr<GrpcChannel*> channel = channels_.Acquire(rpc->address(), executor_.Now());
  if (!channel.ok()) return Refuse(*rpc, channel.status(), std::move(done));

  if (is_read) ++reads_in_flight_;
  Rpc& started = *rpc;
  pending_.emplace(id, Pending{std::move(rpc), *channel, is_read, std::move(done)});
  in_flight_.Enter();
  started.Start(**channel, options_.job, [this, id, rpc = &started](const grpc::Status& status) {
    executor_.Post([self = std::weak_ptr(self_), id, result = rpc->TakeResult(status)]() mutable {
      const auto alive = self.lock();
      if (alive) (*alive)->End(id, std::move(result));
    });
    in_flight_.Leave();  // last: the client may be gone now
  });
}

void GrpcClient::Refuse(const Rpc& rpc, const absl::Status& why, Done done) {
  executor_.Post(
      [self = std::weak_ptr(self_), why = rpc.Describe(why), done = std::move(done)]() mutable {
        if (!self.expired()) done(why);
      });
}

void GrpcClient::End(TransferId id, absl::StatusOr<std::string> result) {
  auto node = pending_.extract(id);
  UNREFT_CHECK(node, "an RPC ends once");
  Pending& pending = node.mapped();
  if (pending.is_read) --reads_in_flight_;
  channels_.Release(*pending.channel, executor_.Now());
  pending.done(std::move(result));  // last: it may destroy the client
}

}  // namespace unreft
