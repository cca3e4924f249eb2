// Three members of a real etcd with mutual TLS and certificates as everybody has them: of each
// member its own address and nothing else.
#include <absl/strings/match.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meta/etcd_kv.h"
#include "tests/conformance/etcd_processes.h"
#include "tests/conformance/follower.h"
#include "tests/conformance/world.h"
#include "tests/fakes/test_certificates.h"

namespace unreft::meta {
namespace {

using testing::HasSubstr;

constexpr int kMembers = 3;
constexpr int kAttemptsMax = 300;  // of a second each at most
constexpr std::chrono::seconds kPatience(120);

class EtcdTlsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = EtcdProcesses::Missing(); !missing.empty()) {
      GTEST_SKIP() << missing;
    }
  }
  ~EtcdTlsTest() override {
    world_.InTurn([this] {
      kv_.reset();
      follower_.reset();
    });
  }

  GrpcTlsOptions Certificate(const std::string& names) {
    return certificates_.Make("store", "ours", {.names = names});
  }
  static EtcdProcesses::Tls FilesOf(const GrpcTlsOptions& tls) {
    return {tls.ca_file, tls.cert_file, tls.key_file};
  }
  void StartMembers() {
    std::vector<EtcdProcesses::Tls> files;
    for (int i = 0; i < kMembers; ++i) {
      files.push_back(FilesOf(Certificate("IP:" + EtcdProcesses::Address(i))));
    }
    etcd_.emplace(files);
  }
  std::unique_ptr<EtcdKv> Connect(const std::string& endpoints) {
    const GrpcTlsOptions own = Certificate("DNS:node");
    std::unique_ptr<EtcdKv> kv;
    world_.InTurn([&] {
      auto made = EtcdKv::Create(
          {.endpoints = endpoints, .tls = {own.ca_file, own.cert_file, own.key_file, ""}},
          world_.executor(0));
      UNREFT_CHECK(made.ok(), "{}", made.status().ToString());
      kv = *std::move(made);
    });
    return kv;
  }
  absl::Status Put(EtcdKv& kv, const std::string& value) {
    std::optional<absl::Status> end;
    world_.InTurn([&] {
      kv.Commit({.then = {PutOp{"k", value, {}}}},
                [&](const auto& result) { end = result.status(); });
    });
    EXPECT_TRUE(world_.RunUntil([&] { return end.has_value(); }));
    return *end;
  }
  // Whether it is written within the bound, however often it has to be tried: without a leader
  // members answer at once, and on a busy host it takes them seconds to have one.
  bool PutInTheEnd(EtcdKv& kv, const std::string& value) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < end) {
      last_ = Put(kv, value);
      if (last_.ok()) return true;
      world_.asio().RunOneFor(std::chrono::milliseconds(50));
    }
    return false;
  }

  AsioWorld world_;
  TestCertificates certificates_;
  std::optional<EtcdProcesses> etcd_;
  std::unique_ptr<EtcdKv> kv_;
  std::unique_ptr<Follower> follower_;
  absl::Status last_;
};

TEST_F(EtcdTlsTest, ReachesEachMemberAndSurvivesTheLossOfAny) {
  StartMembers();
  kv_ = Connect(etcd_->endpoints());
  ASSERT_TRUE(PutInTheEnd(*kv_, "begin")) << last_;
  // Each alone, by nothing but its own address.
  for (int i = 0; i < kMembers; ++i) {
    auto alone = Connect(etcd_->endpoint(i));
    EXPECT_TRUE(PutInTheEnd(*alone, "alone")) << i << ": " << last_;
    world_.InTurn([&] { alone.reset(); });
  }

  follower_ = std::make_unique<Follower>(*kv_, world_.executor(0));
  world_.InTurn([&] { follower_->Start(Revision{1}); });
  const auto sees = [&](const std::string& value) {
    return world_.RunUntil(
        [&] { return follower_->end() || std::ranges::count(follower_->values(), value) > 0; });
  };
  const int leader = etcd_->Leader();
  ASSERT_GE(leader, 0);
  etcd_->Kill(leader);
  ASSERT_TRUE(PutInTheEnd(*kv_, "without its leader")) << last_;
  EXPECT_TRUE(sees("without its leader"));
  etcd_->Start(leader);

  const int follower = (std::max(etcd_->Leader(), 0) + 1) % kMembers;
  etcd_->Kill(follower);
  ASSERT_TRUE(PutInTheEnd(*kv_, "without a follower")) << last_;
  EXPECT_TRUE(sees("without a follower"));

  // Of three members one: nothing is written, and that is said.
  const int second = (follower + 1) % kMembers;
  etcd_->Kill(second);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(Put(*kv_, "without a quorum").ok());
  etcd_->Start(second);
  ASSERT_TRUE(PutInTheEnd(*kv_, "with a quorum")) << last_;
  EXPECT_TRUE(sees("with a quorum"));
  EXPECT_FALSE(follower_->end().has_value()) << *follower_->end();
}

