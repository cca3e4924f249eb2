#include "meta/etcd_kv.h"

#include <absl/strings/str_split.h>
#include <fmt/format.h>
#include <grpcpp/create_channel.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/format.h"
#include "base/wire_address.h"
#include "meta/etcd_calls.h"
#include "meta/etcd_watches.h"
#include "meta/etcd_wire.h"
#include "meta/grpc_common.h"

namespace unreft::meta {
namespace {

namespace pb = etcdserverpb;

// gRPC's name for the endpoints. A list of names is not one of its kinds.
absl::StatusOr<std::string> TargetOf(const std::string& endpoints) {
  if (IsUnixAddress(endpoints)) return GrpcName(endpoints);
  const std::vector<std::string> parts = absl::StrSplit(endpoints, ',');
  const auto is_v4 = [](const std::string& part) {
    return part.find_first_not_of("0123456789.:") == std::string::npos;
  };
  const auto is_v6 = [](const std::string& part) { return part.starts_with('['); };
  for (const std::string& part : parts) {
    if (part.find("://") != std::string::npos) {
      return absl::InvalidArgumentError(
          fmt::format("meta_endpoints '{}': needed HOST:PORT without a scheme, found '{}'; whether "
                      "it is TLS is "
                      "said by meta_tls_ca, meta_tls_cert, meta_tls_key",
                      endpoints, part));
    }
    const size_t colon = part.rfind(':');
    if (colon == 0 || colon == std::string::npos || colon + 1 == part.size()) {
      return absl::InvalidArgumentError(fmt::format(
          "meta_endpoints '{}': needed HOST:PORT or unix:/PATH, found '{}'", endpoints, part));
    }
  }
  if (std::all_of(parts.begin(), parts.end(), is_v4)) return "ipv4:" + endpoints;
  if (std::all_of(parts.begin(), parts.end(), is_v6)) return "ipv6:" + endpoints;
  if (parts.size() == 1) return "dns:///" + endpoints;
  return absl::InvalidArgumentError(
      fmt::format("meta_endpoints '{}': a list needs IP addresses of one family; or give one name "
                  "that resolves to all of them",
                  endpoints));
}

grpc::ChannelArguments ArgumentsOf(const EtcdKvOptions& options) {
  const auto ms = [](Duration duration) {
    return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
  };
  grpc::ChannelArguments arguments;
  // Of a socket file no connection is made but for a call, before which CheckWire looks.
  if (!IsUnixAddress(options.endpoints)) arguments.SetLoadBalancingPolicyName("round_robin");
  arguments.SetMaxReceiveMessageSize(static_cast<int>(options.reply_bytes_max));
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, ms(options.retry_delay_min));
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, ms(options.call_timeout));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, ms(options.reconnect_delay_max));
  // A member that is gone without a word is noticed; etcd allows a ping each 5 s.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // clients of one process are strangers
  if (!options.tls.server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls.server_name);
  }
  return arguments;
}

void SetDeadline(grpc::ClientContext& context, Duration left) {
  context.set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(left.count(), GPR_TIMESPAN)));
}

bool IsRead(const Txn& txn) {
  const auto is_get = [](const Op& op) { return std::holds_alternative<GetOp>(op); };
  return std::all_of(txn.then.begin(), txn.then.end(), is_get) &&
         std::all_of(txn.otherwise.begin(), txn.otherwise.end(), is_get);
}

}  // namespace

class EtcdKv::Impl {
 public:
  Impl(EtcdKvOptions options, Executor& executor, std::shared_ptr<grpc::Channel> channel)
      : options_(std::move(options)),
        executor_(executor),
        channel_(channel),
        kv_(pb::KV::NewStub(channel)),
        lease_(pb::Lease::NewStub(channel)),
        watches_({.name = Name(),
                  .retry_delay_min = options_.retry_delay_min,
                  .retry_delay_max = options_.retry_delay_max},
                 executor, pb::Watch::NewStub(channel), calls_,
                 [this](auto result) { Probe(std::move(result)); }) {
    if (!IsUnixAddress(options_.endpoints)) channel->GetState(true);  // connect
  }

