#include "transport/grpc_server.h"

#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>
#include <fmt/format.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <functional>
#include <utility>

#include "transport/acceptor.h"
#include "transport/grpc_arguments.h"
#include "transport/grpc_bytes.h"
#include "transport/grpc_peer.h"
#include "transport/grpc_status.h"
#include "transport/peer_places.h"
#include "transport/silent_requests.h"

namespace unreft {
namespace {

constexpr char kCallPrefix[] = "/unreft.Call/";
constexpr char kReadPrefix[] = "/unreft.Read/";

}  // namespace

// One request. gRPC owns it until OnDone, those who may still answer it for as long as they like.
// Thread-safe: whoever ends it first has ended it.
class GrpcServer::Rpc final : public grpc::ServerGenericBidiReactor {
 public:
  using OnRequest = std::function<void(std::shared_ptr<Rpc>, const grpc::ByteBuffer&)>;

  Rpc(grpc::GenericCallbackServerContext& context, const GrpcTransportOptions& options,
      std::shared_ptr<SilentRequests> silent, PeerPlaces& parked)
      : context_(context),
        peer_(GrpcPeer(context)),
        reply_bytes_max_(options.message_bytes_max),
        silent_(std::move(silent)),
        parked_(parked) {}

  // Reads the request and calls `on_request` on a thread of gRPC's.
  void Start(std::shared_ptr<Rpc> self, OnRequest on_request) {
    self_ = std::move(self);
    on_request_ = std::move(on_request);
    silent_number_ = silent_->Add([rpc = self_](const absl::Status& why) { rpc->Fail(why); });
    StartRead(&request_);
  }
  // Ends it unread.
  void StartRefused(std::shared_ptr<Rpc> self, const absl::Status& why) {
    self_ = std::move(self);
    Fail(why);
  }

  void Answer(absl::StatusOr<std::string> reply) {
    if (!reply.ok()) return Fail(reply.status());
    if (reply->size() > reply_bytes_max_) return Fail(TooLarge(reply->size()));
    Succeed([&] { return grpc_bytes::FromString(*std::move(reply)); });
  }

  void AnswerRead(absl::StatusOr<ReadSource> source, uint64_t bytes) {
    if (!source.ok()) return Fail(source.status());
    size_t found = 0;
    for (const auto part : source->parts) found += part.size();
    if (found != bytes) {
      return Fail(
          absl::DataLossError(fmt::format("the source has {} bytes, {} are wanted", found, bytes)));
    }
    if (found > reply_bytes_max_) return Fail(TooLarge(found));
    if (source->header.size() > grpc_bytes::kOverheadBytesMax / 2) {
      return Fail(absl::ResourceExhaustedError(fmt::format("a header of {} bytes, at most {}",
                                                           source->header.size(),
                                                           grpc_bytes::kOverheadBytesMax / 2)));
    }
    Succeed([&] { return grpc_bytes::EncodeReadReply(*source); });
  }

  void Fail(const absl::Status& why) {
    if (ended_.exchange(true)) return;
    context_.AddTrailingMetadata(grpc_status::kAnsweredKey, "1");
    Finish(grpc_status::ToGrpc(why));
  }

  void OnReadDone(bool ok) override {
    silent_->Remove(silent_number_);
    if (!ok) return Fail(absl::InvalidArgumentError("a request without a message"));
    if (ended_) return;
    const auto place =
        parked_.Take(peer_, [rpc = self_](const absl::Status& why) { rpc->Fail(why); });
    if (!place.ok()) return Fail(place.status());
    place_ = *place;
    on_request_(self_, request_);
    request_.Clear();
  }

  // The caller is gone, out of patience, or this node is going.
  void OnCancel() override {
    if (!ended_.exchange(true)) Finish(grpc::Status::CANCELLED);
  }

  void OnDone() override {
    reply_.Clear();  // lets go of what was read, though someone may still hold on to the request
    on_request_ = nullptr;
    silent_->Remove(silent_number_);
    parked_.Give(peer_, place_);
    const std::shared_ptr<Rpc> last = std::move(self_);
  }

 private:
  template <typename MakeReply>
  void Succeed(MakeReply make_reply) {
    if (ended_.exchange(true)) return;
    reply_ = make_reply();
    StartWriteAndFinish(&reply_, grpc::WriteOptions(), grpc::Status::OK);
  }

  absl::Status TooLarge(size_t bytes) const {
    return absl::ResourceExhaustedError(
        fmt::format("a reply of {} bytes, message_bytes_max is {}", bytes, reply_bytes_max_));
  }

