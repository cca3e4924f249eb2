// What a restore makes of each block of a slot while it copies and verifies it in one pass: every
// tensor has its bytes and nothing beyond, or the restore fails and names the block that is bad.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/random.h"
#include "base/slot_header.h"
#include "snapshot/host_copier.h"
#include "snapshot/restorer.h"
#include "snapshot/staged_reader.h"
#include "tests/fakes/fake_segment_store.h"
#include "tests/fakes/sim_executor.h"

namespace unreft::snapshot {
namespace {

using testing::HasSubstr;

constexpr std::byte kUntouched{0x5a};
constexpr size_t kMargin = 64;

std::vector<std::byte> RandomBytes(size_t bytes, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random.Next());
  return made;
}

// A sealed slot of random bytes, and tensors that want parts of it.
class Scene {
 public:
  Scene(uint32_t block_bytes, uint64_t blocks, uint64_t seed = 1)
      : block_bytes_(block_bytes), slab_(RandomBytes(block_bytes * blocks, seed)) {
    MakeSlot(blocks);
    plan_.sources = {{.slot = where_}};
  }

  // A tensor of so many bytes, nobody's yet.
  uint32_t AddTensor(uint64_t bytes) {
    std::vector<std::byte>& memory = memory_.emplace_back(bytes + 2 * kMargin, kUntouched);
    wanted_.emplace_back(memory.size(), kUntouched);
    targets_.push_back({.spec = {.name = "t" + std::to_string(targets_.size()),
                                 .dtype = Dtype::kUint8,
                                 .global_shape = {bytes},
                                 .offset = {0},
                                 .extent = {bytes}},
                        .data = memory.data() + kMargin});
    return static_cast<uint32_t>(targets_.size() - 1);
  }
  void AddPiece(uint32_t target, uint64_t target_offset, uint64_t source, uint64_t bytes) {
    AddPiece({.target = target,
              .source_offset = source,
              .target_offset = target_offset,
              .bytes = bytes});
  }
  void AddPiece(const PlanPiece& piece) {
    plan_.pieces.push_back(piece);
    for (uint64_t row = 0; row < piece.rows; ++row) {
      Want(piece.target, piece.target_offset + row * piece.target_pitch,
           piece.source_offset + row * piece.source_pitch, piece.bytes);
    }
  }
  // What the tensor shall hold there in the end, wherever it comes from.
  void Want(uint32_t target, uint64_t target_offset, uint64_t source, uint64_t bytes) {
    std::copy_n(slab_.begin() + static_cast<ptrdiff_t>(source), bytes,
                wanted_[target].begin() + static_cast<ptrdiff_t>(kMargin + target_offset));
    for (uint64_t at = source; at < source + bytes; ++at) wanted_blocks_.insert(at / block_bytes_);
  }
  // A tensor that has these bytes of the slab.
  uint32_t AddCopyOf(uint64_t source, uint64_t bytes) {
    const uint32_t target = AddTensor(bytes);
    AddPiece(target, 0, source, bytes);
    return target;
  }

  RestoreReport Read(DeviceCopier& copier, uint32_t threads = 1) {
    WarmSlots slots(segments_);
    return Restorer(slots, copier, threads, threads).Read(plan_, targets_);
  }
  RestoreReport Read(uint32_t threads = 1) { return Read(copier_, threads); }

