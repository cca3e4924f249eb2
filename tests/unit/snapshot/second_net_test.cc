// The second net: tensors that are written while they are copied, or without any fence, make no
// version; who keeps the rules is never accused.

#include <gmock/gmock.h>

#include "tests/unit/snapshot/client_fixture.h"

namespace unreft::snapshot {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

class SecondNetTest : public ClientFixture {
 protected:
  SecondNetTest() {
    AddTensor("model/a", 100);
    AddTensor("model/b", 1000);
    AddTensor("step", 1);
  }
  // The whole of it, in place.
  void Write(size_t tensor) {
    for (std::byte& byte : memory_[tensor]) byte ^= std::byte{0x55};
  }
  void WriteAll() {
    for (size_t tensor = 0; tensor < tensors_.size(); ++tensor) Write(tensor);
  }
  void Grant() {
    ++generation_;
    daemon_.Grant(generation_ % 2, generation_);
  }
  void ExpectStarted(uint64_t step) {
    const auto result = Snapshot(step);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->outcome, Outcome::kStarted) << result->reason;
  }
  std::string ExpectSkipped(uint64_t step) {
    const auto result = Snapshot(step);
    if (!result.ok()) return result.status().ToString();
    EXPECT_EQ(result->outcome, Outcome::kSkipped);
    return result->reason;
  }
  void ExpectCaptured(size_t count) {
    ASSERT_TRUE(RunUntil([&] { return daemon_.Count<Captured>() == count; }));
    EXPECT_EQ(daemon_.Count<GaveUp>(), 0u);
  }
  std::string WhyGivenUp() {
    if (!RunUntil([&] { return daemon_.Count<GaveUp>() == 1; })) return "it was not given up";
    EXPECT_EQ(daemon_.Count<Captured>(), 0u);
    return daemon_.Got<GaveUp>().at(0).reason;
  }
  // A snapshot whose copies wait.
  void Held(uint64_t step) {
    copier_.Hold();
    ExpectStarted(step);
    ASSERT_TRUE(RunUntil([&] { return copier_.waiting() == 1; }));
  }

 private:
  uint64_t generation_ = 0;
};

// --- Written while it is copied ---

TEST_F(SecondNetTest, AWriteWhileCopiesRunGivesTheVersionUpAndNamesTheTensor) {
  Ready();
  Held(12);
  Write(1);
  copier_.Release();
  const std::string why = WhyGivenUp();
  EXPECT_EQ(why,
            "tensor 'model/b' changed while step 12 was being copied: written after snapshot() and "
            "before fence() (an in-place operation, an EMA or weight swap, an optimizer without "
            "the hook?); call fence() before that write, or declare the tensor volatile");
  EXPECT_EQ(status().given_up, 1u);
  EXPECT_EQ(status().last_problem, "step 12 given up: " + why);
  EXPECT_FALSE(status().last_captured);
  EXPECT_THAT(std::string(WaitCommitted(12).message()), HasSubstr("'model/b' changed"));
  // And it goes on.
  Fence();
  Grant();
  ExpectStarted(13);
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<Captured>() == 1; }));
}

TEST_F(SecondNetTest, AWriteBehindTheLastCopyIsSeenUntilTheCheck) {
  Ready();
  Held(1);
  const std::vector<std::byte> before = ExpectedSlab();
  const size_t buckets = (before.size() + 511) / 512;
  for (size_t bucket = 1; bucket < buckets; ++bucket) {
    copier_.Let(1);
    ASSERT_TRUE(RunUntil([&] { return copier_.waiting() == 1; }));
  }
  copier_.Let(1);  // copies at once, and says so in a turn that has not come yet
  EXPECT_EQ(Slab(0, before.size()), before);
  Write(0);
  EXPECT_THAT(WhyGivenUp(), HasSubstr("tensor 'model/a' changed"));
}

TEST_F(SecondNetTest, AWriteAfterTheCheckIsNoHarm) {
  Ready();
  ExpectStarted(1);
  const std::vector<std::byte> before = ExpectedSlab();
  ExpectCaptured(1);
  WriteAll();
  Fence();
  EXPECT_EQ(Slab(0, before.size()), before);
}

