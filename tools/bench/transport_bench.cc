#include "tools/bench/transport_bench.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "base/asio_executor.h"
#include "base/check.h"
#include "base/unique_fd.h"
#include "transport/grpc_transport.h"

namespace unreft::bench {
namespace {

constexpr size_t kBytes = size_t{512} << 20;  // far more than any cache
constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr size_t kReadsInFlight = 8;
constexpr double kCpuRatioMax = 2.0;

struct Cost {
  double seconds = 0;
  double cpu_seconds = 0;  // user and system, of the process: both ends are in it
};

double CpuSeconds() {
  rusage usage{};
  UNREFT_CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Cost Measure(const std::function<void()>& body) {
  const double cpu = CpuSeconds();
  const auto begin = std::chrono::steady_clock::now();
  body();
  const auto end = std::chrono::steady_clock::now();
  return {std::chrono::duration<double>(end - begin).count(), CpuSeconds() - cpu};
}

// Two nodes in one process, each on its own thread.
class GrpcPair {
 public:
  // By socket files of that directory; empty: by TCP.
  GrpcPair(std::span<const std::byte> source, const std::string& directory) {
    InTurn(source_thread_, [&] {
      source_ = New(source_thread_, directory, "source");
      source_->ServeReads([source](std::string request, uint64_t bytes, auto done) {
        uint64_t offset = 0;
        std::memcpy(&offset, request.data(), sizeof(offset));
        done(ReadSource{.header = request, .parts = {source.subspan(offset, bytes)}});
      });
    });
    InTurn(reader_thread_, [&] { reader_ = New(reader_thread_, directory, "reader"); });
  }
  ~GrpcPair() {
    InTurn(reader_thread_, [&] { reader_.reset(); });
    InTurn(source_thread_, [&] { source_.reset(); });
  }

  // Block by block, with so many on their way.
  void ReadAll(std::span<std::byte> into) {
    into_ = into;
    next_ = 0;
    landed_ = 0;
    finished_ = std::promise<void>();
    InTurn(reader_thread_, [this] {
      for (size_t i = 0; i < kReadsInFlight; ++i) ReadNext();
    });
    finished_.get_future().wait();
  }

 private:
  static std::unique_ptr<Transport> New(ExecutorThread& thread, const std::string& directory,
                                        const std::string& name) {
    GrpcTransportOptions options{.job = "bench", .insecure = directory.empty()};
    if (!directory.empty()) options.listen = "unix:" + directory + "/" + name;
    auto made = NewGrpcTransport(thread.executor(), options);
    UNREFT_CHECK(made.ok(), "{}", made.status().ToString());
    return *std::move(made);
  }
  static void InTurn(ExecutorThread& thread, const std::function<void()>& body) {
    std::promise<void> done;
    thread.executor().Post([&] {
      body();
      done.set_value();
    });
    done.get_future().wait();
  }

  void ReadNext() {
    if (next_ == into_.size()) return;
    const uint64_t offset = std::exchange(next_, next_ + kBlockBytes);
    std::string request(sizeof(offset), '\0');
    std::memcpy(request.data(), &offset, sizeof(offset));
    reader_->Read(source_->address(), std::move(request), into_.subspan(offset, kBlockBytes),
                  std::chrono::seconds(60), [this](absl::StatusOr<std::string> header) {
                    UNREFT_CHECK(header.ok(), "{}", header.status().ToString());
                    landed_ += kBlockBytes;
                    if (landed_ == into_.size()) return finished_.set_value();
                    ReadNext();
                  });
  }

  ExecutorThread source_thread_{"bench-source"};
  ExecutorThread reader_thread_{"bench-reader"};
  std::unique_ptr<Transport> source_;
  std::unique_ptr<Transport> reader_;
  // In turns of the reader's thread.
  std::span<std::byte> into_;
  size_t next_ = 0;
  size_t landed_ = 0;
  std::promise<void> finished_;
};

// A connection over loopback, blocking.
class TcpPair {
 public:
  TcpPair() {
    const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    UNREFT_CHECK(bind(listener.get(), generic, bytes) == 0);
    UNREFT_CHECK(listen(listener.get(), 1) == 0);
    UNREFT_CHECK(getsockname(listener.get(), generic, &bytes) == 0);
    reader_ = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    UNREFT_CHECK(connect(reader_.get(), generic, bytes) == 0);
    source_ = UniqueFd(accept(listener.get(), nullptr, nullptr));
    UNREFT_CHECK(source_.get() >= 0);
  }

  void Move(std::span<const std::byte> source, std::span<std::byte> into) {
    std::jthread sender([&] {
      while (!source.empty()) {
        const ssize_t sent =
            send(source_.get(), source.data(), std::min(kBlockBytes, source.size()), 0);
        UNREFT_CHECK(sent > 0);
        source = source.subspan(static_cast<size_t>(sent));
      }
    });
    while (!into.empty()) {
      const ssize_t got =
          recv(reader_.get(), into.data(), std::min(kBlockBytes, into.size()), MSG_WAITALL);
      UNREFT_CHECK(got > 0);
      into = into.subspan(static_cast<size_t>(got));
    }
  }

 private:
  UniqueFd reader_;
  UniqueFd source_;
};

// The one in the middle by CPU.
Cost Median(std::vector<Cost> costs) {
  std::ranges::sort(costs, {}, &Cost::cpu_seconds);
  return costs[costs.size() / 2];
}

}  // namespace

std::vector<Record> RunTransport(int repetitions) {
  (void)KeepReceiveMemory();  // as the daemon does
  std::vector<std::byte> source(kBytes);
  for (size_t i = 0; i < kBytes; ++i) source[i] = static_cast<std::byte>(i * 31 + i / 251);
  std::vector<std::byte> into(kBytes);
  std::string directory = "/tmp/unreft-bench-XXXXXX";
  UNREFT_CHECK(mkdtemp(directory.data()) != nullptr);
  GrpcPair unix_pair(source, directory);
  GrpcPair grpc(source, "");
  TcpPair tcp;
  std::vector<Cost> unix_costs;
  std::vector<Cost> grpc_costs;
  std::vector<Cost> tcp_costs;
  for (int round = 0; round <= repetitions; ++round) {
    std::ranges::fill(into, std::byte{0});
    const Cost by_unix = Measure([&] { unix_pair.ReadAll(into); });
    UNREFT_CHECK(into == source, "reads land the source's bytes");
    std::ranges::fill(into, std::byte{0});
    const Cost by_grpc = Measure([&] { grpc.ReadAll(into); });
    UNREFT_CHECK(into == source, "reads land the source's bytes");
    const Cost by_tcp = Measure([&] { tcp.Move(source, into); });
    if (round == 0) continue;  // warm-up
    unix_costs.push_back(by_unix);
    grpc_costs.push_back(by_grpc);
    tcp_costs.push_back(by_tcp);
  }
  std::error_code error;
  std::filesystem::remove_all(directory, error);
  const Cost local = Median(std::move(unix_costs));
  const Cost ours = Median(std::move(grpc_costs));
  const Cost reference = Median(std::move(tcp_costs));
  constexpr double kGigabytes = static_cast<double>(kBytes) / 1e9;
  std::vector<Record> records;
  records.push_back({.name = "transport_read_grpc",
                     .value = ours.cpu_seconds / kGigabytes,
                     .unit = "s/GB",
                     .reference_name = "plain TCP",
                     .reference = reference.cpu_seconds / kGigabytes,
                     .target = kCpuRatioMax,
                     .less_is_better = true});
  records.push_back({.name = "transport_read_grpc_rate",
                     .value = kGigabytes / ours.seconds,
                     .unit = "GB/s",
                     .reference_name = "plain TCP",
                     .reference = kGigabytes / reference.seconds});
  records.push_back({.name = "transport_read_unix",
                     .value = local.cpu_seconds / kGigabytes,
                     .unit = "s/GB",
                     .reference_name = "gRPC by TCP",
                     .reference = ours.cpu_seconds / kGigabytes,
                     .less_is_better = true});
  for (const Record& record : records) Print(record);
  return records;
}

}  // namespace unreft::bench
