#include "meta/meta_daemon.h"

#include <fmt/format.h>
#include <signal.h>
#include <stdio.h>

#include <boost/asio/signal_set.hpp>
#include <fstream>
#include <memory>
#include <optional>
#include <utility>

#include "base/asio_executor.h"
#include "base/lock_file.h"
#include "base/random.h"
#include "base/rocks_record_store.h"
#include "base/wire_address.h"
#include "meta/grpc_common.h"

namespace unreft::meta {
namespace {

// What the process is made of, in the order of construction.
class MetaDaemon {
 public:
  MetaDaemon(const MetaDaemonOptions& options, Log& log, const ServiceManager& manager)
      : options_(options), log_(log), manager_(manager) {}

  absl::Status Run() {
    if (absl::Status status = Open(); !status.ok()) return status;
    FollowSignals();
    executor_.Post([this] {
      manager_.KeepWatchdog(executor_);
      engine_->Start([this](absl::Status status) {
        if (status.ok()) status = Serve();
        if (status.ok()) return;
        result_ = std::move(status);
        executor_.Stop();
      });
    });
    executor_.Run();
    if (server_ != nullptr) ::remove(AddressPath().c_str());
    server_.reset();
    return result_;
  }

 private:
  void FollowSignals() {
    signals_.async_wait([this](boost::system::error_code error, int number) {
      if (error) return;
      if (number != SIGHUP) {
        manager_.Stopping();
        log_.Info("signal {}: leaving; the data stays in {}", number, options_.directory);
        return executor_.Stop();
      }
      manager_.Reloading();
      Reload(log_, {tls_.get()});
      if (server_ != nullptr) TellReady();
      FollowSignals();
    });
  }

  std::string AddressPath() const { return options_.directory + "/address"; }

  absl::Status Open() {
    absl::StatusOr<LockFile> lock = LockFile::Acquire(options_.directory, "meta.lock");
    if (!lock.ok()) return lock.status();
    lock_ = *std::move(lock);
    ::remove(AddressPath().c_str());  // of a life that was killed
    RocksRecordStoreOptions records;
    records.directory = options_.directory + "/records";
    absl::StatusOr<std::unique_ptr<RocksRecordStore>> store =
        RocksRecordStore::Open(records, executor_);
    if (!store.ok()) return store.status();
    records_ = *std::move(store);
    engine_.emplace(executor_, *records_, random_, log_, options_.engine);
    return absl::OkStatus();
  }

  void TellReady() { manager_.Ready(fmt::format("meta store at {}", server_->address())); }

  absl::Status Serve() {
    auto tls = NewMetaCertificates(options_.server.tls, TlsUse::kListens, executor_, &log_);
    if (!tls.ok()) return tls.status();
    tls_ = *std::move(tls);
    absl::StatusOr<std::unique_ptr<EmbeddedServer>> server =
        EmbeddedServer::Start(options_.server, executor_, *engine_, tls_);
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    if (absl::Status status = WriteAddress(); !status.ok()) return status;
    TellReady();
    log_.Info("meta store {:x} serves at {}", engine_->cluster_id(), server_->address());
    if (IsOpen(server_->address(), options_.server.tls.enabled())) {
      log_.Warn(
          "insecure: {}: TCP without TLS, by which whoever reaches it can read and forge the "
          "records of all jobs (--insecure)",
          server_->address());
    }
    return absl::OkStatus();
  }

  // Whole or not at all, for those who wait for it.
  absl::Status WriteAddress() const {
    const std::string path = AddressPath();
    const std::string draft = path + ".new";
    std::ofstream file(draft);
    file << server_->address() << "\n";
    file.close();
    if (file.good() && ::rename(draft.c_str(), path.c_str()) == 0) return absl::OkStatus();
    return absl::UnavailableError(fmt::format("the address cannot be written to {}", path));
  }

  const MetaDaemonOptions& options_;
  Log& log_;
  const ServiceManager& manager_;
  std::optional<LockFile> lock_;
  AsioExecutor executor_{[this](const char* what) {
    log_.Error("a turn ended in '{}': what it was to do is not done, the store goes on", what);
  }};
  boost::asio::signal_set signals_{executor_.context(), SIGTERM, SIGINT, SIGHUP};
  Random random_ = Random::FromEntropy();
  std::unique_ptr<RocksRecordStore> records_;
  std::optional<StoreEngine> engine_;
  std::shared_ptr<TlsCertificates> tls_;  // shared with gRPC; null without TLS
  std::unique_ptr<EmbeddedServer> server_;
  absl::Status result_;
};

}  // namespace

absl::Status RunMetaDaemon(const MetaDaemonOptions& options, Log& log,
                           const ServiceManager& manager) {
  return MetaDaemon(options, log, manager).Run();
}

}  // namespace unreft::meta