TEST_F(SecondNetTest, TheFirstFewTensorsAreNamedAndTheOthersCounted) {
  AddTensor("x", 5);
  AddTensor("y", 50000);
  daemon_.MakeSlots(2, 256 * 1024);
  Ready();
  Held(1);
  WriteAll();
  copier_.Release();
  EXPECT_THAT(WhyGivenUp(), AllOf(HasSubstr("tensors 'model/a', 'model/b', 'step' and 2 more"),
                                  HasSubstr("declare them volatile")));
}

TEST_F(SecondNetTest, VolatileTensorsMayBeWritten) {
  tensors_[1].spec.is_volatile = true;
  Ready();
  Held(1);
  Write(1);
  copier_.Release();
  ExpectCaptured(1);
}

// It would be torn where the other replica captures it.
TEST_F(SecondNetTest, ATensorThatAnotherReplicaCapturesCounts) {
  tensors_[0].spec.replica_count = 2;
  const auto captures = [&](uint32_t index) {
    tensors_[0].spec.replica_index = index;
    const auto table = *layout::TensorTable::Create(SpecsOf(tensors_));
    return layout::CapturePlan::Make(table, daemon_.mode).parts().size() == 3;
  };
  ASSERT_NE(captures(1), captures(0));
  if (captures(0)) tensors_[0].spec.replica_index = 1;
  Ready();
  Held(1);
  Write(0);
  copier_.Release();
  EXPECT_THAT(WhyGivenUp(), HasSubstr("tensor 'model/a' changed"));
}

TEST_F(SecondNetTest, AnotherReasonToGiveUpComesFirst) {
  options_.capture.fence_timeout = seconds(2);
  Ready();
  Held(1);
  Write(1);
  bool fenced = false;
  InTurn([&] { actor_->FenceThen([&] { fenced = true; }); });
  RunFor(seconds(3));
  copier_.Release();
  ASSERT_TRUE(RunUntil([&] { return fenced; }));
  EXPECT_THAT(WhyGivenUp(), HasSubstr("2000 ms"));
}

TEST_F(SecondNetTest, AnAbandonedVersionIsNotChecked) {
  Ready();
  Held(1);
  Write(1);
  daemon_.Send(VersionState{{Timeline{7}, Step{1}}, VersionPhase::kAbandoned, "rank 3 skipped"});
  RunFor(milliseconds(10));
  copier_.Release();
  EXPECT_THAT(WhyGivenUp(), HasSubstr("rank 3 skipped"));
}

TEST_F(SecondNetTest, WithoutProbesNobodyLooks) {
  options_.capture.probe_lines = 0;
  Ready();
  Held(1);
  Write(1);
  copier_.Release();
  ExpectCaptured(1);
  WriteAll();
  Grant();
  ExpectStarted(2);
}

TEST_F(SecondNetTest, WhoFencesIsNeverAccused) {
  tensors_[0].spec.replica_count = 2;
  daemon_.replica_check_every = 2;
  Ready();
  for (uint64_t step = 1; step <= 60; ++step) {
    if (step > 1) Grant();
    Fence();
    WriteAll();
    ExpectStarted(step);
    ExpectCaptured(step);
  }
  EXPECT_EQ(status().skipped, 0u);
}

// --- On a device ---

class DeviceNetTest : public SecondNetTest {
 protected:
  DeviceNetTest() {
    copier_.has_device = true;
    options_.capture.device_bucket_bytes = 512;
    for (const size_t tensor : {0, 1}) tensors_[tensor].cuda_device = 0;
  }
  // A snapshot of which nothing is copied, and the last look has not come.
  void HeldOnDevice(uint64_t step) {
    copier_.Hold();
    ExpectStarted(step);
    ASSERT_TRUE(RunUntil([&] { return copier_.waiting() > 2; }));
  }
};

TEST_F(DeviceNetTest, AWriteWhileCopiesRunIsNamedWhereverTheTensorLies) {
  AddTensor("offloaded", 5000);
  daemon_.MakeSlots(2, 64 * 1024);
  Ready();
  EXPECT_EQ(copier_.probes_reserved, 2u);
  HeldOnDevice(12);
  Write(1);
  Write(3);
  copier_.Release();
  EXPECT_THAT(WhyGivenUp(),
              HasSubstr("tensors 'offloaded', 'model/b' changed while step 12 was being copied"));
}