  void Wipe() {
    for (auto& memory : memory_) std::ranges::fill(memory, kUntouched);
  }
  void FlipBit(uint64_t slab_offset, int bit) {
    host_.FlipBit(where_.segment, view_->geometry().data_offset + slab_offset, bit);
  }
  void ExpectAllThere() const {
    for (size_t i = 0; i < targets_.size(); ++i) {
      EXPECT_TRUE(memory_[i] == wanted_[i]) << targets_[i].spec.name;
    }
  }
  // The memory around the tensors.
  void ExpectNothingBeyond() const {
    const auto untouched = [](std::byte byte) { return byte == kUntouched; };
    for (const auto& memory : memory_) {
      EXPECT_TRUE(std::all_of(memory.begin(), memory.begin() + kMargin, untouched));
      EXPECT_TRUE(std::all_of(memory.end() - kMargin, memory.end(), untouched));
    }
  }
  // With a bit turned, now and then turned back.
  void ExpectFlipIsFound(uint64_t slab_offset, int bit, uint32_t threads) {
    SCOPED_TRACE("bit " + std::to_string(bit) + " of " + std::to_string(slab_offset) + ", " +
                 std::to_string(threads) + " threads");
    Wipe();
    FlipBit(slab_offset, bit);
    const RestoreReport bad = Read(threads);
    FlipBit(slab_offset, bit);
    EXPECT_TRUE(absl::IsDataLoss(bad.status)) << bad.status;
    EXPECT_THAT(std::string(bad.status.message()),
                HasSubstr("block " + std::to_string(slab_offset / block_bytes_) + " needs CRC"));
    EXPECT_EQ(bad.bad_slot, where_.slot);
    EXPECT_EQ(bad.bad_generation, where_.generation);
    ExpectNothingBeyond();
    // Over what the failed one left.
    const RestoreReport good = Read(threads);
    EXPECT_EQ(good.status, absl::OkStatus());
    ExpectAllThere();
  }

  const std::set<uint64_t>& wanted_blocks() const { return wanted_blocks_; }
  std::span<const std::byte> slab() const { return slab_; }
  RestorePlan& plan() { return plan_; }
  std::vector<BoundTensor>& targets() { return targets_; }
  FakeSegmentStore& segments() { return segments_; }
  HostCopier& copier() { return copier_; }

 private:
  void MakeSlot(uint64_t blocks) {
    const SlotGeometry geometry =
        MakeSlotGeometry(SlotId{3}, block_bytes_, 4096, 4096, slab_.size());
    const uint64_t bytes = SlotSegmentBytes(geometry);
    segment_ = *segments_.Create(where_.segment, bytes);
    EXPECT_TRUE(segment_->Reserve(0, bytes).ok());
    view_ = FormatSlot(segment_->bytes(), geometry);
    std::ranges::copy(slab_, view_->data().begin());
    SlotGrant grant;
    grant.generation = where_.generation.value;
    grant.world = 1;
    SetBodyCrc(grant);
    view_->header().grant = grant;
    std::vector<uint32_t> crcs;
    for (uint64_t i = 0; i < blocks; ++i) crcs.push_back(Crc32c(view_->block(i)));
    const auto table = std::as_bytes(std::span(crcs));
    std::ranges::copy(table, view_->crc_table().begin());
    SlotSeal seal;
    seal.generation = where_.generation.value;
    seal.data_bytes = slab_.size();
    seal.crc_table_crc = Crc32c(table);
    SetBodyCrc(seal);
    view_->header().seal = seal;
    view_->set_state(where_.generation, SlotState::kSealed);
  }

  const uint32_t block_bytes_;
  const std::vector<std::byte> slab_;
  const WireSlot where_{SlotId{3}, Generation{5}, "/unreft.job.0.slot3"};
  SimScheduler scheduler_{1};
  std::unique_ptr<SimExecutor> executor_ = scheduler_.NewExecutor("trainer");
  HostCopier copier_{*executor_};
  FakeHostMemory host_;
  FakeSegmentStore segments_{host_};
  std::unique_ptr<Segment> segment_;
  std::optional<SlotView> view_;
  RestorePlan plan_;
  std::vector<BoundTensor> targets_;
  std::deque<std::vector<std::byte>> memory_;
  std::deque<std::vector<std::byte>> wanted_;
  std::set<uint64_t> wanted_blocks_;
};

constexpr uint32_t kBlock = 32 << 10;

// Seven blocks: the first begins with what nobody wants, a tensor goes from it into the second,
// which has a small one, a hole, and bytes that two tensors want; one has two blocks and a byte,
// the sixth is nobody's, and the last has a tensor that ends where it does.
class RestoredBlocksTest : public testing::Test {
 protected:
  RestoredBlocksTest() {
    scene_.AddCopyOf(5000, kBlock + 4001);         // ends at 9001 of the second
    scene_.AddCopyOf(kBlock + 9001, 100);          // right behind it
    scene_.AddCopyOf(kBlock + 12000, 8000);        // behind a hole
    scene_.AddCopyOf(kBlock + 13000, 4500);        // of the same bytes
    scene_.AddCopyOf(kBlock + 11000, 1500);        // begins before both
    scene_.AddCopyOf(2 * kBlock, 2 * kBlock + 1);  // two blocks and a byte
    scene_.AddCopyOf(4 * kBlock + 8, 24);          // small ones side by side
    scene_.AddCopyOf(4 * kBlock + 40, 4096);
    scene_.AddCopyOf(7 * kBlock - 6000, 6000);
  }

