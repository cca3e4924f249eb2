// What a node tells of its slabs, also when their headers have rotted.

#include "smp/protect/slab_source.h"

#include <gtest/gtest.h>

#include "base/slot_header.h"
#include "tests/unit/format_testing.h"

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
  const absl::StatusOr<SlabMeta> meta = DescribeSlab(sealed.slot());
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

}  // namespace
}  // namespace unreft::smp