TEST_F(DeviceNetTest, AWriteBehindTheLastCopyIsSeenUntilTheLastLook) {
  Ready();
  HeldOnDevice(1);
  const std::vector<std::byte> before = ExpectedSlab();
  copier_.Let(copier_.waiting() - 1);
  EXPECT_EQ(Slab(0, before.size()), before);
  Write(0);
  copier_.Release();
  EXPECT_THAT(WhyGivenUp(), HasSubstr("tensor 'model/a' changed"));
}

TEST_F(DeviceNetTest, VolatileTensorsMayBeWrittenThereToo) {
  tensors_[1].spec.is_volatile = true;
  Ready();
  EXPECT_EQ(copier_.probes_reserved, 1u);
  HeldOnDevice(1);
  Write(1);
  copier_.Release();
  ExpectCaptured(1);
}

TEST_F(DeviceNetTest, WhoFencesIsNeverAccused) {
  Ready();
  for (uint64_t step = 1; step <= 20; ++step) {
    if (step > 1) Grant();
    Fence();
    WriteAll();
    ExpectStarted(step);
    ExpectCaptured(step);
  }
  EXPECT_EQ(copier_.probes_now, 20) << "one look at the begin of each";
  EXPECT_EQ(status().unsampled, "");
}

// The device says so when the snapshot has begun: the next ones are skipped.
TEST_F(DeviceNetTest, WithoutAFenceTheNextSnapshotIsGivenUp) {
  Ready();
  Fence();
  ExpectStarted(1);
  ExpectCaptured(1);
  Grant();
  Write(1);
  ExpectStarted(2);
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<GaveUp>() == 1; }));
  const std::string why = daemon_.Got<GaveUp>().at(0).reason;
  EXPECT_THAT(why,
              HasSubstr("tensor 'model/b' changed since step 1 although nothing called fence"));
  Grant();
  EXPECT_EQ(ExpectSkipped(3), why);
  Fence();
  WriteAll();
  ExpectStarted(4);
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<Captured>() == 2; }));
}

TEST_F(DeviceNetTest, AFenceBeforeTheDeviceHasSaidSoIsOne) {
  Ready();
  ExpectStarted(1);
  ExpectCaptured(1);
  Grant();
  Write(1);
  bool fenced = false;
  InTurn([&] {
    EXPECT_EQ(actor_->Snapshot(Step{2}, {}, nullptr)->outcome, Outcome::kStarted);
    actor_->FenceThen([&] { fenced = true; });
  });
  ASSERT_TRUE(RunUntil([&] { return fenced; }));
  ExpectCaptured(2);
}

TEST_F(DeviceNetTest, NewRegistrationsRestoresAndReplacedTensorsAreNotCompared) {
  Ready();
  ExpectStarted(1);
  ExpectCaptured(1);
  WriteAll();
  ASSERT_EQ(Register(), absl::OkStatus());
  Grant();
  ExpectStarted(2);
  ExpectCaptured(2);
  EXPECT_FALSE(RestoreRead(tensors_).ok()) << "the daemon has no plan";
  WriteAll();
  Grant();
  ExpectStarted(3);
  ExpectCaptured(3);
  std::vector<std::byte> other(4000, std::byte{7});
  const uint64_t index = 1;
  std::byte* const data = other.data();
  ASSERT_EQ(actor_->Rebind({&index, 1}, {&data, 1}), absl::OkStatus());
  Grant();
  ExpectStarted(4);
  ExpectCaptured(4);
  Fence();
  actor_->Rebind({&index, 1}, {&tensors_[1].data, 1}).IgnoreError();
}

TEST_F(DeviceNetTest, ADeviceThatCannotBeLookedAtIsSaidOnce) {
  copier_.no_probes = absl::UnavailableError("CUDA device 0: no kernel");
  Ready();
  EXPECT_EQ(status().unsampled,
            "nothing but fence() keeps the versions of tensors on a device whole, since no samples "
            "of them are compared: CUDA device 0: no kernel");
  HeldOnDevice(1);
  Write(1);
  copier_.Release();
  ExpectCaptured(1);
  EXPECT_EQ(copier_.probes_now, 0);
  // Tensors of the host are looked at all the same.
  Fence();
  AddTensor("offloaded", 2000);
  copier_.no_probes = absl::OkStatus();
  ASSERT_EQ(Register(), absl::OkStatus());
  EXPECT_EQ(status().unsampled, "");
}

