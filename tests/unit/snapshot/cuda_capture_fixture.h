// CudaCaptureFixture: snapshots of tensors on a device, and beside them in host memory, between a
// training thread and the copier's threads, on the fake runtime.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "layout/tensor_table.h"
#include "snapshot/given_tensors.h"
#include "snapshot/routing_copier.h"
#include "tests/fakes/fake_segment_store.h"
#include "tests/unit/snapshot/cuda_fixture.h"
#include "tests/unit/snapshot/two_slot_daemon.h"

namespace unreft::snapshot {

class CudaCaptureFixture : public CudaFixture {
 protected:
  static constexpr size_t kLarge = 60'000;
  static constexpr size_t kSmall = 100;

  CudaCaptureFixture() { options_.buffers = 32; }

  // Three tensors on the device, one of them volatile; with `mixed` a large and a small one in host
  // memory too. Besides those that were added.
  void Start(bool mixed) {
    AddOnDevice("w", kLarge);
    AddOnDevice("bias", kSmall);
    AddOnDevice("running_mean", 2 * kSmall);
    tensors_.back().spec.is_volatile = true;
    if (mixed) {
      AddTensor("offloaded", kLarge, on_host_.data(), kHostMemory);
      AddTensor("step", 4, on_host_.data() + kLarge, kHostMemory);
    }
    options_capture_.device_bucket_bytes = 16'384;
    capture_ = std::make_unique<Capture>(thread_.executor(), *routing_, options_capture_, board_,
                                         *daemon_);
    std::vector<ShardMemory> memory;
    for (const BoundTensor& tensor : tensors_) {
      memory.push_back({tensor.data, tensor.on_device()});
    }
    layout_ = CaptureLayout::Make(*layout::TensorTable::Create(SpecsOf(tensors_)), memory,
                                  {.block_bytes = TwoSlotDaemon::kBlockBytes,
                                   .bucket_bytes = options_capture_.device_bucket_bytes,
                                   .checksum = options_.checksum});
    daemon_->expects_crcs = options_.checksum;
    for (const layout::CapturedPart& part : layout_->plan().parts()) {
      daemon_->tensors.push_back({part.slab_offset, part.slab_offset + part.bytes});
    }
    RunInTurn(thread_.executor(), [&] {
      EXPECT_EQ(routing_->Accept(tensors_), absl::OkStatus());
      EXPECT_EQ(routing_->Reserve(layout_->staging_bytes()), absl::OkStatus());
      capture_->SetTimeline(Timeline{1});
      capture_->Bind(*layout::TensorTable::Create(SpecsOf(tensors_)), memory,
                     EachByItself(memory.size()));
      capture_->Install(layout_, *MappedSlots::Open(segments_, Rank{0}, daemon_->Answer()));
    });
  }
  void TearDown() override {
    fakecuda_release_copies();
    if (capture_) {
      capture_->WaitForCopies();
      RunInTurn(thread_.executor(), [] {});
      RunInTurn(thread_.executor(), [] {});
      RunInTurn(thread_.executor(), [&] { capture_.reset(); });
    }
    routing_.reset();
    CudaFixture::TearDown();
  }

  void AddOnDevice(const std::string& name, size_t bytes) {
    AddTensor(name, bytes, Tensor(bytes, 0), 0);
  }
  void AddTensor(const std::string& name, size_t bytes, std::byte* data, int device) {
    tensors_.push_back({.spec = {.name = name,
                                 .dtype = Dtype::kUint8,
                                 .global_shape = {bytes},
                                 .offset = {0},
                                 .extent = {bytes}},
                        .data = data,
                        .cuda_device = device});
  }

  // The optimizer: on the device in the order of the stream, on the host at once.
  void Step(uint64_t step) {
    for (const BoundTensor& tensor : tensors_) {
      const size_t bytes = ShardBytes(tensor.spec);
      if (tensor.on_device()) {
        Set(stream_, tensor.data, bytes, static_cast<int>(step));
      } else {
        std::memset(tensor.data, static_cast<int>(step), bytes);
      }
    }
  }
  bool Snapshot(uint64_t step) {
    const auto result = capture_->Snapshot(unreft::Step{step}, {}, stream_);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() && result->outcome == Outcome::kStarted;
  }
  // Calls that give a whole snapshot's copies to the device.
  int CallsOfASnapshot() const {
    int calls = 2;  // to the staging, and from there
    for (const Bucket& bucket : layout_->buckets()) calls += !bucket.device_pieces.empty();
    return calls;
  }
  bool EventuallyIdle() {
    return Eventually([&] { return !board_.Read().copying; });
  }
  void Settle() {
    ASSERT_TRUE(EventuallyIdle());
    RunInTurn(thread_.executor(), [] {});
    RunInTurn(thread_.executor(), [] {});
  }

  FakeHostMemory host_;
  FakeSegmentStore segments_{host_};
  std::unique_ptr<TwoSlotDaemon> daemon_ = std::make_unique<TwoSlotDaemon>(segments_, 4 * kLarge);
  std::unique_ptr<RoutingCopier> routing_ =
      std::make_unique<RoutingCopier>(thread_.executor(), [this](Executor& executor, int device) {
        return CudaCopier::Create(executor, device, options_);
      });
  std::vector<BoundTensor> tensors_;
  HostPages on_host_{kLarge + 4096};
  CaptureOptions options_capture_;
  StatusBoard board_;
  std::shared_ptr<const CaptureLayout> layout_;
  std::unique_ptr<Capture> capture_;
};

}  // namespace unreft::snapshot
