#include "smp/capture/slot_sealer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "base/crc32c.h"
#include "base/format.h"
#include "smp/memory/slot_content.h"
#include "tests/fakes/fake_segment_store.h"
#include "tests/fakes/sim_executor.h"
#include "tests/fakes/sim_work_pool.h"

namespace unreft::smp {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kBlock = 64;

class SlotSealerTest : public ::testing::Test {
 protected:
  SlotSealerTest() {
    TensorSpec spec{.name = "w", .global_shape = {250}, .offset = {0}, .extent = {250}};
    auto registration = std::make_shared<Registration>();
    registration->table = *layout::TensorTable::Create({spec});
    registration->plan =
        layout::CapturePlan::Make(registration->table, layout::CaptureMode::kSharded);
    const SlotGeometry geometry = MakeSlotGeometry(SlotId{0}, kBlock, 4096, 4096, 1000);
    slot_.segment = *segments_.Create("/unreft.job.0.slot0", SlotSegmentBytes(geometry));
    EXPECT_TRUE(slot_.segment->Reserve(0, SlotSegmentBytes(geometry)).ok());
    slot_.view = FormatSlot(slot_.segment->bytes(), geometry);
    slot_.registration = registration;
    slot_.phase = SlotPhase::kCapturing;
    slot_.generation = Generation{1};
    slot_.version = {Timeline{1}, Step{5}};
    slot_.world = 1;
    SlotGrant grant;
    grant.generation = 1;
    grant.world = 1;
    grant.timeline = 1;
    SetBodyCrc(grant);
    slot_.view->header().grant = grant;
    slot_.view->set_state(slot_.generation, SlotState::kCapturing);
    for (size_t i = 0; i < 1000; ++i) slot_.view->data()[i] = std::byte(i * 7);
    std::memcpy(slot_.view->extras().data(), "rng", 3);
  }

  Captured Complete() const {
    Captured captured;
    captured.version = slot_.version;
    captured.layout_digest = slot_.registration->plan.digest();
    captured.data_bytes = slot_.registration->plan.data_bytes();
    captured.extras_bytes = 3;
    return captured;
  }
  // With those of the blocks as they are now.
  Captured WithCrcs() {
    Captured captured = Complete();
    for (uint64_t block = 0; block < BlockCount(1000, kBlock); ++block) {
      captured.block_crcs.push_back(Crc32c(slot_.view->block(block)));
    }
    return captured;
  }
  void Run(std::function<void()> turn) {
    executor_->Post([turn] { turn(); });
    scheduler_.RunFor(std::chrono::seconds(1));
  }
  void Seal() {
    Run([&] { ASSERT_TRUE(sealer_->Complete(slot_, Complete()).ok()); });
    ASSERT_EQ(slot_.phase, SlotPhase::kSealed) << done_;
  }

  SimScheduler scheduler_{1};
  std::unique_ptr<SimExecutor> executor_ = scheduler_.NewExecutor("daemon");
  SimWorkPool pool_{*executor_};
  FakeHostMemory memory_;
  FakeSegmentStore segments_{memory_};
  FaultPoints faults_;
  Slot slot_;
  absl::Status done_ = absl::UnknownError("not done");
  std::unique_ptr<SlotSealer> sealer_ = std::make_unique<SlotSealer>(
      *executor_, pool_, "job", 4, &faults_, [&](Slot&, absl::Status status) { done_ = status; });
};

TEST_F(SlotSealerTest, WhatIsSealedVerifies) {
  Seal();
  EXPECT_EQ(slot_.view->state().state, SlotState::kSealed);
  EXPECT_TRUE(VerifySlot(*slot_.view).ok()) << VerifySlot(*slot_.view);
  SlotReading stopped;
  EXPECT_TRUE(stopped.Begin());
  EXPECT_TRUE(stopped.Stop());
  EXPECT_TRUE(absl::IsAborted(VerifySlot(*slot_.view, stopped)));
  EXPECT_EQ(*ReadManifest(*slot_.view), *slot_.manifest);
}

TEST_F(SlotSealerTest, EveryFlippedBitOfASealedSlotIsFound) {
  Seal();
  const SlotGeometry& g = slot_.view->geometry();
  const SlotSeal seal = *slot_.view->CheckedSeal();
  struct Region {
    const char* name;
    uint64_t offset, bytes;
  };
  const uint64_t blocks = BlockCount(seal.data_bytes, kBlock);
  for (const Region& region : {Region{"data", g.data_offset, blocks * kBlock},
                               Region{"extras", g.extras_offset, seal.extras_bytes},
                               Region{"manifest", g.manifest_offset, seal.manifest_bytes},
                               Region{"CRC table", g.crc_offset, blocks * 4},
                               Region{"seal", offsetof(SlotHeader, seal), sizeof(SlotSeal)}}) {
    for (uint64_t at = region.offset; at < region.offset + region.bytes; ++at) {
      slot_.segment->bytes()[at] ^= std::byte{4};
      EXPECT_TRUE(absl::IsDataLoss(VerifySlot(*slot_.view))) << region.name << " " << at;
      slot_.segment->bytes()[at] ^= std::byte{4};
    }
  }
  EXPECT_TRUE(VerifySlot(*slot_.view).ok());
}

TEST_F(SlotSealerTest, AWrongBlockIsNamedWithBothCrcs) {
  Seal();
  slot_.view->data()[3 * kBlock] ^= std::byte{1};
  EXPECT_THAT(std::string(VerifySlot(*slot_.view).message()),
              testing::AllOf(HasSubstr("slot 0"), HasSubstr("block 3"), HasSubstr("needed")));
}

// --- What the device had ---

TEST_F(SlotSealerTest, BlocksThatAreWhatTheDeviceHadAreSealed) {
  Captured captured = WithCrcs();
  Run([&] { ASSERT_TRUE(sealer_->Complete(slot_, captured).ok()); });
  EXPECT_EQ(slot_.phase, SlotPhase::kSealed) << done_;
}

TEST_F(SlotSealerTest, ABlockThatIsNotIsNamedWithItsTensorAndNothingIsSealed) {
  const Captured captured = WithCrcs();
  slot_.view->data()[3 * kBlock + 1] ^= std::byte{1};  // on its way from the device
  Run([&] { ASSERT_TRUE(sealer_->Complete(slot_, captured).ok()); });
  EXPECT_TRUE(absl::IsDataLoss(done_)) << done_;
  const uint32_t found = Crc32c(slot_.view->block(3));
  EXPECT_EQ(
      std::string(done_.message()),
      fmt::format("slot 0: block 3 (tensor w) has CRC {:08x} in host memory, on the device it "
                  "had {:08x} (device_checksum)",
                  found, captured.block_crcs[3]));
  EXPECT_EQ(slot_.view->state().state, SlotState::kCapturing);
}

TEST_F(SlotSealerTest, AsManyCrcsAsBlocksOrNone) {
  Captured captured = WithCrcs();
  captured.block_crcs.pop_back();
  const absl::Status status = sealer_->Complete(slot_, captured);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("15 CRCs of blocks, needed 16 or none"));
}