  Scene scene_{kBlock, 7};
};

TEST_F(RestoredBlocksTest, EveryTensorHasItsBytesAndNothingBeyond) {
  for (uint32_t threads : {1, 2, 3, 16}) {
    scene_.Wipe();
    const RestoreReport report = scene_.Read(threads);
    EXPECT_EQ(report.status, absl::OkStatus());
    scene_.ExpectAllThere();
  }
}

TEST_F(RestoredBlocksTest, ABitThatTurnedIsFoundWhereverItIs) {
  for (uint32_t threads : {1, 3}) {
    for (uint64_t at : {uint64_t{0}, uint64_t{4999}, uint64_t{5000}, uint64_t{5001}, uint64_t{5063},
                        uint64_t{20000}, uint64_t{kBlock - 1}}) {
      scene_.ExpectFlipIsFound(at, 0, threads);  // the first block, nobody's part of it too
    }
    for (uint64_t at : {0, 1, 4096, 9000, 9001, 9100, 9101, 10999, 11000, 12000, 12500, 13000,
                        17499, 17500, 19999, 20000, 32767}) {
      scene_.ExpectFlipIsFound(kBlock + at, 7, threads);
    }
    for (uint64_t at :
         {2 * kBlock, 3 * kBlock - 1, 3 * kBlock, 4 * kBlock - 1, 4 * kBlock, 4 * kBlock + 1,
          4 * kBlock + 8, 4 * kBlock + 31, 4 * kBlock + 35, 4 * kBlock + 4135, 4 * kBlock + 4136,
          5 * kBlock - 1, 6 * kBlock, 7 * kBlock - 6001, 7 * kBlock - 6000, 7 * kBlock - 1}) {
      scene_.ExpectFlipIsFound(at, 3, threads);
    }
  }
}

TEST_F(RestoredBlocksTest, ABlockThatNobodyWantsIsNotRead) {
  for (uint64_t at : {5 * kBlock, 5 * kBlock + 777, 6 * kBlock - 1}) scene_.FlipBit(at, 1);
  const RestoreReport report = scene_.Read();
  EXPECT_EQ(report.status, absl::OkStatus());
  scene_.ExpectAllThere();
}

TEST_F(RestoredBlocksTest, TheFirstOfTwoBadBlocksIsNamed) {
  scene_.FlipBit(3 * kBlock, 1);
  scene_.FlipBit(kBlock + 5, 1);
  const RestoreReport report = scene_.Read();
  EXPECT_TRUE(absl::IsDataLoss(report.status));
  EXPECT_THAT(std::string(report.status.message()), HasSubstr("block 1 needs CRC"));
}

// Of a bad block the tensors may have got wrong bytes: what comes for them afterwards from others
// is written over those.
TEST_F(RestoredBlocksTest, WhatABadBlockLeftIsWrittenOverByWhatComesStaged) {
  scene_.FlipBit(2 * kBlock + 100, 1);
  ASSERT_TRUE(absl::IsDataLoss(scene_.Read().status));

  // A new plan: block 2 is decoded elsewhere.
  RestorePlan& plan = scene_.plan();
  auto& piece = *std::ranges::find(plan.pieces, uint64_t{2 * kBlock}, &PlanPiece::source_offset);
  const PlanPiece staged{.source = 1, .target = piece.target, .bytes = kBlock};
  piece.source_offset += kBlock;
  piece.target_offset += kBlock;
  piece.bytes -= kBlock;
  plan.pieces.push_back(staged);
  plan.sources.push_back({.rank = Rank{1}});
  plan.block_bytes = kBlock;
  plan.staging_segment = "/unreft.job.0.staging";
  plan.staging_bytes = plan.staged_bytes = kBlock;
  auto staging = *scene_.segments().Create(plan.staging_segment, kBlock);
  ASSERT_TRUE(staging->Reserve(0, kBlock).ok());
  const auto block = scene_.slab().subspan(2 * kBlock, kBlock);
  std::ranges::copy(block, staging->bytes().begin());
  EXPECT_EQ(scene_.Read().status, absl::OkStatus());
  auto reader =
      StagedReader::Create(plan, std::move(staging), scene_.targets(), scene_.copier(), 0);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto done =
      reader->Take({.bytes = kBlock, .crc = Crc32c(block), .last = true, .source = 1});
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_TRUE(reader->complete());
  scene_.ExpectAllThere();
}

// Sees what is copied to a device, with rooms of so many bytes, if any.
class DeviceSpy final : public HostMemoryCopier {
 public:
  explicit DeviceSpy(size_t room_bytes = 0) : room_bytes_(room_bytes) {}
  ~DeviceSpy() override { EXPECT_EQ(rooms_out_, 0); }

