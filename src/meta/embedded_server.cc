#include "meta/embedded_server.h"

#include <etcd/rpc.grpc.pb.h>
#include <fmt/format.h>
#include <grpcpp/server_builder.h>

#include <utility>

#include "base/wire_address.h"
#include "meta/grpc_common.h"
#include "meta/server_calls.h"
#include "meta/server_streams.h"
#include "meta/server_wire.h"
#include "transport/acceptor.h"
#include "transport/grpc_threads.h"

namespace unreft::meta {
namespace {

namespace pb = etcdserverpb;

// Begins a call and runs `body` with it in a turn.
template <typename Body>
grpc::ServerUnaryReactor* BeginUnary(ServerContext& context, Body body) {
  auto call = BeginCall<ServerUnary>(context);
  if (call->finished()) return call.get();  // refused: its request is gRPC's again
  context.Post([call, body = std::move(body)] { body(call); });
  return call.get();
}

// Runs one op as a Txn; `answer` writes what came of it.
template <typename OpOr, typename Answer>
void CommitOne(ServerContext& context, const StoreAccess& access, std::shared_ptr<ServerUnary> call,
               OpOr op, Answer answer) {
  if (!op.ok()) return call->Answer(op.status());
  StoreTxn txn;
  txn.then.push_back(*std::move(op));
  if (absl::Status status = access.Check(txn); !status.ok()) return call->Answer(status);
  context.engine.Commit(std::move(txn), [&context, alive = context.alive, call,
                                         answer](absl::StatusOr<StoreReply> reply) {
    if (!*alive) return;
    if (!reply.ok()) return call->Answer(reply.status());
    answer(reply->revision, std::move(reply->replies.front()));
    call->Answer(absl::OkStatus());
  });
}

class KvService final : public pb::KV::CallbackService {
 public:
  explicit KvService(ServerContext& context) : context_(context) {}

 private:
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* Range(grpc::CallbackServerContext* grpc, const pb::RangeRequest* request,
                 pb::RangeResponse* response) override {
    return BeginUnary(context_,
                      [this, request, response, access = context_.AccessOf(*grpc)](auto call) {
                        CommitOne(context_, access, call, FromWire(*request),
                                  [=, this](Revision revision, auto&& reply) {
                                    context_.Fill(*response->mutable_header(), revision);
                                    ToWire(std::move(reply), *response);
                                  });
                      });
  }

  Reactor* Put(grpc::CallbackServerContext* grpc, const pb::PutRequest* request,
               pb::PutResponse* response) override {
    return BeginUnary(context_,
                      [this, request, response, access = context_.AccessOf(*grpc)](auto call) {
                        CommitOne(context_, access, call, FromWire(*request),
                                  [=, this](Revision revision, auto&& reply) {
                                    context_.Fill(*response->mutable_header(), revision);
                                    ToWire(std::move(reply), request->prev_kv(), *response);
                                  });
                      });
  }

  Reactor* DeleteRange(grpc::CallbackServerContext* grpc, const pb::DeleteRangeRequest* request,
                       pb::DeleteRangeResponse* response) override {
    return BeginUnary(
        context_, [this, request, response, access = context_.AccessOf(*grpc)](auto call) {
          CommitOne(context_, access, call, absl::StatusOr<StoreDelete>(FromWire(*request)),
                    [=, this](Revision revision, auto&& reply) {
                      context_.Fill(*response->mutable_header(), revision);
                      ToWire(std::move(reply), request->prev_kv(), *response);
                    });
        });
  }

  Reactor* Txn(grpc::CallbackServerContext* grpc, const pb::TxnRequest* request,
               pb::TxnResponse* response) override {
    return BeginUnary(
        context_, [this, request, response, access = context_.AccessOf(*grpc)](auto call) {
          absl::StatusOr<StoreTxn> txn = FromWire(*request);
          if (!txn.ok()) return call->Answer(txn.status());
          if (absl::Status status = access.Check(*txn); !status.ok()) return call->Answer(status);
          context_.engine.Commit(*std::move(txn), [=, this, alive = context_.alive](auto reply) {
            if (!*alive) return;
            if (!reply.ok()) return call->Answer(reply.status());
            context_.Fill(*response->mutable_header(), reply->revision);
            ToWire(*request, *std::move(reply), *response);
            call->Answer(absl::OkStatus());
          });
        });
  }

  Reactor* Compact(grpc::CallbackServerContext* grpc, const pb::CompactionRequest* request,
                   pb::CompactionResponse* response) override {
    return BeginUnary(
        context_, [this, request, response, access = context_.AccessOf(*grpc)](auto call) {
          if (absl::Status status = access.CheckAll("a compaction"); !status.ok()) {
            return call->Answer(status);
          }
          const Revision before{static_cast<uint64_t>(request->revision())};
          context_.engine.Compact(before, [=, this, alive = context_.alive](absl::Status status) {
            if (!*alive) return;
            context_.Fill(*response->mutable_header(), context_.engine.revision());
            call->Answer(status);
          });
        });
  }

  ServerContext& context_;
};

class LeaseService final : public pb::Lease::CallbackService {
 public:
  explicit LeaseService(ServerContext& context) : context_(context) {}

