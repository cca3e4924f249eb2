#include "meta/etcd_kv.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/format.h"
#include "base/wire_address.h"
#include "meta/etcd_calls.h"
#include "meta/etcd_members.h"
#include "meta/etcd_watches.h"
#include "meta/etcd_wire.h"
#include "meta/grpc_common.h"
#include "transport/grpc_threads.h"

namespace unreft::meta {
namespace {

namespace pb = etcdserverpb;

// How often is looked for a member while none of several is connected.
constexpr Duration kConnectionPoll = std::chrono::milliseconds(5);

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
  Impl(EtcdKvOptions options, Executor& executor, std::unique_ptr<EtcdMembers> members)
      : options_(std::move(options)),
        executor_(executor),
        members_(std::move(members)),
        watches_(
            Name(), executor,
            [this] {
              EtcdMember* const member = members_->Next();
              return member == nullptr ? nullptr : member->watch.get();
            },
            calls_, [this](auto result) { Probe(std::move(result)); }) {
    members_->Hold(executor_, calls_);
  }

  ~Impl() {
    *alive_ = false;
    watches_.Stop();
    members_->Stop();
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
              *request, left, std::move(result), [](EtcdMember& member, auto& call, auto done) {
                member.kv->async()->Txn(&call.context, &call.request, &call.response,
                                        std::move(done));
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
              request, left, std::move(result), [](EtcdMember& member, auto& call, auto done) {
                member.lease->async()->LeaseGrant(&call.context, &call.request, &call.response,
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
              request, left, std::move(result), [](EtcdMember& member, auto& call, auto done) {
                member.lease->async()->LeaseRevoke(&call.context, &call.request, &call.response,
                                                   std::move(done));
              });
        },
        false,
        [done = std::move(done)](absl::StatusOr<pb::LeaseRevokeResponse> response) mutable {
          done(response.status());
        });
  }

  std::map<std::string, std::string> MembersAway() const { return members_->Away(); }

  void AskSize(absl::AnyInvocable<void(absl::StatusOr<uint64_t>)> done) {
    Try<pb::StatusResponse>(
        [this](Duration left, auto result) {
          Unary<pb::StatusRequest, pb::StatusResponse>(
              {}, left, std::move(result), [](EtcdMember& member, auto& call, auto done) {
                member.maintenance->async()->Status(&call.context, &call.request, &call.response,
                                                    std::move(done));
              });
        },
        true,
        [done = std::move(done)](absl::StatusOr<pb::StatusResponse> response) mutable {
          if (!response.ok()) return done(response.status());
          done(static_cast<uint64_t>(std::max<int64_t>(0, response->dbsize())));
        });
  }

