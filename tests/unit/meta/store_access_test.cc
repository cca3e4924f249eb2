// Which keys a client may use: by rule, and of a server that tells clients apart by certificates.
#include "meta/store_access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "base/random.h"
#include "meta/embedded_server.h"
#include "meta/etcd_kv.h"
#include "meta/store_engine.h"
#include "tests/conformance/world.h"
#include "tests/fakes/capture_log_sink.h"
#include "tests/fakes/fake_record_store.h"
#include "tests/fakes/test_certificates.h"

namespace unreft::meta {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(StoreAccessTest, ToTheKeysOfTheJobsThatTheCertificateNames) {
  const StoreAccess access =
      StoreAccess::ToJobsOf({"unreft://job/a", "spiffe://x", "unreft://job/", "unreft://job/b"});
  const auto may = [&](const std::string& begin, const std::string& end = "") {
    return access.Check(KeySpan{begin, end}).ok();
  };
  EXPECT_TRUE(may("unreft/a/commit"));
  EXPECT_TRUE(may("unreft/b/node/3"));
  EXPECT_TRUE(may("unreft/a/", "unreft/a0")) << "all that begin with the first";
  EXPECT_TRUE(may("unreft/a/m", "unreft/a/n"));
  EXPECT_FALSE(may("unreft/a"));
  EXPECT_FALSE(may("unreft/ab/commit"));
  EXPECT_FALSE(may("unreft/c/commit"));
  EXPECT_FALSE(may("other"));
  EXPECT_FALSE(may("unreft/a/", "unreft/b0")) << "from one job's to another's";
  EXPECT_FALSE(may("unreft/a/", std::string(1, '\0')));
  EXPECT_FALSE(may(std::string(1, '\0'), std::string(1, '\0')));
  EXPECT_FALSE(may("unreft//commit"));
  EXPECT_FALSE(StoreAccess::ToJobsOf({}).Check(KeySpan{"unreft//x", ""}).ok());
  EXPECT_TRUE(StoreAccess::ToAll().Check(KeySpan{std::string(1, '\0'), std::string(1, '\0')}).ok());
  EXPECT_TRUE(StoreAccess::ToAll().CheckAll("a compaction").ok());
  EXPECT_TRUE(absl::IsPermissionDenied(access.CheckAll("a compaction")));
}

TEST(StoreAccessTest, EachKeyOfATxnCounts) {
  const StoreAccess access = StoreAccess::ToJobsOf({"unreft://job/a"});
  const auto check = [&](auto add) {
    StoreTxn txn;
    txn.compares.push_back({.key = "unreft/a/x"});
    txn.then.push_back(StorePut{"unreft/a/x", "", {}});
    txn.otherwise.push_back(StoreRange{.span = {"unreft/a/", "unreft/a0"}});
    add(txn);
    return access.Check(txn);
  };
  EXPECT_TRUE(check([](StoreTxn&) {}).ok());
  const KeySpan probe{std::string(1, '\0'), ""};
  EXPECT_TRUE(check([&](StoreTxn& txn) { txn.then.push_back(StoreRange{.span = probe}); }).ok());
  EXPECT_FALSE(check([&](StoreTxn& txn) { txn.then.push_back(StoreDelete{probe}); }).ok());
  const KeySpan other{"unreft/b/x", ""};
  for (const absl::Status& status : {
           check([&](StoreTxn& txn) { txn.compares.push_back({.key = other.begin}); }),
           check([&](StoreTxn& txn) {
             txn.then.push_back(StorePut{other.begin, "", {}});
           }),
           check([&](StoreTxn& txn) { txn.then.push_back(StoreDelete{other}); }),
           check([&](StoreTxn& txn) { txn.otherwise.push_back(StoreRange{.span = other}); }),
       }) {
    EXPECT_TRUE(absl::IsPermissionDenied(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("'unreft/b/x'"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("certificate is of [a]"));
  }
}

class ServerAccessTest : public ::testing::Test {
 protected:
  ServerAccessTest() {
    records_ = *FakeRecordStore::Open(disk_, world_.executor(0));
    engine_ = std::make_unique<StoreEngine>(world_.executor(0), *records_, random_, log_);
    std::optional<absl::Status> started;
    world_.InTurn([&] { engine_->Start([&](absl::Status status) { started = status; }); });
    UNREFT_CHECK(world_.RunUntil([&] { return started.has_value(); }) && started->ok());
    auto server = EmbeddedServer::Start({.listen = "127.0.0.1:0", .tls = FilesOf("a")},
                                        world_.executor(0), *engine_);
    UNREFT_CHECK(server.ok(), "{}", server.status().ToString());
    server_ = *std::move(server);
  }
  ~ServerAccessTest() override {
    world_.InTurn([&] { kv_.reset(); });
    server_.reset();
    engine_.reset();
    records_.reset();
  }

  MetaTlsOptions FilesOf(const std::string& job) {
    const GrpcTlsOptions made = certificates_.Make(job);
    return {
        .ca = made.ca_file, .cert = made.cert_file, .key = made.key_file, .server_name = "node"};
  }
  void ConnectAs(const std::string& job) {
    auto kv =
        EtcdKv::Create({.endpoints = server_->address(), .tls = FilesOf(job)}, world_.executor(0));
    UNREFT_CHECK(kv.ok(), "{}", kv.status().ToString());
    world_.InTurn([&] { kv_ = *std::move(kv); });
  }
  absl::Status Put(const std::string& key) {
    std::optional<absl::Status> done;
    world_.InTurn([&] {
      Txn txn;
      txn.then.push_back(PutOp{key, "value", LeaseId{}});
      kv_->Commit(std::move(txn),
                  [&](absl::StatusOr<TxnResult> result) { done = result.status(); });
    });
    UNREFT_CHECK(world_.RunUntil([&] { return done.has_value(); }));
    return *done;
  }
  // Which keys it hears of, of the changes since the store began.
  void Watch(const std::string& key) {
    world_.InTurn([&] {
      kv_->Watch(
          {key}, Revision{2},
          [this](std::vector<WatchEvent> events) {
            for (const WatchEvent& event : events) heard_.push_back(event.kv.key);
          },
          [](const absl::Status&) {});
    });
  }

  AsioWorld world_;
  TestCertificates certificates_;
  FakeDisk disk_{1};
  Random random_{2};
  CaptureLogSink sink_;
  Log log_{sink_};
  std::unique_ptr<FakeRecordStore> records_;
  std::unique_ptr<StoreEngine> engine_;
  std::unique_ptr<EmbeddedServer> server_;
  std::unique_ptr<Kv> kv_;
  std::vector<std::string> heard_;
};

TEST_F(ServerAccessTest, ACertificateOfAnotherJobChangesNothingOfThisOne) {
  ConnectAs("a");
  EXPECT_EQ(Put("unreft/a/commit"), absl::OkStatus());
  ConnectAs("b");
  const absl::Status status = Put("unreft/a/commit");
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("certificate is of [b]"));
  Watch("unreft/a/commit");
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Put("unreft/b/commit"), absl::OkStatus());
  EXPECT_THAT(heard_, IsEmpty());
  ConnectAs("a");
  Watch("unreft/a/commit");
  EXPECT_TRUE(world_.RunUntil([&] { return !heard_.empty(); }));
  EXPECT_THAT(heard_, ElementsAre("unreft/a/commit"));
}

TEST_F(ServerAccessTest, AKeyThatOthersCanReadIsRefused) {
  MetaTlsOptions files = FilesOf("c");
  ASSERT_EQ(std::system(("chmod 644 " + files.key).c_str()), 0);
  for (const absl::Status& status :
       {EtcdKv::Create({.endpoints = "127.0.0.1:1", .tls = files}, world_.executor(0)).status(),
        EmbeddedServer::Start({.listen = "127.0.0.1:0", .tls = files}, world_.executor(0), *engine_)
            .status()}) {
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("with mode 0644"));
  }
}

}  // namespace
}  // namespace unreft::meta
