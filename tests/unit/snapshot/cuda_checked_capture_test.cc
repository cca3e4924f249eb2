// Whole snapshots with checksums on the device: what the daemon is sent is what the tensors were,
// of every kind of tensor and part; what was changed on the way is not.

#include <map>

#include "base/crc32c.h"
#include "layout/tensor_table.h"
#include "snapshot/given_tensors.h"
#include "snapshot/routing_copier.h"
#include "tests/fakes/fake_segment_store.h"
#include "tests/unit/snapshot/cuda_fixture.h"
#include "tests/unit/snapshot/two_slot_daemon.h"

namespace unreft::snapshot {
namespace {

constexpr uint64_t kBlock = TwoSlotDaemon::kBlockBytes;

class CudaCheckedCaptureTest : public CudaFixture {
 protected:
  CudaCheckedCaptureTest() {
    options_.checksum = true;
    options_.buffers = 64;
    options_.checksum_chunks = 4096;
    options_.restore_checksum_chunks = 64;
    capture_options_.device_bucket_bytes = 4 * kBlock;
  }
  void TearDown() override {
    if (capture_) {
      capture_->WaitForCopies();
      Settle();
      RunInTurn(thread_.executor(), [&] { capture_.reset(); });
    }
    routing_.reset();
    CudaFixture::TearDown();
  }

  TensorSpec& Add(const std::string& name, size_t bytes, std::byte* data, int device) {
    tensors_.push_back({.spec = {.name = name,
                                 .dtype = Dtype::kUint8,
                                 .global_shape = {bytes},
                                 .offset = {0},
                                 .extent = {bytes}},
                        .data = data,
                        .cuda_device = device});
    return tensors_.back().spec;
  }
  TensorSpec& AddOnDevice(const std::string& name, size_t bytes) {
    return Add(name, bytes, Tensor(bytes, 0), 0);
  }
  // Every byte of every tensor is that of `step`: what TwoSlotDaemon expects.
  void Step(int step) {
    for (const BoundTensor& tensor : tensors_) {
      std::memset(tensor.data, step, ShardBytes(tensor.spec));
    }
  }
  void Start() {
    std::vector<ShardMemory> memory;
    for (const BoundTensor& tensor : tensors_) memory.push_back({tensor.data, tensor.on_device()});
    layout_ = CaptureLayout::Make(*layout::TensorTable::Create(SpecsOf(tensors_)), memory,
                                  {.block_bytes = TwoSlotDaemon::kBlockBytes,
                                   .bucket_bytes = capture_options_.device_bucket_bytes,
                                   .checksum = true});
    daemon_ = std::make_unique<TwoSlotDaemon>(segments_, layout_->padded_bytes());
    daemon_->expects_crcs = true;
    for (const layout::CapturedPart& part : layout_->plan().parts()) {
      if (part.bytes > 2) {
        daemon_->tensors.push_back({part.slab_offset, part.slab_offset + part.bytes});
      }
    }
    capture_ = std::make_unique<Capture>(thread_.executor(), *routing_, capture_options_, board_,
                                         *daemon_);
    RunInTurn(thread_.executor(), [&] {
      EXPECT_EQ(routing_->Accept(tensors_), absl::OkStatus());
      EXPECT_EQ(routing_->Reserve(layout_->staging_bytes()), absl::OkStatus());
      capture_->SetTimeline(Timeline{1});
      capture_->Bind(*layout::TensorTable::Create(SpecsOf(tensors_)), memory,
                     EachByItself(memory.size()));
      capture_->Install(layout_, *MappedSlots::Open(segments_, Rank{0}, daemon_->Answer()));
    });
  }
  void Take(uint64_t step) {
    ASSERT_EQ(capture_->Fence(stream_), absl::OkStatus());
    Step(static_cast<int>(step));
    const auto result = capture_->Snapshot(unreft::Step{step}, {}, stream_);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->outcome, Outcome::kStarted) << result->reason;
    Settle();
  }
  void Settle() {
    ASSERT_TRUE(Eventually([&] { return !board_.Read().copying; }));
    RunInTurn(thread_.executor(), [] {});
    RunInTurn(thread_.executor(), [] {});
  }
  uint64_t BlockOf(uint32_t tensor, uint64_t byte) const {
    for (const layout::CapturedPart& part : layout_->plan().parts()) {
      if (part.tensor == tensor && part.shard_begin <= byte && byte < part.shard_begin + part.bytes)
        return (part.slab_offset + byte - part.shard_begin) / kBlock;
    }
    ADD_FAILURE() << "byte " << byte << " of tensor " << tensor << " is not captured";
    return 0;
  }