TEST_F(DeviceNetTest, ALookThatFailsGivesTheVersionUp) {
  Ready();
  copier_.no_probes = absl::InternalError("no launch");
  ExpectStarted(1);
  EXPECT_THAT(WhyGivenUp(), HasSubstr("no launch"));
}

// --- Written without any fence ---

TEST_F(SecondNetTest, WithoutAFenceSnapshotsStayOffUntilOneIsCalled) {
  Ready();
  Fence();
  WriteAll();
  ExpectStarted(11);
  ExpectCaptured(1);
  Grant();
  Write(1);
  const std::string why = ExpectSkipped(12);
  EXPECT_EQ(why,
            "tensor 'model/b' changed since step 11 although nothing called fence(): snapshots "
            "stay off until fence() is called before the optimizer's step (ck.fence() in Python)");
  EXPECT_EQ(ExpectSkipped(13), why) << "also when nothing has changed since";
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<Skipped>() == 2; }));
  EXPECT_EQ(daemon_.Got<Skipped>().at(0).reason, why);
  EXPECT_EQ(status().last_problem, "step 13 skipped: " + why);
  Fence();
  WriteAll();
  ExpectStarted(14);
  ExpectCaptured(2);
}

TEST_F(SecondNetTest, StepsThatChangeNothingNeedNoFence) {
  Ready();
  for (uint64_t step = 0; step <= 3; ++step) {
    if (step > 0) Grant();
    ExpectStarted(step);
    ExpectCaptured(step + 1);
  }
}

TEST_F(SecondNetTest, AFenceFarBeforeTheWriteIsOne) {
  Ready();
  ExpectStarted(1);
  ExpectCaptured(1);
  Fence();
  EXPECT_THAT(ExpectSkipped(2), HasSubstr("is not committed yet by all ranks"));
  WriteAll();
  Grant();
  ExpectStarted(3);
}

TEST_F(SecondNetTest, WhatIsRegisteredMayBeFilledBeforeTheFirstSnapshot) {
  Ready();
  Write(0);
  ExpectStarted(1);
  ExpectCaptured(1);
  Grant();
  Write(0);
  EXPECT_THAT(ExpectSkipped(2), HasSubstr("tensor 'model/a' changed since step 1"));
}

TEST_F(SecondNetTest, ANewRegistrationIsComparedWithItself) {
  Ready();
  ExpectStarted(1);
  ExpectCaptured(1);
  WriteAll();
  ASSERT_EQ(Register(), absl::OkStatus());
  Grant();
  ExpectStarted(2);
}

TEST_F(SecondNetTest, ARestoreMayWriteTheTensors) {
  Ready();
  ExpectStarted(1);
  ExpectCaptured(1);
  EXPECT_FALSE(RestoreRead(tensors_).ok()) << "the daemon has no plan";
  WriteAll();
  Grant();
  ExpectStarted(2);
}

TEST_F(SecondNetTest, ATensorThatWasReplacedIsNotCompared) {
  Ready();
  ExpectStarted(1);
  ExpectCaptured(1);
  std::vector<std::byte> other(4000, std::byte{7});
  const uint64_t index = 1;
  std::byte* const data = other.data();
  ASSERT_EQ(actor_->Rebind({&index, 1}, {&data, 1}), absl::OkStatus());
  Grant();
  ExpectStarted(2);
  ExpectCaptured(2);
  Fence();
  actor_->Rebind({&index, 1}, {&tensors_[1].data, 1}).IgnoreError();
}

TEST_F(SecondNetTest, MoreTensorsThanOneCheckTakes) {
  for (int i = 0; i < 20'000; ++i) AddTensor("t" + std::to_string(i), 1);
  daemon_.MakeSlots(2, 2 << 20);
  options_.capture.bucket_bytes = 64 * 1024;
  Ready();
  ExpectStarted(1);
  ExpectCaptured(1);
  Fence();
  Grant();
  Held(2);
  Write(20'002);
  copier_.Release();
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<GaveUp>() == 1; }));
  EXPECT_THAT(daemon_.Got<GaveUp>().at(0).reason, HasSubstr("tensor 't19999' changed"));
}

}  // namespace
}  // namespace unreft::snapshot