  grpc::GenericCallbackServerContext& context_;  // until OnDone, so until it has ended
  const std::string peer_;
  const size_t reply_bytes_max_;
  const std::shared_ptr<SilentRequests> silent_;
  PeerPlaces& parked_;  // as context_
  uint64_t silent_number_ = 0;
  uint64_t place_ = 0;  // touched by gRPC's reactions alone, one after the other
  std::atomic<bool> ended_ = false;
  std::shared_ptr<Rpc> self_;
  OnRequest on_request_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer reply_;
};

// Admits requests on gRPC's threads. Everything it uses is constant or thread-safe.
class GrpcServer::Service final : public grpc::CallbackGenericService {
 public:
  Service(Executor& executor, const GrpcTransportOptions& options, const GrpcIdentity& identity,
          std::weak_ptr<GrpcServer*> server)
      : executor_(executor),
        options_(options),
        identity_(identity),
        server_(std::move(server)),
        silent_(std::make_shared<SilentRequests>(executor, options.silent_timeout,
                                                 options.calls_silent_max)),
        parked_("calls_parked_max", options.calls_parked_max) {}

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    auto rpc = std::make_shared<Rpc>(*context, options_, silent_, parked_);
    const absl::Status admitted = Admit(*context);
    if (admitted.ok()) {
      rpc->Start(rpc, Handler(context->method()));
    } else {
      rpc->StartRefused(rpc, admitted);
    }
    return rpc.get();
  }

 private:
  absl::Status Admit(const grpc::GenericCallbackServerContext& context) const {
    const absl::Status known = identity_.CheckClient(context);
    if (!known.ok()) return known;
    if (context.method().starts_with(kCallPrefix) || context.method().starts_with(kReadPrefix)) {
      return absl::OkStatus();
    }
    return absl::UnimplementedError(fmt::format("no such path: {}", context.method()));
  }

  Rpc::OnRequest Handler(absl::string_view path) const {
    if (absl::ConsumePrefix(&path, kCallPrefix)) {
      return [this, method = std::string(path)](std::shared_ptr<Rpc> rpc,
                                                const grpc::ByteBuffer& request) {
        executor_.Post([server = server_, method, request = grpc_bytes::ToString(request),
                        rpc = std::move(rpc)]() mutable {
          const auto alive = server.lock();
          if (alive) (*alive)->HandleCall(method, std::move(request), std::move(rpc));
        });
      };
    }
    return [this](std::shared_ptr<Rpc> rpc, const grpc::ByteBuffer& request) {
      auto read = grpc_bytes::DecodeReadRequest(request);
      if (!read.ok()) return rpc->Fail(read.status());
      executor_.Post([server = server_, read = *std::move(read), rpc = std::move(rpc)]() mutable {
        const auto alive = server.lock();
        if (alive) (*alive)->HandleRead(std::move(read.request), read.bytes, std::move(rpc));
      });
    };
  }

  Executor& executor_;
  const GrpcTransportOptions& options_;
  const GrpcIdentity& identity_;
  const std::weak_ptr<GrpcServer*> server_;
  const std::shared_ptr<SilentRequests> silent_;
  PeerPlaces parked_;  // calls and reads not yet answered
};

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(Executor& executor,
                                                              const GrpcTransportOptions& options,
                                                              const GrpcIdentity& identity) {
  std::unique_ptr<GrpcServer> server(new GrpcServer(executor, options, identity));
  grpc::ServerBuilder builder;
  SetGrpcServerArguments(options, builder);
  absl::StatusOr<std::unique_ptr<Acceptor>> acceptor = Acceptor::Listen(options.listen);
  if (!acceptor.ok()) return acceptor.status();
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  Acceptor::Sink sink =
      builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, identity.ForServer());
  builder.RegisterCallbackGenericService(server->service_.get());
  server->server_ = builder.BuildAndStart();
  if (!server->server_) {
    return absl::UnavailableError(fmt::format("cannot listen on {}", options.listen));
  }
  server->acceptor_ = *std::move(acceptor);
  server->acceptor_->Start(std::move(sink));
  return server;
}

GrpcServer::GrpcServer(Executor& executor, const GrpcTransportOptions& options,
                       const GrpcIdentity& identity)
    : self_(std::make_shared<GrpcServer*>(this)),
      service_(std::make_unique<Service>(executor, options, identity, self_)) {}

GrpcServer::~GrpcServer() {
  acceptor_.reset();
  if (!server_) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

void GrpcServer::Serve(const std::string& method, Transport::CallHandler handler) {
  if (handler) {
    call_handlers_[method] = std::make_shared<Transport::CallHandler>(std::move(handler));
  } else {
    call_handlers_.erase(method);
  }
}

void GrpcServer::ServeReads(Transport::ReadHandler handler) {
  read_handler_ = handler ? std::make_shared<Transport::ReadHandler>(std::move(handler)) : nullptr;
}

void GrpcServer::HandleCall(const std::string& method, std::string request,
                            std::shared_ptr<Rpc> rpc) {
  const auto found = call_handlers_.find(method);
  if (found == call_handlers_.end()) return rpc->Fail(absl::UnimplementedError("no such method"));
  const std::shared_ptr<Transport::CallHandler> handler = found->second;
  (*handler)(std::move(request), [rpc = std::move(rpc)](absl::StatusOr<std::string> reply) {
    rpc->Answer(std::move(reply));
  });
}

void GrpcServer::HandleRead(std::string request, uint64_t bytes, std::shared_ptr<Rpc> rpc) {
  const std::shared_ptr<Transport::ReadHandler> handler = read_handler_;
  if (!handler) return rpc->Fail(absl::UnimplementedError("this node serves no reads"));
  (*handler)(std::move(request), bytes,
             [rpc = std::move(rpc), bytes](absl::StatusOr<ReadSource> source) {
               rpc->AnswerRead(std::move(source), bytes);
             });
}

}  // namespace unreft