  FakeHostMemory host_;
  FakeSegmentStore segments_{host_};
  std::unique_ptr<RoutingCopier> routing_ =
      std::make_unique<RoutingCopier>(thread_.executor(), [this](Executor& executor, int device) {
        return CudaCopier::Create(executor, device, options_);
      });
  std::vector<BoundTensor> tensors_;
  HostPages on_host_{100'000};
  CaptureOptions capture_options_;
  StatusBoard board_;
  std::shared_ptr<const CaptureLayout> layout_;
  std::unique_ptr<TwoSlotDaemon> daemon_;
  std::unique_ptr<Capture> capture_;
};

TEST_F(CudaCheckedCaptureTest, TensorsOfEveryKindAndSize) {
  AddOnDevice("odd", 3 * kBlock + 777);
  AddOnDevice("one", 1);
  AddOnDevice("running", 2 * kBlock + 5).is_volatile = true;  // cut in its staging, too
  Add("offloaded", 50'000, on_host_.data(), kHostMemory);
  Add("step", 4, on_host_.data() + 60'000, kHostMemory);
  Add("scale", 5000, on_host_.data() + 70'000, kHostMemory).is_volatile = true;
  AddOnDevice("last", kBlock);
  Start();
  for (uint64_t step = 1; step <= 3; ++step) Take(step);
  EXPECT_EQ(daemon_->captured, 3);
  EXPECT_EQ(daemon_->wrong, 0);
  EXPECT_THAT(daemon_->wrong_blocks, testing::IsEmpty());
}

TEST_F(CudaCheckedCaptureTest, ManySmallTensors) {
  for (int i = 0; i < 1500; ++i) AddOnDevice("t" + std::to_string(i), 1 + i % 67);
  Start();
  Take(1);
  EXPECT_EQ(daemon_->captured, 1);
  EXPECT_THAT(daemon_->wrong_blocks, testing::IsEmpty());
}

TEST_F(CudaCheckedCaptureTest, OfReplicasEachItsPart) {
  TensorSpec& shared = AddOnDevice("shared", 100'003);
  shared.replica_count = 3;
  shared.replica_index = 1;
  AddOnDevice("own", 1000);
  Start();
  EXPECT_LT(layout_->plan().data_bytes(), 40'000u);
  Take(1);
  EXPECT_EQ(daemon_->captured, 1);
  EXPECT_THAT(daemon_->wrong_blocks, testing::IsEmpty());
}

TEST_F(CudaCheckedCaptureTest, ABitThatFlipsBetweenDeviceAndSlotIsSeenInItsBlock) {
  AddOnDevice("w", 10 * kBlock);
  AddOnDevice("bias", 300);
  Start();
  Take(1);
  const uint64_t byte = 7 * kBlock + 9;
  fakecuda_flip_bit(tensors_[0].data + byte);
  Take(2);
  ASSERT_EQ(daemon_->captured, 2);
  EXPECT_EQ(daemon_->wrong_blocks, std::vector<uint64_t>{BlockOf(0, byte)});
  Take(3);
  EXPECT_EQ(daemon_->wrong_blocks.size(), 1u);
}

// After its first claim a slot is pinned, and copies go to it straight.
TEST_F(CudaCheckedCaptureTest, AlsoWhereCopiesGoToTheSlotStraight) {
  AddOnDevice("w", 10 * kBlock);
  Start();
  for (uint64_t step = 1; step <= 2; ++step) Take(step);
  ASSERT_TRUE(Eventually([&] { return fakecuda_pinned_bytes() == 2 * layout_->padded_bytes(); }));
  fakecuda_flip_bit(tensors_[0].data + 5 * kBlock - 1);
  Take(3);
  EXPECT_EQ(daemon_->wrong_blocks, std::vector<uint64_t>{BlockOf(0, 5 * kBlock - 1)});
}

}  // namespace
}  // namespace unreft::snapshot