  void KeepAlive(LeaseId lease, Done done) {
    Try<pb::LeaseKeepAliveResponse>(
        [this, lease](Duration left, auto result) {
          AskMember<pb::LeaseKeepAliveResponse>(
              left, std::move(result),
              [this, lease](EtcdMember& member, Duration now_left, auto asked) {
                auto call = std::make_shared<KeepAliveCall>();
                Prepare(*call, now_left);
                call->Start(*member.lease, lease.value, calls_,
                            Posted<pb::LeaseKeepAliveResponse>(member, std::move(asked)));
              });
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

  absl::Status ToStatus(const EtcdMember& member, const grpc::Status& status) const {
    if (status.ok()) return absl::OkStatus();
    auto code = static_cast<absl::StatusCode>(status.error_code());
    // These say nothing about what has become of the call.
    if (code == absl::StatusCode::kUnknown || code == absl::StatusCode::kInternal ||
        code == absl::StatusCode::kCancelled || code == absl::StatusCode::kAborted) {
      code = absl::StatusCode::kUnavailable;
    }
    if (code == absl::StatusCode::kDeadlineExceeded && !member.connected()) {
      return NotConnected();
    }
    return absl::Status(code, fmt::format("{}: {}", Name(), status.error_message()));
  }

  absl::Status NotConnected() const {
    return absl::DeadlineExceededError(fmt::format("{}: no connection within the deadline: {}",
                                                   Name(), members_->WhyNotConnected()));
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
    // Of several only one is asked that is connected, and if it goes another is to be asked.
    call.context.set_wait_for_ready(members_->is_single());
    // A member that is cut off from the others says so instead of holding the call.
    call.context.AddMetadata("hasleader", "true");
  }

  // A callback for gRPC's threads, which brings the answer into a turn.
  template <typename Response>
  absl::AnyInvocable<void(grpc::Status, Response)> Posted(const EtcdMember& member,
                                                          Result<Response> result) {
    return [this, &member, alive = alive_, result = std::move(result)](grpc::Status status,
                                                                       Response response) mutable {
      executor_.Post([this, &member, alive, status = std::move(status),
                      response = std::move(response), result = std::move(result)]() mutable {
        if (!*alive) return;
        if (!status.ok()) return result(ToStatus(member, status));
        result(std::move(response));
      });
    };
  }

  template <typename Request, typename Response, typename Method>
  void Unary(const Request& request, Duration left, Result<Response> result, Method method) {
    AskMember<Response>(
        left, std::move(result),
        [this, request, method](EtcdMember& member, Duration now_left, Result<Response> asked) {
          auto call = std::make_shared<UnaryCall<Request, Response>>();
          call->request = request;
          Prepare(*call, now_left);
          calls_.Add(call);
          // Shared, since gRPC asks for a function that can be copied.
          auto posted = std::make_shared<absl::AnyInvocable<void(grpc::Status, Response)>>(
              Posted<Response>(member, std::move(asked)));
          method(member, *call, [this, call, posted](grpc::Status status) {
            (*posted)(std::move(status), std::move(call->response));
            calls_.Remove(call);
          });
        });
  }

  template <typename Response>
  using Ask = absl::AnyInvocable<void(EtcdMember&, Duration left, Result<Response>)>;

  // `ask` of the next member, as soon as one is connected.
  template <typename Response>
  void AskMember(Duration left, Result<Response> result, Ask<Response> ask) {
    if (absl::Status status = CheckStore(); !status.ok()) {
      return Refuse(std::move(result), std::move(status));
    }
    AskUntil<Response>(executor_.Now() + left, std::move(result), std::move(ask));
  }

  template <typename Response>
  void AskUntil(Time deadline, Result<Response> result, Ask<Response> ask) {
    const Duration left = deadline - executor_.Now();
    if (EtcdMember* const member = members_->Next()) {
      return ask(*member, std::max(left, Duration{1}), std::move(result));
    }
    if (left <= Duration::zero()) return Refuse(std::move(result), NotConnected());
    ++waiting_;
    executor_.After(kConnectionPoll, [this, deadline, alive = alive_, result = std::move(result),
                                      ask = std::move(ask)]() mutable {
      if (!*alive) return;
      --waiting_;
      AskUntil<Response>(deadline, std::move(result), std::move(ask));
    });
  }

  // `attempt` until it is answered, `finish` once; with `again` it is repeated as long as the store
  // is unavailable and there is time.
  template <typename Response>
  void Try(Attempt<Response> attempt, bool again, Result<Response> finish) {
    if (calls_.size() + waiting_ >= options_.calls_max) {
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
    request.set_key(options_.unwritten_key);
    request.set_keys_only(true);
    Unary<pb::RangeRequest, pb::RangeResponse>(
        request, options_.call_timeout,
        [result = std::move(result)](absl::StatusOr<pb::RangeResponse> response) mutable {
          if (!response.ok()) return result(response.status());
          result(StoreHead{response->header().cluster_id(),
                           {static_cast<uint64_t>(response->header().revision())}});
        },
        [](EtcdMember& member, auto& call, auto done) {
          member.kv->async()->Range(&call.context, &call.request, &call.response, std::move(done));
        });
  }

  const EtcdKvOptions options_;
  Executor& executor_;
  const std::unique_ptr<EtcdMembers> members_;
  uint64_t cluster_id_ = 0;  // of the last answer
  size_t waiting_ = 0;       // calls for which no member is connected yet
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

absl::StatusOr<std::unique_ptr<EtcdKv>> EtcdKv::Create(
    EtcdKvOptions options, Executor& executor, std::shared_ptr<TlsCertificates> certificates) {
  const WireUse use = WireUseOf("meta_endpoints", options.tls, options.insecure);
  if (absl::Status status = EtcdMembers::Check(options.endpoints); !status.ok()) return status;
  if (absl::Status status = PrepareWire(options.endpoints, use); !status.ok()) return status;
  if (certificates == nullptr) {
    auto made = NewMetaCertificates(options.tls, TlsUse::kConnects, executor, nullptr);
    if (!made.ok()) return made.status();
    certificates = *std::move(made);
  }
  KeepGrpcThreads();
  auto members = EtcdMembers::Create(options, std::move(certificates));
  if (!members.ok()) return members.status();
  auto impl = std::make_unique<Impl>(std::move(options), executor, *std::move(members));
  return std::unique_ptr<EtcdKv>(new EtcdKv(std::move(impl)));
}

std::map<std::string, std::string> EtcdKv::MembersAway() const { return impl_->MembersAway(); }

void EtcdKv::AskSize(absl::AnyInvocable<void(absl::StatusOr<uint64_t>)> done) {
  impl_->AskSize(std::move(done));
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
