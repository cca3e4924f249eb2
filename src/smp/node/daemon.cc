#include "smp/node/daemon.h"

#include <signal.h>
#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "base/asio_executor.h"
#include "base/fault_points.h"
#include "base/format.h"
#include "base/job_memory.h"
#include "base/lock_file.h"
#include "base/lost_pages.h"
#include "base/pidfd_watcher.h"
#include "base/rocks_record_store.h"
#include "base/run_owner.h"
#include "base/shm_segment_store.h"
#include "base/thread_work_pool.h"
#include "base/unix_listener.h"
#include "meta/etcd_kv.h"
#include "meta/grpc_common.h"
#include "smp/node/admin.h"
#include "smp/node/metrics_server.h"
#include "smp/node/node.h"
#include "smp/node/own_meta.h"
#include "smp/node/spare.h"
#include "smp/node/spawned_drain.h"
#include "transport/counting_transport.h"
#include "transport/grpc_transport.h"
#include "transport/refusal_log.h"
#include "transport/tls_certificates.h"

namespace unreft::smp {
namespace {

constexpr std::chrono::seconds kStoreSizeEvery(30);
constexpr std::chrono::seconds kStoreMembersEvery(5);
// The meta store may be away.
constexpr std::chrono::milliseconds kGoodByeMax(200);

// The kernel's random name of this boot, a UUID in text.
absl::StatusOr<RandomId> ReadBootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(file, text);
  std::erase(text, '-');
  RandomId id;
  if (text.size() != 2 * id.size()) {
    return absl::UnavailableError(fmt::format("boot id: needed 32 digits, found '{}'", text));
  }
  for (size_t i = 0; i < id.size(); ++i) {
    id[i] = static_cast<uint8_t>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

size_t WorkThreads(const DaemonOptions& options) {
  if (options.work_threads != 0) return options.work_threads;
  return std::max(1u, std::thread::hardware_concurrency() / 2);
}

// What a daemon is made of, in the order of construction.
class Daemon {
 public:
  Daemon(const DaemonOptions& options, Log& log, const ServiceManager& manager)
      : options_(options), log_(log), manager_(manager) {
    segments_.set_on_taken([this](const absl::Status& by_whom, const std::string& file) {
      log_.Warn("{}: it is left alone, and /dev/shm{} is made instead", by_whom.message(), file);
    });
  }

  absl::Status Run() {
    if (absl::Status status = faults_.Arm(options_.common.fault_points); !status.ok())
      return status;
    if (absl::Status status = Open(); !status.ok()) return status;
    FollowSignals();
    absl::StatusOr<RandomId> boot_id = ReadBootId();
    if (!boot_id.ok()) return boot_id.status();
    executor_.Post([this, boot_id = *boot_id] { Start(boot_id); });
    if (LostPagesDescriptor() >= 0) {
      lost_pages_.assign(dup(LostPagesDescriptor()));
      FollowLostPages();
    }
    executor_.Run();
    return result_;
  }

 private:
  absl::Status Open() {
    absl::StatusOr<LockFile> lock = LockFile::Acquire(options_.common.run_dir, "unreftd.lock");
    if (!lock.ok()) return lock.status();
    lock_ = *std::move(lock);
    if (absl::Status status = TakeRunDir(); !status.ok()) return status;
    RocksRecordStoreOptions records;
    records.directory = options_.common.run_dir + "/records";
    records.open_at_once = false;  // the memory may know all that is needed (NodeRecord::Open)
    absl::StatusOr<std::unique_ptr<RocksRecordStore>> store =
        RocksRecordStore::Open(records, executor_);
    if (!store.ok()) return store.status();
    records_ = *std::move(store);
    absl::StatusOr<std::unique_ptr<UnixListener>> listener = UnixListener::Create(
        executor_, SocketPath(options_.common.run_dir), UnixChannelOptions{},
        [this](const PeerIdentity& peer) {
          log_.Warn("a connection of uid {} (pid {}) is refused", peer.uid, peer.pid);
        });
    if (!listener.ok()) return listener.status();
    listener_ = *std::move(listener);
    return absl::OkStatus();
  }

  // The directory of another node whose memory is still here is left alone: its records are in it.
  absl::Status TakeRunDir() {
    const std::string& directory = options_.common.run_dir;
    const RunOwner own{options_.common.job, options_.common.node, options_.allow_inject};
    const std::optional<RunOwner> found = ReadRunOwner(directory);
    if (found && (found->job != own.job || found->node != own.node)) {
      const auto left = segments_.List(SegmentPrefix(found->job, found->node));
      if (!left.ok() || !left->empty()) {
        return absl::FailedPreconditionError(fmt::format(
            "{} is of job {}, node {}, whose memory is here; needed one of job {}, node {}: choose "
            "another --run-dir, or free that memory by `unreft down --run-dir {}`",
            directory, found->job, found->node, own.job, own.node, directory));
      }
    }
    if (absl::Status status = WriteRunOwner(directory, own); !status.ok()) {
      log_.Warn("{}: `unreft` takes the node of {} from its options alone", status.message(),
                directory);
    }
    return absl::OkStatus();
  }

  std::string MemoryOfTheDead() {
    const auto all = ListJobMemory(segments_);
    return all.ok() ? DescribeUnserved(*all, options_.common.job, options_.common.node) : "";
  }

  // What an operator who reads the log has to know of how it was started.
  void SayHowItServes() {
    const NodeOptions& node = options_.node;
    std::string groups = "no other node";
    if (node.nodes > 1) {
      groups =
          fmt::format("{} nodes, groups of {} + {}, {} to peers, {} to the meta store", node.nodes,
                      node.data_chunks, node.parity_chunks, node.peers_wire, node.store_wire);
    }
    std::string memory = "unknown";
    if (const auto capacity = segments_.Capacity(); capacity.ok()) {
      memory = fmt::format("{} bytes free in /dev/shm, {} bytes of RAM available",
                           capacity->segments_free, capacity->ram_available);
    }
    if (node.memory_bytes_max != 0) {
      memory += fmt::format(", at most {} bytes (memory_bytes_max)", node.memory_bytes_max);
    }
    log_.Info("unreftd {}, pid {}: {}; {} slots per rank, {} pins; memory: {}",
              node.software_version, getpid(), groups, node.slots_per_rank, node.pins, memory);
  }

  std::string MetricsNow() {
    if (!node_) return SpareMetricsText(options_.node);
    return MetricsText(node_->state(), node_->member(), node_->exports());
  }

  absl::Status ServeMetrics() {
    if (options_.metrics_listen.empty()) return absl::OkStatus();
    auto server =
        MetricsServer::Start(executor_, options_.metrics_listen, [this] { return MetricsNow(); });
    if (!server.ok()) return server.status();
    metrics_ = *std::move(server);
    log_.Info("metrics at http://{}/metrics", metrics_->address());
    return absl::OkStatus();
  }

  void FollowSignals() {
    signals_.async_wait([this](boost::system::error_code error, int number) {
      if (error) return;
      if (number != SIGHUP) {
        manager_.Stopping();
        log_.Info("signal {}: leaving; the memory stays for the next daemon", number);
        return SayGoodBye();
      }
      manager_.Reloading();
      Reload(log_, {meta_tls_.get(), transport_tls_.get()});
      if (is_ready_) manager_.Ready(told_);
      FollowSignals();
    });
  }

  // The certificates by which this node is known and knows the others; null without TLS.
  absl::Status OpenCertificates() {
    auto meta_tls = meta::NewMetaCertificates(options_.kv.tls, TlsUse::kConnects, executor_, &log_);
    if (!meta_tls.ok()) return meta_tls.status();
    meta_tls_ = *std::move(meta_tls);
    if (!options_.transport.tls.enabled) return absl::OkStatus();
    auto transport_tls =
        NewNodeCertificates(options_.transport.job, options_.transport.tls, executor_, &log_);
    if (!transport_tls.ok()) return transport_tls.status();
    transport_tls_ = *std::move(transport_tls);
    return absl::OkStatus();
  }

  CertificateHealth Certificates() const {
    CertificateHealth health;
    for (const TlsCertificates* tls : {meta_tls_.get(), transport_tls_.get()}) {
      if (tls == nullptr) continue;
      const CertificateState state = tls->state();
      const double left = static_cast<double>(state.expires_s) - static_cast<double>(time(nullptr));
      health.seconds_left = std::min(health.seconds_left.value_or(left), left);
      health.files_are_bad = health.files_are_bad || state.files_are_bad;
    }
    return health;
  }

  // What other nodes are reached by. In the turn in which the node sets its handlers up.
  absl::Status JoinNetwork() {
    if (options_.node.has_own_store) return absl::OkStatus();
    if (absl::Status status = OpenCertificates(); !status.ok()) return status;
    auto kv = meta::EtcdKv::Create(options_.kv, executor_, meta_tls_);
    if (!kv.ok()) return kv.status();
    kv_ = *std::move(kv);
    FollowStoreSize();
    FollowStoreMembers();
    absl::StatusOr<std::unique_ptr<Transport>> transport =
        NewGrpcTransport(executor_, options_.transport, transport_tls_);
    if (!transport.ok()) return transport.status();
    transport_ = std::make_unique<CountingTransport>(
        std::make_unique<RefusalLog>(*std::move(transport), executor_, log_));
    log_.Info("node {} of {} is reached at {}, its meta store is {}", options_.node.node,
              options_.node.nodes, transport_->address(), options_.kv.endpoints);
    if (!options_.node.insecure.empty()) log_.Warn("insecure: {}", options_.node.insecure);
    return absl::OkStatus();
  }

  NodeSeams Seams() {
    return {executor_,
            pool_,
            random_,
            segments_,
            *records_,
            processes_,
            log_,
            &faults_,
            own_meta_ ? &own_meta_->kv() : kv_.get(),
            own_meta_ ? &own_meta_->transport() : transport_.get(),
            own_meta_ ? nullptr : &transport_->counts(),
            [this] { return Certificates(); },
            [this] { return MemoryOfTheDead(); },
            [this] { return store_bytes_; }};
  }

  // Now and then: it grows slowly.
  void FollowStoreSize() {
    kv_->AskSize([this](const absl::StatusOr<uint64_t>& bytes) {
      store_bytes_ = bytes.ok() ? std::optional(*bytes) : std::nullopt;
      store_size_timer_ = executor_.After(kStoreSizeEvery, [this] { FollowStoreSize(); });
    });
  }

  // One that is away, or mistyped, costs nothing until others are away, too: it is said before. It
  // may connect at the first look.
  void FollowStoreMembers() {
    std::map<std::string, std::string> away = kv_->MembersAway();
    for (const auto& [member, why] : away) {
      if (!members_away_.contains(member) || !members_said_.insert(member).second) continue;
      log_.Warn(
          "meta store: its member {} is not reached, and commits depend on the others: {}. Start "
          "it, or correct --meta-endpoints",
          member, why);
    }
    std::erase_if(members_said_, [&](const std::string& member) {
      if (away.contains(member)) return false;
      log_.Info("meta store: its member {} is reached again", member);
      return true;
    });
    members_away_ = std::move(away);
    store_members_timer_ = executor_.After(kStoreMembersEvery, [this] { FollowStoreMembers(); });
  }

  void TellReady(std::string status) {
    is_ready_ = true;
    told_ = std::move(status);
    manager_.Ready(told_);
  }

  void Start(RandomId boot_id) {
    manager_.Status("adopts the memory of the daemon before");
    manager_.KeepWatchdog(executor_);
    SayHowItServes();
    if (!options_.node.has_own_store) return Serve(boot_id);
    own_meta_.emplace(executor_, random_);
    own_meta_->Start([this, boot_id] { Serve(boot_id); });
  }

  void Serve(RandomId boot_id) {
    if (absl::Status status = JoinNetwork(); !status.ok()) return Fail(std::move(status));
    if (absl::Status status = ServeMetrics(); !status.ok()) return Fail(std::move(status));
    listener_->Start([this](std::unique_ptr<Channel> channel, PeerIdentity peer) {
      if (spare_) return spare_->Accept(std::move(channel), peer);
      node_->Accept(std::move(channel), peer);
    });
    if (!options_.spare) return StartNode(boot_id, options_.node);
    StartSpare(boot_id);
  }

  void StartSpare(RandomId boot_id) {
    spare_.emplace(Seams(), options_.node);
    log_.Info("spare {} waits at {}", options_.common.node, SocketPath(options_.common.run_dir));
    TellReady(fmt::format("spare {} of job {} waits for the slot of a lost node",
                          options_.common.node, options_.common.job));
    spare_->Start(boot_id, [this, boot_id](absl::StatusOr<NodeSlot> slot) {
      if (!slot.ok()) return Fail(slot.status());
      // Not in a callback of what goes.
      executor_.Post([this, boot_id, slot = *slot] {
        if (!spare_) return;
        spare_.reset();
        NodeOptions node = options_.node;
        node.node = slot;
        StartNode(boot_id, std::move(node));
      });
    });
  }

  void StartNode(RandomId boot_id, NodeOptions options) {
    const NodeSlot slot = options.node;
    node_.emplace(Seams(), std::move(options));
    node_->set_drain(&drain_, options_.exports);
    node_->set_on_ended([this, boot_id](const absl::Status& why) {
      if (!why.ok()) return Fail(why);
      if (options_.spare) BeSpareAgain(boot_id);
    });
    node_->Start(boot_id, [this, slot](absl::Status status) {
      if (!status.ok()) return Fail(std::move(status));
      const std::string socket = SocketPath(options_.common.run_dir);
      TellReady(fmt::format("node {} of job {} serves at {}", slot, options_.common.job, socket));
      log_.Info("serving at {}", socket);
    });
  }

  // Its slot has gone back to the memory that had it before.
  void BeSpareAgain(RandomId boot_id) {
    executor_.Post([this, boot_id] {  // not in a callback of what goes
      if (!node_) return;
      node_.reset();
      StartSpare(boot_id);
    });
  }

  void FollowLostPages() {
    lost_pages_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                           [this](boost::system::error_code error) {
                             if (error) return;
                             for (const LostPages& lost : TakeLostPages()) {
                               log_.Error("{}", lost.status.message());
                               executor_.Post([this, lost] {
                                 if (node_) node_->OnPagesLost(lost);
                               });
                             }
                             FollowLostPages();
                           });
  }

  void Fail(absl::Status status) {
    result_ = std::move(status);
    if (absl::IsResourceExhausted(result_)) {
      if (const std::string dead = MemoryOfTheDead(); !dead.empty()) {
        result_ = absl::ResourceExhaustedError(fmt::format("{}; {}", result_.message(), dead));
      }
    }
    executor_.Post([this] { Leave(); });  // not in a callback of what goes
  }

  // First of all, while all of it still runs: whoever waits for this daemon is to know at once.
  void SayGoodBye() {
    executor_.After(kGoodByeMax, [this] { Leave(); });
    const auto leave = [this] { executor_.Post([this] { Leave(); }); };
    if (node_) return node_->Leave(leave);
    if (spare_) return spare_->Leave(leave);
    Leave();
  }

  // In this order, and in a turn: no callback of a later one reaches an earlier one that is gone,
  // and the node takes its handlers out of the transport.
  void Leave() {
    if (std::exchange(is_gone_, true)) return;
    metrics_.reset();
    listener_.reset();
    node_.reset();
    spare_.reset();
    transport_.reset();
    executor_.Cancel(store_size_timer_);
    executor_.Cancel(store_members_timer_);
    kv_.reset();
    own_meta_.reset();
    transport_tls_.reset();
    meta_tls_.reset();
    executor_.Stop();
  }

  const DaemonOptions& options_;
  Log& log_;
  const ServiceManager& manager_;
  std::optional<LockFile> lock_;
  AsioExecutor executor_{[this](const char* what) {
    log_.Error("a turn ended in '{}': what it was to do is not done, the daemon goes on", what);
  }};
  boost::asio::signal_set signals_{executor_.context(), SIGTERM, SIGINT, SIGHUP};
  boost::asio::posix::stream_descriptor lost_pages_{executor_.context()};
  Random random_ = Random::FromEntropy();
  // A slot of 10 GiB takes the kernel seconds to free, for which the node's presence would lapse.
  ShmSegmentStore segments_{uint64_t{64} << 20};
  FaultPoints faults_;
  PidfdWatcher processes_{executor_};
  std::unique_ptr<RocksRecordStore> records_;
  std::unique_ptr<UnixListener> listener_;
  std::shared_ptr<TlsCertificates> meta_tls_;  // shared with gRPC, as the next
  std::shared_ptr<TlsCertificates> transport_tls_;
  std::optional<OwnMeta> own_meta_;  // without meta_endpoints; with them kv_ and transport_
  std::unique_ptr<meta::EtcdKv> kv_;
  std::optional<uint64_t> store_bytes_;
  TimerId store_size_timer_ = TimerId::kNone;
  std::map<std::string, std::string> members_away_;  // of the meta store, at the last look
  std::set<std::string> members_said_;               // of these
  TimerId store_members_timer_ = TimerId::kNone;
  std::unique_ptr<CountingTransport> transport_;
  SpawnedDrain drain_{executor_,
                      {"unreftd", "--role", "drain", "--job", options_.common.job, "--node",
                       fmt::format("{}", options_.common.node), "--run-dir",
                       options_.common.run_dir}};
  std::optional<Spare> spare_;
  std::optional<Node> node_;
  std::unique_ptr<MetricsServer> metrics_;
  // Last: its threads end first, while what their tasks touch is still there.
  ThreadWorkPool pool_{WorkThreads(options_)};
  absl::Status result_;
  bool is_gone_ = false;
  bool is_ready_ = false;  // the manager was told so, by the next
  std::string told_;
};

}  // namespace

std::string SocketPath(const std::string& run_dir) { return run_dir + "/unreftd.sock"; }

absl::Status RunDaemon(const DaemonOptions& options, Log& log, const ServiceManager& manager) {
  return Daemon(options, log, manager).Run();
}

}  // namespace unreft::smp
