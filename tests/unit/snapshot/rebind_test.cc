// Tensors that are replaced by others like them: snapshots follow the addresses, and nobody else
// hears of it.

#include <gmock/gmock.h>

#include "tests/unit/snapshot/client_fixture.h"

namespace unreft::snapshot {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

class RebindTest : public ClientFixture {
 protected:
  RebindTest() {
    AddTensor("a", 100);
    AddTensor("b", 1000);
    AddTensor("c", 3);
  }
  // Puts the tensor into other memory, of other bytes, and frees nothing.
  void Replace(size_t tensor) {
    const size_t bytes = ShardBytes(tensors_[tensor].spec);
    std::vector<std::byte>& other = memory_.emplace_back(bytes);
    for (size_t i = 0; i < bytes; ++i) other[i] = static_cast<std::byte>(i * 5 + memory_.size());
    tensors_[tensor].data = other.data();
  }
  absl::Status Rebind(std::vector<uint64_t> indices) {
    std::vector<std::byte*> data;
    for (const uint64_t index : indices) {
      data.push_back(index < tensors_.size() ? tensors_[index].data : tensors_[0].data);
    }
    return actor_->Rebind(indices, data);
  }
  void ExpectStarted(uint64_t step) {
    const auto result = Snapshot(step);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->outcome, Outcome::kStarted) << result->reason;
  }
  void AwaitCaptured(size_t count) {
    ASSERT_TRUE(RunUntil([&] { return daemon_.Count<Captured>() == count; }));
  }
};

TEST_F(RebindTest, TheNextSnapshotReadsWhereTheTensorsAreAndNobodyIsAsked) {
  Ready();
  ExpectStarted(1);
  const std::vector<std::byte> before = ExpectedSlab();
  Fence();
  Replace(2);
  Replace(0);
  ASSERT_EQ(Rebind({2, 0}), absl::OkStatus());
  daemon_.Grant(1, 2);
  ExpectStarted(2);
  AwaitCaptured(2);
  const std::vector<std::byte> after = ExpectedSlab();
  ASSERT_NE(before, after);
  EXPECT_EQ(Slab(0, before.size()), before);
  EXPECT_EQ(Slab(1, after.size()), after);
  const auto captured = daemon_.Got<Captured>();
  EXPECT_EQ(captured[0].layout_digest, captured[1].layout_digest);
  EXPECT_EQ(daemon_.Count<unreft::Register>(), 1u);
}

TEST_F(RebindTest, ASnapshotUnderWayGoesOnWhereItBegan) {
  Ready();
  copier_.Hold();
  ExpectStarted(1);
  const std::vector<std::byte> before = ExpectedSlab();
  ASSERT_TRUE(RunUntil([&] { return copier_.waiting() == 1; }));
  for (const size_t tensor : {0, 1, 2}) Replace(tensor);
  ASSERT_EQ(Rebind({0, 1, 2}), absl::OkStatus());
  copier_.Release();
  AwaitCaptured(1);
  EXPECT_EQ(Slab(0, before.size()), before);
  daemon_.Grant(1, 2);
  ExpectStarted(2);
  AwaitCaptured(2);
  const std::vector<std::byte> after = ExpectedSlab();
  EXPECT_EQ(Slab(1, after.size()), after);
}

TEST_F(RebindTest, VolatileTensorsAndReplicaDigestsFollow) {
  tensors_[0].spec.is_volatile = true;
  tensors_[1].spec.replica_count = 2;
  daemon_.replica_check_every = 1;
  Ready();
  ExpectStarted(1);
  Fence();
  Replace(0);
  Replace(1);
  ASSERT_EQ(Rebind({0, 1}), absl::OkStatus());
  daemon_.Grant(1, 2);
  ExpectStarted(2);
  AwaitCaptured(2);
  const std::vector<std::byte> after = ExpectedSlab();
  EXPECT_EQ(Slab(1, after.size()), after);
  const auto captured = daemon_.Got<Captured>();
  EXPECT_NE(captured[0].replica_digests, captured[1].replica_digests);
}

// As after the daemon's restart, or when it makes other slots.
TEST_F(RebindTest, HoldsWhenTheDaemonAnswersTheRegistrationAgain) {
  Ready();
  Replace(1);
  ASSERT_EQ(Rebind({1}), absl::OkStatus());
  daemon_.SendRegistered();
  RunFor(milliseconds(10));
  ExpectStarted(1);
  AwaitCaptured(1);
  const std::vector<std::byte> expected = ExpectedSlab();
  EXPECT_EQ(Slab(0, expected.size()), expected);
}

TEST_F(RebindTest, AnotherRegistrationCountsAnew) {
  Ready();
  Replace(1);
  ASSERT_EQ(Rebind({1}), absl::OkStatus());
  tensors_.erase(tensors_.begin());
  ASSERT_EQ(Register(), absl::OkStatus());
  Replace(1);
  ASSERT_EQ(Rebind({1}), absl::OkStatus());
  EXPECT_TRUE(absl::IsOutOfRange(Rebind({2})));
  ExpectStarted(1);
  AwaitCaptured(1);
  const std::vector<std::byte> expected = ExpectedSlab();
  EXPECT_EQ(Slab(0, expected.size()), expected);
}

TEST_F(RebindTest, WhatIsWrongIsNamedAndNothingIsRebound) {
  StartClient();
  ASSERT_TRUE(Connect().ok());
  const absl::Status early = Rebind({0});
  EXPECT_TRUE(absl::IsFailedPrecondition(early)) << early;
  EXPECT_THAT(std::string(early.message()), HasSubstr("no tensors are registered"));
  ASSERT_TRUE(RestoreBegin().ok());
  ASSERT_EQ(Register(), absl::OkStatus());
  daemon_.Grant(0, 1);
  const std::vector<std::byte> expected = ExpectedSlab();

  Replace(0);
  const absl::Status beyond = Rebind({0, 3});
  EXPECT_TRUE(absl::IsOutOfRange(beyond)) << beyond;
  EXPECT_THAT(std::string(beyond.message()), HasSubstr("tensor 3: needed one of the 3 tensors"));
  tensors_[1].data = nullptr;
  const absl::Status null = Rebind({0, 1});
  EXPECT_TRUE(absl::IsInvalidArgument(null)) << null;
  EXPECT_THAT(std::string(null.message()), HasSubstr("tensor 1: data is NULL"));
  ExpectStarted(1);
  AwaitCaptured(1);
  EXPECT_EQ(Slab(0, expected.size()), expected);
}

TEST_F(RebindTest, ARegistrationThatFailedLeavesNothingToRebind) {
  Ready();
  tensors_[1].cuda_device = 0;  // this copier has none
  EXPECT_FALSE(Register().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Rebind({0})));
}

}  // namespace
}  // namespace unreft::snapshot