  absl::Status CopyNow(std::span<const CopyOp>) override { return absl::OkStatus(); }
  void CopyBucket(std::vector<CopyOp>, absl::AnyInvocable<void(absl::Status)>) override {}
  std::span<std::byte> TakeRoom() override {
    if (room_bytes_ == 0) return {};
    ++rooms_out_;
    return {new std::byte[room_bytes_], room_bytes_};
  }
  absl::Status Send(std::span<std::byte> room, std::span<const RoomPiece> pieces) override {
    const std::unique_ptr<std::byte[]> taken_back(room.data());
    EXPECT_EQ(room.size(), room_bytes_);
    --rooms_out_;
    for (const RoomPiece& piece : pieces) {
      EXPECT_LE(piece.offset + piece.bytes, room.size());
      const std::span<const std::byte> bytes = room.subspan(piece.offset, piece.bytes);
      EXPECT_EQ(piece.crc, Crc32c(bytes));
      std::ranges::copy(bytes, piece.target);
      device_bytes += piece.bytes;
      sent_bytes += piece.bytes;
    }
    return failure;
  }
  absl::Status Restore(std::span<const CopyOp> ops) override {
    for (const CopyOp& op : ops) {
      std::memcpy(op.target, op.source, op.bytes);
      (op.on_device ? device_bytes : host_bytes) += op.bytes;
    }
    return failure;
  }

  std::atomic<size_t> device_bytes = 0;
  std::atomic<size_t> sent_bytes = 0;  // of these, from rooms
  std::atomic<size_t> host_bytes = 0;
  absl::Status failure;