  ~Impl() {
    *alive_ = false;
    watches_.Stop();
    calls_.CancelAndWait();
  }

  void Commit(Txn txn, TxnDone done) {
    const bool is_read = IsRead(txn);
    auto request = std::make_shared<pb::TxnRequest>(ToWire(std::move(txn)));
    auto finish = [this, request,
                   done = std::move(done)](absl::StatusOr<pb::TxnResponse> response) mutable {
      if (!response.ok()) return done(response.status());
      const uint64_t cluster_id = response->header().cluster_id();
      absl::StatusOr<TxnResult> result = FromWire(*request, *std::move(response));
      if (!result.ok()) {
        return done(
            absl::UnavailableError(fmt::format("{}: {}", Name(), result.status().message())));
      }
      cluster_id_ = cluster_id;
      done(*std::move(result));
    };
    Try<pb::TxnResponse>(
        [this, request](Duration left, auto result) {
          Unary<pb::TxnRequest, pb::TxnResponse>(
              *request, left, std::move(result), [this](auto& call, auto done) {
                kv_->async()->Txn(&call.context, &call.request, &call.response, std::move(done));
              });
        },
        is_read, std::move(finish));
  }

  void GrantLease(Duration ttl, LeaseDone done) {
    pb::LeaseGrantRequest request;
    request.set_ttl(std::max<int64_t>(1, std::chrono::ceil<std::chrono::seconds>(ttl).count()));
    Try<pb::LeaseGrantResponse>(
        [this, request](Duration left, auto result) {
          Unary<pb::LeaseGrantRequest, pb::LeaseGrantResponse>(
              request, left, std::move(result), [this](auto& call, auto done) {
                lease_->async()->LeaseGrant(&call.context, &call.request, &call.response,
                                            std::move(done));
              });
        },
        false,
        [done = std::move(done)](absl::StatusOr<pb::LeaseGrantResponse> response) mutable {
          if (!response.ok()) return done(response.status());
          done(LeaseId{static_cast<uint64_t>(response->id())});
        });
  }

  void RevokeLease(LeaseId lease, Done done) {
    pb::LeaseRevokeRequest request;
    request.set_id(static_cast<int64_t>(lease.value));
    Try<pb::LeaseRevokeResponse>(
        [this, request](Duration left, auto result) {
          Unary<pb::LeaseRevokeRequest, pb::LeaseRevokeResponse>(
              request, left, std::move(result), [this](auto& call, auto done) {
                lease_->async()->LeaseRevoke(&call.context, &call.request, &call.response,
                                             std::move(done));
              });
        },
        false,
        [done = std::move(done)](absl::StatusOr<pb::LeaseRevokeResponse> response) mutable {
          done(response.status());
        });
  }

  void KeepAlive(LeaseId lease, Done done) {
    Try<pb::LeaseKeepAliveResponse>(
        [this, lease](Duration left, auto result) {
          if (absl::Status status = CheckStore(); !status.ok()) {
            return Refuse(std::move(result), std::move(status));
          }
          auto call = std::make_shared<KeepAliveCall>();
          Prepare(*call, left);
          call->Start(*lease_, lease.value, calls_,
                      Posted<pb::LeaseKeepAliveResponse>(std::move(result)));
        },
        true,
        [this, lease,
         done = std::move(done)](absl::StatusOr<pb::LeaseKeepAliveResponse> response) mutable {
          if (response.ok() && response->ttl() <= 0) {
            return done(
                absl::NotFoundError(fmt::format("{}: lease {:x} has ended", Name(), lease.value)));
          }
          done(response.status());
        });
  }

  WatchId Watch(KeyRange range, Revision start, OnEvents on_events, Done on_end) {
    return watches_.Watch(std::move(range), start.value == 0 ? 0 : cluster_id_, start,
                          std::move(on_events), std::move(on_end));
  }

  void CancelWatch(WatchId watch) { watches_.Cancel(watch); }

 private:
  template <typename Response>
  using Result = absl::AnyInvocable<void(absl::StatusOr<Response>)>;
  template <typename Response>
  using Attempt = absl::AnyInvocable<void(Duration left, Result<Response> result)>;

