// A real etcd whose database has reached its quota, and what docs/operations.md does about it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "meta/etcd_kv.h"
#include "tests/conformance/etcd_processes.h"
#include "tests/conformance/world.h"

namespace unreft::meta {
namespace {

using testing::HasSubstr;

constexpr uint64_t kQuota = uint64_t{2} << 20;
constexpr int kPutsMax = 200;
constexpr size_t kValueBytes = 64 << 10;

class EtcdSpaceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = EtcdProcesses::Missing(); !missing.empty()) {
      GTEST_SKIP() << missing;
    }
    etcd_.emplace(1, kQuota);
    world_.InTurn([&] {
      auto made =
          EtcdKv::Create({.endpoints = etcd_->endpoints(), .insecure = true}, world_.executor(0));
      UNREFT_CHECK(made.ok(), "{}", made.status().ToString());
      kv_ = *std::move(made);
    });
  }
  ~EtcdSpaceTest() override {
    world_.InTurn([this] { kv_.reset(); });
  }

  absl::StatusOr<TxnResult> Put(const std::string& value) {
    std::optional<absl::StatusOr<TxnResult>> end;
    world_.InTurn([&] {
      kv_->Commit({.then = {PutOp{"k", value, {}}}}, [&](auto result) { end = std::move(result); });
    });
    EXPECT_TRUE(world_.RunUntil([&] { return end.has_value(); }));
    return *std::move(end);
  }
  uint64_t Size() {
    std::optional<absl::StatusOr<uint64_t>> size;
    world_.InTurn([&] { kv_->AskSize([&](auto result) { size = std::move(result); }); });
    EXPECT_TRUE(world_.RunUntil([&] { return size.has_value(); }));
    EXPECT_TRUE(size->ok()) << size->status();
    return size->value_or(0);
  }

  AsioWorld world_;
  std::optional<EtcdProcesses> etcd_;
  std::unique_ptr<EtcdKv> kv_;
};

TEST_F(EtcdSpaceTest, AFullDatabaseIsNamedAndWritesAgainOnceItIsCompacted) {
  const uint64_t begun = Size();
  absl::Status status;
  Revision newest;
  for (int puts = 0; puts < kPutsMax && status.ok(); ++puts) {
    const auto result = Put(std::string(kValueBytes, 'v'));
    if (result.ok()) newest = result->revision;
    status = result.status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("database space exceeded"));
  const uint64_t full = Size();
  EXPECT_GT(full, begun);
  ASSERT_EQ(etcd_->Ctl("compact " + std::to_string(newest.value)), 0);
  ASSERT_EQ(etcd_->Ctl("defrag"), 0);
  EXPECT_EQ(Put("v").status().code(), absl::StatusCode::kResourceExhausted) << "the alarm stays";
  ASSERT_EQ(etcd_->Ctl("alarm disarm"), 0);
  EXPECT_EQ(Put("v").status(), absl::OkStatus());
  EXPECT_LT(Size(), full);
}

}  // namespace
}  // namespace unreft::meta
