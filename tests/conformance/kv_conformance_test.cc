// Kv on the fake, the engine alone, the embedded server and real etcd, and what each of them has of
// its own.
#include "tests/conformance/kv_conformance.h"

#include <etcd/rpc.grpc.pb.h>
#include <grpcpp/create_channel.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/memory_record_store.h"
#include "base/rocks_record_store.h"
#include "meta/embedded_server.h"
#include "meta/engine_kv.h"
#include "meta/etcd_kv.h"
#include "meta/store_engine.h"
#include "tests/conformance/etcd_processes.h"
#include "tests/fakes/capture_log_sink.h"
#include "tests/fakes/fake_kv.h"

namespace unreft::meta {
namespace {

class FakeWorld : public KvWorld {
 public:
  explicit FakeWorld(uint64_t seed) : world_(seed), store_(world_.scheduler(), seed) {
    WaitForStore();
  }
  World& world() override { return world_; }
  using KvWorld::NewKv;
  std::unique_ptr<Kv> NewKv(Duration) override { return store_.NewKv(world_.sim()); }
  void Stop() override { store_.Kill(); }
  void Start() override {
    store_.Restart();
    WaitForStore();
  }
  void Forget(Revision before) override {
    bool done = false;
    store_.process().Post([&] {
      store_.engine()->Compact(before, [&](absl::Status status) {
        EXPECT_TRUE(status.ok()) << status;
        done = true;
      });
    });
    EXPECT_TRUE(world_.RunUntil([&] { return done; }));
  }
  bool LoseData() override {
    store_.LoseData();
    return true;
  }
  FakeKvStore& store() { return store_; }
  SimWorld& sim() { return world_; }

 private:
  void WaitForStore() {
    EXPECT_TRUE(world_.RunUntil([&] { return store_.ready(); }));
  }

  SimWorld world_;
  FakeKvStore store_;
};

class EngineWorld : public KvWorld {
 public:
  explicit EngineWorld(uint64_t seed) : world_(seed), random_(seed) {
    std::optional<absl::Status> started;
    world_.InTurn([&] { engine_.Start([&](absl::Status status) { started = status; }); });
    UNREFT_CHECK(world_.RunUntil([&] { return started.has_value(); }) && started->ok());
  }
  World& world() override { return world_; }
  using KvWorld::NewKv;
  std::unique_ptr<Kv> NewKv(Duration) override {
    return std::make_unique<EngineKv>(world_.executor(0), engine_);
  }
  void Forget(Revision before) override {
    std::optional<absl::Status> done;
    world_.InTurn([&] { engine_.Compact(before, [&](absl::Status status) { done = status; }); });
    EXPECT_TRUE(world_.RunUntil([&] { return done.has_value(); }));
    EXPECT_TRUE(done->ok()) << *done;
  }

 private:
  SimWorld world_;
  Random random_;
  CaptureLogSink sink_;
  Log log_{sink_};
  MemoryRecordStore records_{world_.executor(0)};
  StoreEngine engine_{world_.executor(0), records_, random_, log_};
};

class EmbeddedWorld : public KvWorld {
 public:
  enum class Wire { kTcp, kUnix };
  explicit EmbeddedWorld(Wire wire) {
    directory_ = testing::TempDir() + "unreft_meta_XXXXXX";
    UNREFT_CHECK(mkdtemp(directory_.data()) != nullptr);
    is_open_ = wire == Wire::kTcp;
    address_ = is_open_ ? "127.0.0.1:0" : "unix:" + directory_ + "/meta store.sock";
    Start();
  }
  ~EmbeddedWorld() override {
    Stop();
    std::filesystem::remove_all(directory_);
  }
  World& world() override { return world_; }
  std::unique_ptr<Kv> NewKv(Duration call_timeout) override {
    auto kv =
        EtcdKv::Create({.endpoints = address_, .call_timeout = call_timeout, .insecure = is_open_},
                       world_.executor(0));
    UNREFT_CHECK(kv.ok());
    return *std::move(kv);
  }
  void Start() override {
    auto records =
        RocksRecordStore::Open({.directory = directory_ + "/records"}, world_.executor(0));
    UNREFT_CHECK(records.ok());
    records_ = *std::move(records);
    engine_ = std::make_unique<StoreEngine>(world_.executor(0), *records_, random_, log_);
    std::optional<absl::Status> started;
    world_.InTurn([&] { engine_->Start([&](absl::Status status) { started = status; }); });
    UNREFT_CHECK(world_.RunUntil([&] { return started.has_value(); }) && started->ok());
    auto server = EmbeddedServer::Start({.listen = address_, .insecure = is_open_},
                                        world_.executor(0), *engine_);
    UNREFT_CHECK(server.ok(), "{}", server.status().ToString());
    server_ = *std::move(server);
    address_ = server_->address();
  }
  void Stop() override {
    server_.reset();
    engine_.reset();
    records_.reset();
  }
  void Forget(Revision before) override {
    std::optional<absl::Status> done;
    world_.InTurn([&] { engine_->Compact(before, [&](absl::Status status) { done = status; }); });
    EXPECT_TRUE(world_.RunUntil([&] { return done.has_value(); }));
    EXPECT_TRUE(done->ok()) << *done;
  }
  const std::string& directory() const { return directory_; }
  bool LoseData() override {
    std::filesystem::remove_all(directory_ + "/records");
    return true;
  }