// A member with another's certificate is not asked, though the authority is the right one; the
// others are.
TEST_F(EtcdTlsTest, AMemberThatShowsAnothersCertificateIsNotAsked) {
  etcd_.emplace(std::vector{FilesOf(Certificate("IP:127.0.0.2"))});
  kv_ = Connect(etcd_->endpoint(0));
  const std::string why =
      "the certificate of CN=node is for [IP:127.0.0.2, URI:unreft://job/store], needed "
      "IP:127.0.0.1";
  // It is known once a handshake has come to an end, which a busy host may leave no time for.
  for (int i = 0; i < kAttemptsMax && !absl::StrContains(last_.message(), why); ++i) {
    last_ = Put(*kv_, "v");
    ASSERT_FALSE(last_.ok());
  }
  EXPECT_EQ(last_.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(last_.message()), HasSubstr(why));
}

TEST_F(EtcdTlsTest, AListOfNames) {
  etcd_.emplace(std::vector{FilesOf(Certificate("IP:127.0.0.1,DNS:localhost"))});
  const std::string port = etcd_->endpoint(0).substr(etcd_->endpoint(0).rfind(':'));
  kv_ = Connect("localhost" + port + ",127.0.0.1" + port);
  EXPECT_TRUE(PutInTheEnd(*kv_, "v")) << last_;
  world_.InTurn([&] { kv_.reset(); });
}

// As docs/operations.md has it: each certificate's common name is a user, with the role of its job.
TEST_F(EtcdTlsTest, ARoleKeepsJobsApart) {
  const auto files_of = [&](const std::string& user) {
    return FilesOf(certificates_.Make("store", "ours", {.common_name = user}));
  };
  etcd_.emplace(std::vector{FilesOf(Certificate("IP:127.0.0.1"))});
  const EtcdProcesses::Tls root = files_of("root");
  for (const char* words :
       {"user add root --no-password", "user grant-role root root", "role add unreft-a",
        "role grant-permission unreft-a --prefix=true readwrite unreft/a/",
        "user add node0 --no-password", "user grant-role node0 unreft-a", "auth enable"}) {
    ASSERT_EQ(etcd_->Ctl(root, words), 0) << words;
  }
  const EtcdProcesses::Tls own = files_of("node0");
  world_.InTurn([&] {
    auto made = EtcdKv::Create({.endpoints = etcd_->endpoints(),
                                .unwritten_key = "unreft/a/unwritten",
                                .tls = {own.ca, own.cert, own.key, ""}},
                               world_.executor(0));
    UNREFT_CHECK(made.ok(), "{}", made.status().ToString());
    kv_ = *std::move(made);
  });
  std::optional<absl::StatusOr<LeaseId>> lease;
  world_.InTurn(
      [&] { kv_->GrantLease(std::chrono::minutes(10), [&](auto granted) { lease = granted; }); });
  ASSERT_TRUE(world_.RunUntil([&] { return lease.has_value(); }));
  ASSERT_TRUE(lease->ok()) << lease->status();
  const auto put = [&](const std::string& key) {
    std::optional<absl::StatusOr<TxnResult>> result;
    world_.InTurn([&] {
      kv_->Commit({.then = {PutOp{key, "v", **lease}}},
                  [&](const auto& committed) { result = committed; });
    });
    EXPECT_TRUE(world_.RunUntil([&] { return result.has_value(); }));
    return *result;
  };
  const absl::StatusOr<TxnResult> written = put("unreft/a/leader");
  ASSERT_TRUE(written.ok()) << written.status();
  std::vector<std::string> seen;
  std::optional<absl::Status> end;
  world_.InTurn([&] {  // from there on: one that begins now is made when the store comes to it
    kv_->Watch(
        {"unreft/a/", true}, written->revision,
        [&](const std::vector<WatchEvent>& events) { seen.push_back(events.front().kv.key); },
        [&](absl::Status status) { end = std::move(status); });
  });
  EXPECT_TRUE(world_.RunUntil([&] { return end || !seen.empty(); }));
  EXPECT_THAT(seen, testing::ElementsAre("unreft/a/leader"));
  const absl::Status refused = put("unreft/b/leader").status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  std::optional<absl::Status> kept;
  world_.InTurn([&] { kv_->KeepAlive(**lease, [&](auto status) { kept = std::move(status); }); });
  EXPECT_TRUE(world_.RunUntil([&] { return kept.has_value(); }));
  EXPECT_EQ(*kept, absl::OkStatus());
}

}  // namespace
}  // namespace unreft::meta
