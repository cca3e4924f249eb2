// What a node tells of its slabs, also when their headers have rotted.

#include "smp/protect/slab_source.h"

#include <gmock/gmock.h>

#include "base/slot_header.h"
#include "smp/job/cluster_records.h"
#include "tests/unit/format_testing.h"
#include "tests/unit/smp/sealed_slot_fixture.h"

namespace unreft::smp {
namespace {

constexpr uint64_t kDataBytes = 300;

// A sealed slot in ordinary memory; its bytes are zeros.
class SealedSlot {
 public:
  SealedSlot()
      : geometry_(MakeSlotGeometry(SlotId{3}, 64, 100, 200, kDataBytes)),
        pages_(SlotSegmentBytes(geometry_)) {
    slot_.view = FormatSlot(pages_.span(), geometry_);
    slot_.owner = Rank{7};
    slot_.world = 9;
    slot_.generation = Generation{4};
    SlotSeal seal;
    seal.generation = 4;
    seal.data_bytes = kDataBytes;
    seal.manifest_bytes = 90;
    seal.extras_bytes = 150;
    SetBodyCrc(seal);
    slot_.view->header().seal = seal;
    slot_.view->set_state(Generation{4}, SlotState::kSealed);
  }

  Slot& slot() { return slot_; }

 private:
  const SlotGeometry geometry_;
  PageBuffer pages_;
  Slot slot_;
};

TEST(SlabSourceTest, ASealedSlabIsDescribed) {
  SealedSlot sealed;
  const absl::StatusOr<SlabDescription> meta = DescribeSlab(sealed.slot());
  ASSERT_TRUE(meta.ok()) << meta.status();
  EXPECT_EQ(meta->rank(), 7U);
  EXPECT_EQ(meta->world(), 9U);
  EXPECT_EQ(meta->manifest().size(), 90U);
  EXPECT_EQ(meta->crc_table().size(), 5 * sizeof(uint32_t));
  EXPECT_EQ(meta->extras().size(), 150U);
}

// A length that had rotted was believed, and the daemon read beyond its memory.
TEST(SlabSourceTest, NoTurnedBitOfTheSealIsBelieved) {
  SealedSlot sealed;
  auto* bytes = reinterpret_cast<std::byte*>(&sealed.slot().view->header().seal);
  for (size_t bit = 0; bit < sizeof(SlotSeal) * 8; ++bit) {
    bytes[bit / 8] ^= std::byte(1 << bit % 8);
    EXPECT_TRUE(absl::IsDataLoss(DescribeSlab(sealed.slot()).status())) << "bit " << bit;
    bytes[bit / 8] ^= std::byte(1 << bit % 8);
  }
  EXPECT_TRUE(DescribeSlab(sealed.slot()).ok());
}

// --- slabs that readers complain of ---

class SuspectSlabTest : public SealedSlotFixture {
 protected:
  SuspectSlabTest() {
    state_.options = options_;
    state_.slots = NewStore();
    InTurn([&] { source_ = std::make_unique<SlabSource>(state_); });
    slot_ = &Seal(*state_.slots, kVersion);
  }
  ~SuspectSlabTest() override {
    InTurn([&] {
      source_.reset();
      state_.slots.reset();
    });
  }

  void ReadBlock(bool is_suspect) {
    ReadRequest request;
    request.set_kind(ReadRequest::DATA);
    SetVersion(kVersion, request);
    request.set_rank(kRank.value);
    request.set_blocks(1);
    request.set_is_suspect(is_suspect);
    const uint64_t bytes = slot_->view->geometry().block_bytes;
    InTurn([&] { source_->OnRead(request, bytes, [](const auto&) {}); });
    Settle();
  }
  void AskMeta(bool is_suspect) {
    MetaRequest request;
    SetVersion(kVersion, request);
    request.set_is_suspect(is_suspect);
    InTurn([&] { source_->OnMeta(request, [](const auto&) {}); });
    Settle();
  }

  static constexpr Version kVersion{Timeline{1}, Step{9}};
  NodeState state_{NodeSeams{*executor_, pool_, random_, segments_, *records_, processes_, log_}};
  std::unique_ptr<SlabSource> source_;
  Slot* slot_ = nullptr;
};

TEST_F(SuspectSlabTest, ABlockThatHasRottedIsFoundByAComplaint) {
  Flip(*slot_);
  ReadBlock(false);
  EXPECT_EQ(slot_->phase, SlotPhase::kSealed) << "nobody has looked";
  ReadBlock(true);
  EXPECT_EQ(slot_->phase, SlotPhase::kQuarantined);
  EXPECT_THAT(slot_->problem, testing::HasSubstr("block"));
}

TEST_F(SuspectSlabTest, AManifestThatHasRottedIsFoundByAComplaint) {
  slot_->view->manifest()[5] ^= std::byte{1};
  AskMeta(false);
  EXPECT_EQ(slot_->phase, SlotPhase::kSealed) << "nobody has looked";
  AskMeta(true);
  EXPECT_EQ(slot_->phase, SlotPhase::kQuarantined);
}

TEST_F(SuspectSlabTest, ASealThatHasRottedIsFoundWithoutOne) {
  slot_->view->header().seal.manifest_bytes ^= 1;
  AskMeta(false);
  EXPECT_EQ(slot_->phase, SlotPhase::kQuarantined);
}

// The bytes were lost on their way.
TEST_F(SuspectSlabTest, ASlabThatIsRightOutlivesAnyComplaint) {
  for (int i = 0; i < 3; ++i) {
    ReadBlock(true);
    AskMeta(true);
  }
  EXPECT_EQ(slot_->phase, SlotPhase::kSealed);
}

}  // namespace
}  // namespace unreft::smp