  std::string Name() const { return fmt::format("meta store {}", options_.endpoints); }

  absl::Status ToStatus(const grpc::Status& status) const {
    if (status.ok()) return absl::OkStatus();
    auto code = static_cast<absl::StatusCode>(status.error_code());
    // These say nothing about what has become of the call.
    if (code == absl::StatusCode::kUnknown || code == absl::StatusCode::kInternal ||
        code == absl::StatusCode::kCancelled || code == absl::StatusCode::kAborted) {
      code = absl::StatusCode::kUnavailable;
    }
    if (code == absl::StatusCode::kDeadlineExceeded &&
        channel_->GetState(false) != GRPC_CHANNEL_READY) {
      return absl::Status(code, fmt::format("{}: no connection within the deadline{}", Name(),
                                            options_.tls.enabled()
                                                ? ": nobody serves there, or one of both refuses "
                                                  "the other's certificate"
                                                : ": nobody serves there, or only by TLS"));
    }
    return absl::Status(code, fmt::format("{}: {}", Name(), status.error_message()));
  }

  // Whether it is still nobody else who would be asked.
  absl::Status CheckStore() const {
    const absl::Status status =
        CheckWire(options_.endpoints, WireUseOf(Name(), options_.tls, options_.insecure));
    if (status.ok()) return status;
    return {absl::IsNotFound(status) ? absl::StatusCode::kUnavailable : status.code(),
            fmt::format("{}: {}", Name(), std::string(status.message()))};
  }

  template <typename Response>
  void Refuse(Result<Response> result, absl::Status why) {
    executor_.Post([alive = alive_, why = std::move(why), result = std::move(result)]() mutable {
      if (*alive) result(std::move(why));
    });
  }

  void Prepare(EtcdCall& call, Duration left) {
    SetDeadline(call.context, left);
    call.context.set_wait_for_ready(true);
    // A member that is cut off from the others says so instead of holding the call.
    call.context.AddMetadata("hasleader", "true");
  }

  // A callback for gRPC's threads, which brings the answer into a turn.
  template <typename Response>
  absl::AnyInvocable<void(grpc::Status, Response)> Posted(Result<Response> result) {
    return [this, alive = alive_, result = std::move(result)](grpc::Status status,
                                                              Response response) mutable {
      executor_.Post([this, alive, status = std::move(status), response = std::move(response),
                      result = std::move(result)]() mutable {
        if (!*alive) return;
        if (!status.ok()) return result(ToStatus(status));
        result(std::move(response));
      });
    };
  }

  template <typename Request, typename Response, typename Method>
  void Unary(const Request& request, Duration left, Result<Response> result, Method method) {
    if (absl::Status status = CheckStore(); !status.ok()) {
      return Refuse(std::move(result), std::move(status));
    }
    auto call = std::make_shared<UnaryCall<Request, Response>>();
    call->request = request;
    Prepare(*call, left);
    calls_.Add(call);
    // Shared, since gRPC asks for a function that can be copied.
    auto posted = std::make_shared<absl::AnyInvocable<void(grpc::Status, Response)>>(
        Posted<Response>(std::move(result)));
    method(*call, [this, call, posted](grpc::Status status) {
      (*posted)(std::move(status), std::move(call->response));
      calls_.Remove(call);
    });
  }

  // `attempt` until it is answered, `finish` once; with `again` it is repeated as long as the store
  // is unavailable and there is time.
  template <typename Response>
  void Try(Attempt<Response> attempt, bool again, Result<Response> finish) {
    if (calls_.size() >= options_.calls_max) {
      return executor_.Post([this, alive = alive_, finish = std::move(finish)]() mutable {
        if (!*alive) return;
        finish(absl::ResourceExhaustedError(
            fmt::format("{}: {} calls are under way", Name(), options_.calls_max)));
      });
    }
    TryUntil<Response>(executor_.Now() + options_.call_timeout, options_.retry_delay_min,
                       std::move(attempt), again, std::move(finish));
  }

