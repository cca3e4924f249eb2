#include "transport/grpc_transport.h"

#include <fmt/format.h>
#include <grpc/support/log.h>
#include <malloc.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/wire_address.h"
#include "transport/grpc_arguments.h"
#include "transport/grpc_client.h"
#include "transport/grpc_server.h"
#include "transport/grpc_threads.h"

namespace unreft {
namespace {

class GrpcTransport final : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Create(
      Executor& executor, const GrpcTransportOptions& options, const std::string& host,
      std::shared_ptr<TlsCertificates> certificates) {
    std::unique_ptr<GrpcTransport> transport(new GrpcTransport(executor, options));
    transport->identity_ = GrpcIdentity::Create(options.job, std::move(certificates));
    auto server = GrpcServer::Start(executor, transport->options_, *transport->identity_);
    if (!server.ok()) return server.status();
    transport->server_ = *std::move(server);
    transport->client_ =
        std::make_unique<GrpcClient>(executor, transport->options_, *transport->identity_);
    transport->address_ = IsUnixAddress(options.listen)
                              ? options.listen
                              : fmt::format("{}:{}", host, transport->server_->port());
    return transport;
  }

  const std::string& address() const override { return address_; }
  void Call(const std::string& address, const std::string& method, std::string request,
            Duration timeout, CallDone done) override {
    client_->Call(address, method, std::move(request), timeout, std::move(done));
  }
  TransferId Read(const std::string& address, std::string request, std::span<std::byte> into,
                  Duration timeout, ReadDone done) override {
    return client_->Read(address, std::move(request), into, timeout, std::move(done));
  }
  void Cancel(TransferId transfer) override { client_->Cancel(transfer); }
  void ReconnectNow(const std::string& address) override { client_->ReconnectNow(address); }
  void Serve(const std::string& method, CallHandler handler) override {
    UNREFT_CHECK(executor_.InTurn(), "a transport is used in turns");
    server_->Serve(method, std::move(handler));
  }
  void ServeReads(ReadHandler handler) override {
    UNREFT_CHECK(executor_.InTurn(), "a transport is used in turns");
    server_->ServeReads(std::move(handler));
  }

 private:
  GrpcTransport(Executor& executor, const GrpcTransportOptions& options)
      : executor_(executor), options_(options) {}

  Executor& executor_;
  const GrpcTransportOptions options_;
  std::string address_;
  std::unique_ptr<GrpcIdentity> identity_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<GrpcClient> client_;
};

// The host that others reach this node by.
absl::StatusOr<std::string> AdvertisedHost(const GrpcTransportOptions& options) {
  if (IsUnixAddress(options.listen)) {
    if (options.advertise.empty()) return "";
    return absl::InvalidArgumentError(
        fmt::format("advertise: '{}' has no host to be reached by, found '{}'", options.listen,
                    options.advertise));
  }
  const size_t colon = options.listen.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return absl::InvalidArgumentError(
        fmt::format("listen is '{}', it must be HOST:PORT or unix:/PATH", options.listen));
  }
  const std::string host = options.listen.substr(0, colon);
  if (!options.advertise.empty()) return options.advertise;
  if (host == "0.0.0.0" || host == "[::]" || host == "*") {
    return absl::InvalidArgumentError(fmt::format(
        "listen is {}: advertise must say by which host others reach it", options.listen));
  }
  return host;
}

}  // namespace

void SilenceGrpcLog() {
  if (std::getenv("GRPC_VERBOSITY") != nullptr) return;
  gpr_set_log_function([](gpr_log_func_args*) {});
}

bool KeepReceiveMemory() {
#ifdef __GLIBC__
  // Above gRPC's slices and the messages that the daemon makes itself.
  constexpr int kMapBytesMin = 4 << 20;
  constexpr int kKeptBytes = 64 << 20;
  constexpr int kArenas = 4;
  return mallopt(M_MMAP_THRESHOLD, kMapBytesMin) == 1 &&
         mallopt(M_TRIM_THRESHOLD, kKeptBytes) == 1 && mallopt(M_ARENA_MAX, kArenas) == 1;
#else
  return false;
#endif
}

absl::StatusOr<std::unique_ptr<Transport>> NewGrpcTransport(
    Executor& executor, const GrpcTransportOptions& options,
    std::shared_ptr<TlsCertificates> certificates) {
  if (options.job.empty()) return absl::InvalidArgumentError("a transport belongs to a job");
  const absl::StatusOr<std::string> host = AdvertisedHost(options);
  if (!host.ok()) return host.status();
  if (absl::Status status = PrepareWire(options.listen, WireUseOf("transport_listen", options));
      !status.ok()) {
    return status;
  }
  if (options.tls.enabled && certificates == nullptr) {
    auto made = NewNodeCertificates(options.job, options.tls, executor, nullptr);
    if (!made.ok()) return made.status();
    certificates = *std::move(made);
  }
  KeepGrpcThreads();
  return GrpcTransport::Create(executor, options, *host, std::move(certificates));
}

}  // namespace unreft