 private:
  std::string directory_;
  std::string address_;
  bool is_open_ = false;
  AsioWorld world_;
  Random random_ = Random::FromEntropy();
  CaptureLogSink sink_;
  Log log_{sink_};
  std::unique_ptr<RocksRecordStore> records_;
  std::unique_ptr<StoreEngine> engine_;
  std::unique_ptr<EmbeddedServer> server_;
};

class EtcdWorld : public KvWorld {
 public:
  explicit EtcdWorld(int members) {
    if (missing().empty()) etcd_ = std::make_unique<EtcdProcesses>(members);
  }
  std::string missing() const override { return EtcdProcesses::Missing(); }
  World& world() override { return world_; }
  using KvWorld::NewKv;
  std::unique_ptr<Kv> NewKv(Duration call_timeout) override {
    auto kv = EtcdKv::Create(
        {.endpoints = etcd_->endpoints(), .call_timeout = call_timeout, .insecure = true},
        world_.executor(0));
    UNREFT_CHECK(kv.ok());
    return *std::move(kv);
  }
  void Stop() override { etcd_->Kill(0); }
  void Start() override { etcd_->Start(0); }
  void Forget(Revision before) override {
    auto kv = etcdserverpb::KV::NewStub(
        grpc::CreateChannel(etcd_->endpoint(0), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    etcdserverpb::CompactionRequest request;
    request.set_revision(static_cast<int64_t>(before.value));
    etcdserverpb::CompactionResponse response;
    EXPECT_TRUE(kv->Compact(&context, request, &response).ok());
  }
  bool LoseData() override { return false; }
  EtcdProcesses& etcd() { return *etcd_; }

 private:
  AsioWorld world_;
  std::unique_ptr<EtcdProcesses> etcd_;
};

const auto kFakeWorlds = SimWorlds<KvWorld, FakeWorld>();
const WorldMaker<KvWorld> kEmbeddedWorlds[] = {
    {"Tcp", [] { return std::make_unique<EmbeddedWorld>(EmbeddedWorld::Wire::kTcp); }},
    {"Unix", [] { return std::make_unique<EmbeddedWorld>(EmbeddedWorld::Wire::kUnix); }}};
const WorldMaker<KvWorld> kEtcdWorlds[] = {
    {"OneMember", [] { return std::make_unique<EtcdWorld>(1); }}};

INSTANTIATE_TEST_SUITE_P(Fake, KvConformance, testing::ValuesIn(kFakeWorlds), WorldName<KvWorld>);
INSTANTIATE_TEST_SUITE_P(Engine, KvConformance,
                         testing::ValuesIn(SimWorlds<KvWorld, EngineWorld>()), WorldName<KvWorld>);
INSTANTIATE_TEST_SUITE_P(Embedded, KvConformance, testing::ValuesIn(kEmbeddedWorlds),
                         WorldName<KvWorld>);
INSTANTIATE_TEST_SUITE_P(Etcd, KvConformance, testing::ValuesIn(kEtcdWorlds), WorldName<KvWorld>);
INSTANTIATE_TEST_SUITE_P(Fake, KvProcessConformance, testing::ValuesIn(kFakeWorlds),
                         WorldName<KvWorld>);
INSTANTIATE_TEST_SUITE_P(Embedded, KvProcessConformance, testing::ValuesIn(kEmbeddedWorlds),
                         WorldName<KvWorld>);
INSTANTIATE_TEST_SUITE_P(Etcd, KvProcessConformance, testing::ValuesIn(kEtcdWorlds),
                         WorldName<KvWorld>);

// --- of the engine alone ---

TEST(EngineKv, ALeaseOutlivesAProcessThatIsStopped) {
  EngineWorld engine(1);
  World& world = engine.world();
  auto kv = engine.NewKv();
  bool is_over = false;
  std::optional<absl::Status> put;
  world.InTurn([&] {
    kv->GrantLease(std::chrono::seconds(1), [&](absl::StatusOr<LeaseId> lease) {
      kv->Commit({.then = {PutOp{"k", "v", *lease}}},
                 [&](absl::StatusOr<TxnResult> result) { put = result.status(); });
    });
    world.executor().After(std::chrono::hours(1), [&] { is_over = true; });
  });
  ASSERT_TRUE(world.RunUntil([&] { return is_over; }));
  EXPECT_EQ(put, absl::OkStatus());
  std::optional<size_t> found;
  world.InTurn([&] { Get(*kv, {"k"}, [&](auto kvs) { found = kvs->size(); }); });
  EXPECT_TRUE(world.RunUntil([&] { return found.has_value(); }));
  EXPECT_EQ(found, 1u);
  world.InTurn([&] { kv.reset(); });
}

// --- of the fake alone ---

// Counts "k" up by Txns that compare, through whatever happens; events must be without a gap.
class Counter {
 public:
  Counter(Kv& kv, Executor& executor) : kv_(kv), executor_(executor) {}
  void Start() { Read(); }
  int value() const { return value_; }

 private:
  void Read() {
    Get(kv_, {"k"}, [this](absl::StatusOr<std::vector<KeyValue>> kvs) {
      if (!kvs.ok()) return Again();
      value_ = kvs->empty() ? 0 : std::stoi(kvs->front().value);
      const Revision modified = kvs->empty() ? Revision{0} : kvs->front().mod_revision;
      kv_.Commit({.compares = {Compare::Modified("k", modified)},
                  .then = {PutOp{"k", std::to_string(value_ + 1), {}}}},
                 [this](absl::StatusOr<TxnResult>) { Again(); });
    });
  }
  void Again() {
    executor_.After(std::chrono::milliseconds(5), [this] { Read(); });
  }

  Kv& kv_;
  Executor& executor_;
  int value_ = 0;
};

TEST(FakeKv, LossesAndDeathsLoseNoEvent) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    FakeWorld fake(seed);
    fake.store().set_lose_one_in(5);
    auto kv = fake.NewKv();
    Follower follower(*kv, fake.world().executor());
    Counter counter(*kv, fake.world().executor());
    fake.world().InTurn([&] {
      follower.Start(Revision{1});
      counter.Start();
    });
    for (int life = 0; life < 3; ++life) {
      fake.sim().scheduler().RunFor(std::chrono::seconds(3));
      fake.Stop();
      fake.sim().scheduler().RunFor(std::chrono::milliseconds(100));
      fake.Start();
      fake.store().CutOff(fake.sim().sim());
      fake.sim().scheduler().RunFor(std::chrono::seconds(2));
      fake.store().Mend(fake.sim().sim());
    }
    fake.store().set_lose_one_in(0);
    fake.sim().scheduler().RunFor(std::chrono::seconds(5));
    EXPECT_FALSE(follower.end().has_value()) << *follower.end();
    EXPECT_GT(follower.ends(), 2u) << "seed " << seed;
    EXPECT_GT(follower.values().size(), 50u) << "seed " << seed;
    for (size_t i = 0; i < follower.values().size(); ++i) {
      ASSERT_EQ(follower.values()[i], std::to_string(i + 1)) << "seed " << seed;
    }
    fake.sim().sim().Kill();
    kv.reset();
  }
}

TEST(FakeKv, AnOlderCopyIsNoticed) {
  FakeWorld fake(1);
  auto kv = fake.NewKv();
  const auto put = [&](const std::string& value) {
    bool done = false;
    fake.world().InTurn([&] {
      kv->Commit({.then = {PutOp{"k", value, {}}}},
                 [&](const auto& result) { done = result.ok(); });
    });
    EXPECT_TRUE(fake.world().RunUntil([&] { return done; }));
  };
  put("1");
  const auto copy = fake.store().TakeCopy();
  put("2");
  Follower follower(*kv, fake.world().executor());
  fake.world().InTurn([&] { follower.Start(Revision{1}); });
  EXPECT_TRUE(fake.world().RunUntil([&] { return follower.values().size() == 2; }));
  fake.Stop();
  fake.store().RollBack(copy);
  fake.Start();
  EXPECT_TRUE(fake.world().RunUntil([&] { return follower.end().has_value(); }));
  EXPECT_EQ(follower.end()->code(), absl::StatusCode::kDataLoss) << *follower.end();
  EXPECT_THAT(std::string(follower.end()->message()), testing::HasSubstr("went back"));
  fake.world().InTurn([&] { kv.reset(); });
}

TEST(FakeKv, AFailedWriteIsTakenBackBeforeTheNext) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    FakeWorld fake(seed);
    auto kv = fake.NewKv();
    const auto commit = [&](const std::string& key) {
      std::optional<absl::Status> status;
      fake.world().InTurn([&] {
        kv->Commit({.then = {PutOp{key, "v", {}}}},
                   [&](const auto& result) { status = result.status(); });
      });
      EXPECT_TRUE(fake.world().RunUntil([&] { return status.has_value(); }));
      return *status;
    };
    EXPECT_TRUE(commit("before").ok());
    fake.store().disk().FailWrites(3, absl::ResourceExhaustedError("full"));
    EXPECT_TRUE(absl::IsUnavailable(commit("failed")));
    int tries = 0;
    while (!commit("after").ok() && ++tries < 10'000) {
    }
    fake.Stop();
    fake.store().disk().CrashHost();
    fake.Start();
    const StoreState& state = fake.store().engine()->state();
    EXPECT_TRUE(state.keys().contains("before") && state.keys().contains("after"));
    EXPECT_FALSE(state.keys().contains("failed")) << "seed " << seed;
    EXPECT_EQ(state.revision().value, 3u);
    fake.world().InTurn([&] { kv.reset(); });
  }
}

