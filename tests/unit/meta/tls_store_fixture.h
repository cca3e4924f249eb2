// The embedded store behind a server that tells clients apart by their certificates.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

class TlsStoreTest : public ::testing::Test {
 protected:
  TlsStoreTest() {
    records_ = *FakeRecordStore::Open(disk_, world_.executor(0));
    engine_ = std::make_unique<StoreEngine>(world_.executor(0), *records_, random_, log_);
    std::optional<absl::Status> started;
    world_.InTurn([&] { engine_->Start([&](absl::Status status) { started = status; }); });
    UNREFT_CHECK(world_.RunUntil([&] { return started.has_value(); }) && started->ok());
  }
  ~TlsStoreTest() override {
    world_.InTurn([&] { kv_.reset(); });
    server_.reset();
    engine_.reset();
    records_.reset();
  }

  void StartServer(EmbeddedServerOptions options = {}) {
    options.listen = "127.0.0.1:0";
    options.tls = FilesOf("a");
    auto server = EmbeddedServer::Start(std::move(options), world_.executor(0), *engine_);
    UNREFT_CHECK(server.ok(), "{}", server.status().ToString());
    server_ = *std::move(server);
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

}  // namespace unreft::meta