 private:
  const size_t room_bytes_;
  std::atomic<int> rooms_out_ = 0;
};

TEST_F(RestoredBlocksTest, ADeviceGetsItsPartOfABlockWhenThatIsVerified) {
  scene_.targets()[2].cuda_device = 0;  // all in block 1, among tensors of the host
  scene_.targets()[3].cuda_device = 0;
  DeviceSpy spy;
  EXPECT_EQ(scene_.Read(spy).status, absl::OkStatus());
  EXPECT_EQ(spy.device_bytes, 12500u);
  scene_.ExpectAllThere();
  for (uint64_t at : {kBlock + 5, kBlock + 15000, kBlock + 32767}) {
    scene_.Wipe();
    scene_.FlipBit(at, 2);
    DeviceSpy none;
    EXPECT_TRUE(absl::IsDataLoss(scene_.Read(none).status));
    scene_.FlipBit(at, 2);
    EXPECT_EQ(none.device_bytes, 0u) << at;
  }
}

TEST_F(RestoredBlocksTest, ADeviceGetsWhatIsVerifiedFromARoomOfTheCopiers) {
  for (BoundTensor& target : scene_.targets()) target.cuda_device = 0;
  // Of one block and a line or two a tensor; of several; and of fewer bytes than a block has.
  for (const size_t room_bytes : {kBlock + 256, 5 * kBlock, kBlock / 2}) {
    scene_.Wipe();
    DeviceSpy spy(room_bytes);
    EXPECT_EQ(scene_.Read(spy).status, absl::OkStatus());
    scene_.ExpectAllThere();
    EXPECT_GT(spy.sent_bytes, 0u);
    EXPECT_EQ(spy.sent_bytes < spy.device_bytes, true) << "some bytes go to two tensors";
    scene_.FlipBit(kBlock + 5, 2);
    DeviceSpy less(room_bytes);
    EXPECT_TRUE(absl::IsDataLoss(scene_.Read(less).status));
    EXPECT_LT(less.device_bytes, kBlock) << "the block that does not verify, and those behind it";
    scene_.FlipBit(kBlock + 5, 2);
  }
}

TEST_F(RestoredBlocksTest, ADeviceThatFailsIsNotTheSlotsFault) {
  scene_.targets()[2].cuda_device = 0;
  for (const size_t room_bytes : {size_t{0}, size_t{2 * kBlock}}) {
    DeviceSpy spy(room_bytes);
    spy.failure = absl::InternalError("no such context");
    const RestoreReport report = scene_.Read(spy);
    EXPECT_EQ(report.status, spy.failure);
    EXPECT_EQ(report.bad_generation, Generation{});
  }
}

// Any blocks, any tensors, cut into any pieces, overlapping in the slab as they like.
class AnyPlanTest : public testing::TestWithParam<uint64_t> {
 protected:
  // Cut by columns, each of which has its rows somewhere else, near together or far apart.
  static void AddMatrix(Scene& scene, Random& random, uint64_t slab) {
    const uint64_t rows = 2 + random.Below(20);
    const uint64_t width = 1 + random.Below(slab / rows);
    const uint32_t target = scene.AddTensor(rows * width);
    for (uint64_t column = 0; column < width;) {
      const uint64_t bytes = 1 + random.Below(width - column);
      const uint64_t pitch = bytes + random.Below((slab - bytes) / (rows - 1) - bytes + 1);
      const uint64_t source = random.Below(slab - (rows - 1) * pitch - bytes + 1);
      scene.AddPiece({.target = target,
                      .source_offset = source,
                      .target_offset = column,
                      .bytes = bytes,
                      .rows = rows,
                      .source_pitch = pitch,
                      .target_pitch = width});
      column += bytes;
    }
  }
};

TEST_P(AnyPlanTest, IsReadAsItSaysOrNamesTheBlockThatIsBad) {
  Random random(GetParam());
  for (int round = 0; round < 6; ++round) {
    const uint32_t block_bytes = uint32_t{64} << random.Below(11);  // to 64 KiB
    const uint64_t blocks = 1 + random.Below(6);
    const uint64_t slab = block_bytes * blocks;
    Scene scene(block_bytes, blocks, random.Next());
    for (uint64_t tensors = 1 + random.Below(6); tensors > 0; --tensors) {
      if (random.OneIn(2)) {
        AddMatrix(scene, random, slab);
        continue;
      }
      const uint64_t bytes = 1 + random.Below(slab);
      const uint32_t target = scene.AddTensor(bytes);
      for (uint64_t at = 0; at < bytes;) {
        const uint64_t piece = 1 + random.Below(bytes - at);
        scene.AddPiece(target, at, random.Below(slab - piece + 1), piece);
        at += piece;
      }
    }
    const auto threads = static_cast<uint32_t>(1 + random.Below(3));
    EXPECT_EQ(scene.Read(threads).status, absl::OkStatus());
    scene.ExpectAllThere();
    for (BoundTensor& target : scene.targets()) target.cuda_device = random.OneIn(3) ? -1 : 0;
    scene.Wipe();
    DeviceSpy spy(1 + random.Below(3 * block_bytes));
    EXPECT_EQ(scene.Read(spy, threads).status, absl::OkStatus());
    scene.ExpectAllThere();
    for (BoundTensor& target : scene.targets()) target.cuda_device = kHostMemory;
    for (int flip = 0; flip < 4; ++flip) {
      const uint64_t at = random.Below(slab);
      const int bit = static_cast<int>(random.Below(8));
      if (scene.wanted_blocks().contains(at / block_bytes)) {
        scene.ExpectFlipIsFound(at, bit, threads);
        continue;
      }
      scene.FlipBit(at, bit);
      EXPECT_EQ(scene.Read(threads).status, absl::OkStatus());
      scene.FlipBit(at, bit);
      scene.ExpectAllThere();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, AnyPlanTest, testing::Range(uint64_t{1}, uint64_t{21}));

}  // namespace
}  // namespace unreft::snapshot