// --- of etcd alone ---

TEST(EtcdCluster, WritesGoOnWhenTheLeaderDies) {
  EtcdWorld world(3);
  if (!world.missing().empty()) GTEST_SKIP() << world.missing();
  auto kv = world.NewKv(std::chrono::seconds(1));
  Counter counter(*kv, world.world().executor());
  auto follower = std::make_unique<Follower>(*kv, world.world().executor());
  world.world().InTurn([&] {
    follower->Start(Revision{1});
    counter.Start();
  });
  const auto reached = [&](size_t count) {
    return world.world().RunUntil(
        [&] { return follower->end() || follower->values().size() >= count; });
  };
  // Each member in turn, so that one of them was the leader.
  for (int member = 0; member < 3; ++member) {
    const size_t before = follower->values().size();
    EXPECT_TRUE(reached(before + 20));
    world.etcd().Kill(member);
    EXPECT_TRUE(reached(before + 60));
    world.etcd().Start(member);
  }
  EXPECT_FALSE(follower->end().has_value()) << *follower->end();
  for (size_t i = 0; i < follower->values().size(); ++i) {
    ASSERT_EQ(follower->values()[i], std::to_string(i + 1));
  }
  world.world().InTurn([&] {
    kv.reset();
    follower.reset();
  });
}