  template <typename Response>
  void TryUntil(Time deadline, Duration delay, Attempt<Response> attempt, bool again,
                Result<Response> finish);

  // Which store it is and where: by a read that sees all that was acknowledged.
  void Probe(Result<StoreHead> result) {
    pb::RangeRequest request;
    request.set_key(std::string(1, '\0'));
    request.set_keys_only(true);
    Unary<pb::RangeRequest, pb::RangeResponse>(
        request, options_.call_timeout,
        [result = std::move(result)](absl::StatusOr<pb::RangeResponse> response) mutable {
          if (!response.ok()) return result(response.status());
          result(StoreHead{response->header().cluster_id(),
                           {static_cast<uint64_t>(response->header().revision())}});
        },
        [this](auto& call, auto done) {
          kv_->async()->Range(&call.context, &call.request, &call.response, std::move(done));
        });
  }

  const EtcdKvOptions options_;
  Executor& executor_;
  const std::shared_ptr<grpc::Channel> channel_;  // shared with the stubs
  const std::unique_ptr<pb::KV::Stub> kv_;
  const std::unique_ptr<pb::Lease::Stub> lease_;
  uint64_t cluster_id_ = 0;  // of the last answer
  // Atomic only for the reports that are destroyed with the executor.
  std::shared_ptr<std::atomic<bool>> alive_ = std::make_shared<std::atomic<bool>>(true);
  CallSet calls_;
  EtcdWatches watches_;
};

template <typename Response>
void EtcdKv::Impl::TryUntil(Time deadline, Duration delay, Attempt<Response> attempt, bool again,
                            Result<Response> finish) {
  struct State {
    Attempt<Response> attempt;
    Result<Response> finish;
  };
  auto state = std::make_shared<State>(State{std::move(attempt), std::move(finish)});
  const Duration left = std::max(deadline - executor_.Now(), Duration{1});
  state->attempt(left, [=, this](absl::StatusOr<Response> response) mutable {
    const bool in_time = executor_.Now() + delay < deadline;
    if (response.ok() || !again || !absl::IsUnavailable(response.status()) || !in_time) {
      return state->finish(std::move(response));
    }
    executor_.After(delay, [=, this, alive = alive_] {
      if (!*alive) return;
      TryUntil<Response>(deadline, std::min(2 * delay, options_.retry_delay_max),
                         std::move(state->attempt), again, std::move(state->finish));
    });
  });
}

EtcdKv::EtcdKv(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EtcdKv::~EtcdKv() = default;

absl::StatusOr<std::unique_ptr<EtcdKv>> EtcdKv::Create(EtcdKvOptions options, Executor& executor) {
  absl::StatusOr<std::string> target = TargetOf(options.endpoints);
  if (!target.ok()) return target.status();
  const WireUse use = WireUseOf("meta_endpoints", options.tls, options.insecure);
  if (absl::Status status = PrepareWire(options.endpoints, use); !status.ok()) return status;
  auto credentials = ClientCredentials(options.tls);
  if (!credentials.ok()) return credentials.status();
  auto channel = grpc::CreateCustomChannel(*target, *credentials, ArgumentsOf(options));
  auto impl = std::make_unique<Impl>(std::move(options), executor, std::move(channel));
  return std::unique_ptr<EtcdKv>(new EtcdKv(std::move(impl)));
}

void EtcdKv::Commit(Txn txn, TxnDone done) { impl_->Commit(std::move(txn), std::move(done)); }
void EtcdKv::GrantLease(Duration ttl, LeaseDone done) { impl_->GrantLease(ttl, std::move(done)); }
void EtcdKv::KeepAlive(LeaseId lease, Done done) { impl_->KeepAlive(lease, std::move(done)); }
void EtcdKv::RevokeLease(LeaseId lease, Done done) { impl_->RevokeLease(lease, std::move(done)); }

WatchId EtcdKv::Watch(KeyRange range, Revision start, OnEvents on_events, Done on_end) {
  return impl_->Watch(std::move(range), start, std::move(on_events), std::move(on_end));
}

void EtcdKv::CancelWatch(WatchId watch) { impl_->CancelWatch(watch); }

}  // namespace unreft::meta