TEST_F(SlotSealerTest, NothingIsSealedBeforeAllIsCaptured) {
  Run([&] { sealer_->Publish(slot_, 1000); });
  EXPECT_EQ(slot_.phase, SlotPhase::kCapturing);
  EXPECT_EQ(slot_.view->state().state, SlotState::kCapturing);
  EXPECT_EQ(slot_.blocks_done, BlockCount(1000, kBlock));
}

// Less than a task is left when the capture ends.
TEST_F(SlotSealerTest, TheTaskThatSealsChecksWhatIsLeft) {
  std::vector<uint64_t> progress;
  sealer_ = std::make_unique<SlotSealer>(
      *executor_, pool_, "job", 4, &faults_, [&](Slot&, absl::Status status) { done_ = status; },
      [&](Slot& slot) {
        EXPECT_EQ(slot.phase, SlotPhase::kCapturing);
        progress.push_back(slot.blocks_done);
      });
  Run([&] { sealer_->Publish(slot_, 13); });
  Seal();
  EXPECT_EQ(progress, (std::vector<uint64_t>{13, 16}));
  EXPECT_TRUE(VerifySlot(*slot_.view).ok()) << VerifySlot(*slot_.view);
}

TEST_F(SlotSealerTest, ASlotThatIsAbandonedByItsLastProgressIsNotSealed) {
  sealer_ = std::make_unique<SlotSealer>(
      *executor_, pool_, "job", 4, &faults_, [&](Slot&, absl::Status status) { done_ = status; },
      [&](Slot& slot) { slot.abandoned = slot.blocks_done == 16; });
  Run([&] { sealer_->Publish(slot_, 13); });
  Run([&] { ASSERT_TRUE(sealer_->Complete(slot_, Complete()).ok()); });
  EXPECT_TRUE(absl::IsAborted(done_)) << done_;
  EXPECT_EQ(slot_.phase, SlotPhase::kCapturing);
}

TEST_F(SlotSealerTest, NumbersThatDoNotFitAreRefused) {
  Captured captured = Complete();
  captured.data_bytes += 64;
  EXPECT_TRUE(absl::IsInvalidArgument(sealer_->Complete(slot_, captured)));
  captured = Complete();
  captured.extras_bytes = 4097;
  EXPECT_TRUE(absl::IsInvalidArgument(sealer_->Complete(slot_, captured)));
  captured = Complete();
  captured.replica_digests = {1};
  EXPECT_TRUE(absl::IsInvalidArgument(sealer_->Complete(slot_, captured)));
}

TEST_F(SlotSealerTest, AFailureBeforeTheStateWordLeavesTheSlotCapturing) {
  ASSERT_TRUE(faults_.Arm("slot.seal=fail").ok());
  Run([&] { ASSERT_TRUE(sealer_->Complete(slot_, Complete()).ok()); });
  EXPECT_FALSE(done_.ok());
  EXPECT_EQ(slot_.view->state().state, SlotState::kCapturing);
}

TEST_F(SlotSealerTest, AnAbandonedSlotIsNotSealed) {
  Run([&] {
    ASSERT_TRUE(sealer_->Complete(slot_, Complete()).ok());
    slot_.abandoned = true;
  });
  EXPECT_TRUE(absl::IsAborted(done_)) << done_;
  EXPECT_NE(slot_.view->state().state, SlotState::kSealed);
}

}  // namespace
}  // namespace unreft::smp
