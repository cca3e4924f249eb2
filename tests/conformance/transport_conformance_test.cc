#include "tests/conformance/transport_conformance.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <filesystem>

#include "base/unique_fd.h"
#include "tests/conformance/transport_reads_conformance.h"
#include "tests/fakes/sim_transport.h"
#include "tests/fakes/test_certificates.h"
#include "transport/counting_transport.h"
#include "transport/faulty_transport.h"
#include "transport/grpc_transport.h"

// LeakSanitizer's hook. gRPC 1.51 loses 576 bytes of its own per TLS connection.
extern "C" const char* __lsan_default_suppressions() { return "leak:gpr_realloc\n"; }

namespace unreft {
namespace {

class GrpcTransportWorld : public TransportWorld {
 public:
  explicit GrpcTransportWorld(GrpcTlsOptions tls)
      : options_{.job = "job-1",
                 .tls = std::move(tls),
                 .insecure = true,
                 .message_bytes_max = kMessageBytesMax,
                 .reads_in_flight_max = kReadsInFlightMax} {
    // Bound, so that no one else gets the port, and not listening.
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    UNREFT_CHECK(bind(dead_.get(), generic, bytes) == 0);
    UNREFT_CHECK(getsockname(dead_.get(), generic, &bytes) == 0);
    dead_address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  World& world() override { return world_; }
  std::unique_ptr<Transport> NewTransport(int) override {
    auto transport = NewGrpcTransport(world_.asio(), options_);
    UNREFT_CHECK(transport.ok(), "{}", transport.status().ToString());
    return *std::move(transport);
  }
  std::string dead_address() override { return dead_address_; }

 protected:
  GrpcTransportOptions options_;

 private:
  AsioWorld world_;
  const UniqueFd dead_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::string dead_address_;
};

// The same by socket files.
class UnixTransportWorld final : public GrpcTransportWorld {
 public:
  explicit UnixTransportWorld(GrpcTlsOptions tls) : GrpcTransportWorld(std::move(tls)) {
    options_.insecure = false;
    UNREFT_CHECK(mkdtemp(directory_.data()) != nullptr);
  }
  ~UnixTransportWorld() override { std::filesystem::remove_all(directory_); }
  std::unique_ptr<Transport> NewTransport(int process) override {
    options_.listen = Address(fmt::format("node {}%", ++nodes_));  // a name that gRPC would parse
    return GrpcTransportWorld::NewTransport(process);
  }
  std::string dead_address() override { return Address("nobody"); }

 private:
  std::string Address(const std::string& name) const { return "unix:" + directory_ + "/" + name; }

  std::string directory_ = testing::TempDir() + "unreft_peers_XXXXXX";
  int nodes_ = 0;
};

class SimTransportWorld : public TransportWorld {
 public:
  explicit SimTransportWorld(uint64_t seed) : world_(seed) {}
  World& world() override { return world_; }
  std::unique_ptr<Transport> NewTransport(int process) override {
    auto transport =
        network_.NewTransport(world_.sim(process), "node" + std::to_string(++nodes_) + ":1");
    UNREFT_CHECK(transport.ok(), "{}", transport.status().ToString());
    return *std::move(transport);
  }
  std::string dead_address() override { return "nobody:1"; }

 private:
  SimWorld world_;
  SimNetwork network_{
      world_.scheduler(),
      {.message_bytes_max = kMessageBytesMax, .reads_in_flight_max = kReadsInFlightMax}};
  int nodes_ = 0;
};

class CountingTransportWorld final : public SimTransportWorld {
 public:
  using SimTransportWorld::SimTransportWorld;
  std::unique_ptr<Transport> NewTransport(int process) override {
    return std::make_unique<CountingTransport>(SimTransportWorld::NewTransport(process));
  }
};

class FaultyTransportWorld final : public SimTransportWorld {
 public:
  using SimTransportWorld::SimTransportWorld;
  std::unique_ptr<Transport> NewTransport(int process) override {
    return std::make_unique<FaultyTransport>(world().executor(process),
                                             SimTransportWorld::NewTransport(process));
  }
};

INSTANTIATE_TEST_SUITE_P(
    Grpc, TransportConformance,
    testing::Values(WorldMaker<TransportWorld>{
        "Plain", [] { return std::make_unique<GrpcTransportWorld>(GrpcTlsOptions()); }}),
    WorldName<TransportWorld>);
INSTANTIATE_TEST_SUITE_P(
    GrpcUnix, TransportConformance,
    testing::Values(WorldMaker<TransportWorld>{
        "Plain", [] { return std::make_unique<UnixTransportWorld>(GrpcTlsOptions()); }}),
    WorldName<TransportWorld>);

GrpcTlsOptions Certificates() {
  static TestCertificates certificates;
  return certificates.Make("job-1");
}
INSTANTIATE_TEST_SUITE_P(
    GrpcTls, TransportConformance,
    testing::Values(
        WorldMaker<TransportWorld>{
            "Mutual", [] { return std::make_unique<GrpcTransportWorld>(Certificates()); }},
        WorldMaker<TransportWorld>{
            "Unix", [] { return std::make_unique<UnixTransportWorld>(Certificates()); }}),
    WorldName<TransportWorld>);
INSTANTIATE_TEST_SUITE_P(Sim, TransportConformance,
                         testing::ValuesIn(SimWorlds<TransportWorld, SimTransportWorld>()),
                         WorldName<TransportWorld>);
INSTANTIATE_TEST_SUITE_P(Counting, TransportConformance,
                         testing::ValuesIn(SimWorlds<TransportWorld, CountingTransportWorld>(3)),
                         WorldName<TransportWorld>);
INSTANTIATE_TEST_SUITE_P(Faulty, TransportConformance,
                         testing::ValuesIn(SimWorlds<TransportWorld, FaultyTransportWorld>(3)),
                         WorldName<TransportWorld>);

}  // namespace
}  // namespace unreft