// What is asked of the store is asked of nobody who has taken its place.
TEST(EmbeddedStore, IsAskedOnlyWhileItsDirectoryIsThisUsersAlone) {
  EmbeddedWorld world(EmbeddedWorld::Wire::kUnix);
  const auto kv = world.NewKv(std::chrono::seconds(5));
  const auto put = [&] {
    std::optional<absl::Status> done;
    world.world().InTurn([&] {
      Txn txn;
      txn.then.push_back(PutOp{"k", "v", LeaseId{}});
      kv->Commit(std::move(txn), [&](absl::StatusOr<TxnResult> r) { done = r.status(); });
    });
    EXPECT_TRUE(world.world().RunUntil([&] { return done.has_value(); }));
    return *done;
  };
  EXPECT_EQ(put(), absl::OkStatus());
  ASSERT_EQ(chmod(world.directory().c_str(), 01777), 0);
  EXPECT_EQ(put().code(), absl::StatusCode::kPermissionDenied);
  ASSERT_EQ(chmod(world.directory().c_str(), 0700), 0);
  EXPECT_EQ(put(), absl::OkStatus());
}

TEST(EtcdKv, RefusesEndpointsThatItCannotUse) {
  AsioWorld world;
  for (const char* endpoints :
       {"", "host", "host:", ":2379", "host:http", "host:65536", "::1:2379", "a:1,", "a:1;b:2",
        "http://host:2379", "a:1,https://host:2379", "unix:socket"}) {
    const auto kv = EtcdKv::Create({.endpoints = endpoints, .insecure = true}, world.executor(0));
    EXPECT_EQ(kv.status().code(), absl::StatusCode::kInvalidArgument) << endpoints;
  }
  const absl::Status open =
      EtcdKv::Create({.endpoints = "127.0.0.1:1"}, world.executor(0)).status();
  EXPECT_EQ(open.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(open.ToString(), testing::HasSubstr("meta_endpoints: '127.0.0.1:1' is TCP without"));
  EtcdKvOptions tls{.endpoints = "127.0.0.1:1"};
  tls.tls.ca = "/no/such/file";
  tls.tls.cert = "/no/such/certificate";
  const absl::Status unreadable = EtcdKv::Create(tls, world.executor(0)).status();
  EXPECT_EQ(unreadable.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(unreadable.ToString(), testing::HasSubstr("'/no/such/certificate'"));
}

}  // namespace
}  // namespace unreft::meta