 private:
  grpc::ServerUnaryReactor* LeaseGrant(grpc::CallbackServerContext*,
                                       const pb::LeaseGrantRequest* request,
                                       pb::LeaseGrantResponse* response) override {
    return BeginUnary(context_, [this, request, response](auto call) {
      const auto ttl_s = static_cast<uint64_t>(std::max<int64_t>(request->ttl(), 0));
      context_.engine.GrantLease({static_cast<uint64_t>(request->id())}, ttl_s,
                                 [=, this, alive = context_.alive](auto lease) {
                                   if (!*alive) return;
                                   if (!lease.ok()) return call->Answer(lease.status());
                                   context_.Fill(*response->mutable_header(),
                                                 context_.engine.revision());
                                   response->set_id(static_cast<int64_t>(lease->id.value));
                                   response->set_ttl(static_cast<int64_t>(lease->ttl_s));
                                   call->Answer(absl::OkStatus());
                                 });
    });
  }

  grpc::ServerUnaryReactor* LeaseRevoke(grpc::CallbackServerContext*,
                                        const pb::LeaseRevokeRequest* request,
                                        pb::LeaseRevokeResponse* response) override {
    return BeginUnary(context_, [this, request, response](auto call) {
      context_.engine.RevokeLease({static_cast<uint64_t>(request->id())},
                                  [=, this, alive = context_.alive](absl::Status status) {
                                    if (!*alive) return;
                                    context_.Fill(*response->mutable_header(),
                                                  context_.engine.revision());
                                    call->Answer(status);
                                  });
    });
  }

  grpc::ServerBidiReactor<pb::LeaseKeepAliveRequest, pb::LeaseKeepAliveResponse>* LeaseKeepAlive(
      grpc::CallbackServerContext* grpc) override {
    auto call = BeginCall<KeepAliveServerStream>(context_);
    call->Begin(*grpc);
    return call.get();
  }

  ServerContext& context_;
};

class WatchService final : public pb::Watch::CallbackService {
 public:
  explicit WatchService(ServerContext& context) : context_(context) {}

 private:
  grpc::ServerBidiReactor<pb::WatchRequest, pb::WatchResponse>* Watch(
      grpc::CallbackServerContext* grpc) override {
    auto call = BeginCall<WatchServerStream>(context_);
    call->Begin(*grpc);
    return call.get();
  }

  ServerContext& context_;
};

}  // namespace

class EmbeddedServer::Impl {
 public:
  Impl(const EmbeddedServerOptions& options, Executor& executor, StoreEngine& engine)
      : streams_("streams_max", options.streams_max),
        watches_("watches_max", options.watches_max),
        context_{.executor = executor,
                 .engine = engine,
                 .calls = calls_,
                 .silent = std::make_shared<SilentRequests>(executor, options.silent_timeout,
                                                            options.calls_silent_max),
                 .streams = streams_,
                 .watches = watches_,
                 .stream_bytes_max = options.stream_bytes_max,
                 .tells_apart = options.tls.enabled()} {}

  ~Impl() {
    acceptor_.reset();
    *context_.alive = false;
    calls_.AbortAll();
    if (server_ != nullptr) {
      server_->Shutdown(gpr_time_0(GPR_CLOCK_MONOTONIC));
      server_->Wait();
    }
  }

  absl::Status Start(const EmbeddedServerOptions& options, TlsCertificates* certificates) {
    const size_t colon = options.listen.rfind(':');
    if (colon == std::string::npos) {
      return absl::InvalidArgumentError(
          fmt::format("meta_listen: needed HOST:PORT or unix:/PATH, found '{}'", options.listen));
    }
    absl::Status status =
        PrepareWire(options.listen, WireUseOf("meta_listen", options.tls, options.insecure));
    if (!status.ok()) return status;
    auto acceptor = Acceptor::Listen(options.listen);
    if (!acceptor.ok()) return acceptor.status();
    grpc::ServerBuilder builder;
    using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    Acceptor::Sink sink = builder.experimental().AddExternalConnectionAcceptor(
        Type::FROM_FD, ServerCredentials(certificates));
    builder.SetMaxReceiveMessageSize(static_cast<int>(options.message_bytes_max));
    const auto handshake_ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(options.handshake_timeout).count();
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                               static_cast<int>(handshake_ms));
    // As etcd: a client may ask each 5 s whether we are there.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.RegisterService(&kv_);
    builder.RegisterService(&lease_);
    builder.RegisterService(&watch_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::UnavailableError(fmt::format("cannot listen on {}", options.listen));
    }
    acceptor_ = *std::move(acceptor);
    acceptor_->Start(std::move(sink));
    address_ = IsUnixAddress(options.listen)
                   ? options.listen
                   : fmt::format("{}:{}", options.listen.substr(0, colon), acceptor_->port());
    return absl::OkStatus();
  }

  const std::string& address() const { return address_; }

 private:
  ServerCalls calls_;
  PeerPlaces streams_;
  PeerPlaces watches_;
  ServerContext context_;
  KvService kv_{context_};
  LeaseService lease_{context_};
  WatchService watch_{context_};
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;  // goes before the server
};

EmbeddedServer::EmbeddedServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EmbeddedServer::~EmbeddedServer() = default;

absl::StatusOr<std::unique_ptr<EmbeddedServer>> EmbeddedServer::Start(
    EmbeddedServerOptions options, Executor& executor, StoreEngine& engine,
    std::shared_ptr<TlsCertificates> certificates) {
  if (certificates == nullptr) {
    auto made = NewMetaCertificates(options.tls, TlsUse::kListens, executor, nullptr);
    if (!made.ok()) return made.status();
    certificates = *std::move(made);
  }
  KeepGrpcThreads();
  auto impl = std::make_unique<Impl>(options, executor, engine);
  if (absl::Status status = impl->Start(options, certificates.get()); !status.ok()) return status;
  return std::unique_ptr<EmbeddedServer>(new EmbeddedServer(std::move(impl)));
}

const std::string& EmbeddedServer::address() const { return impl_->address(); }

}  // namespace unreft::meta
