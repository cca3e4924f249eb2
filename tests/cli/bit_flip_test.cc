#include "tools/cli/bit_flip.h"

#include <gtest/gtest.h>

#include "base/slot_header.h"
#include "tests/fakes/fake_segment_store.h"

namespace unreft::cli {
namespace {

constexpr char kPrefix[] = "/unreft.job.0.";
constexpr uint64_t kDataBytes = 4096;

class BitFlipTest : public testing::Test {
 protected:
  // A slot of all zeros, sealed at that version.
  void Seal(uint64_t slot, uint64_t rank, uint64_t step) {
    const SlotGeometry geometry = MakeSlotGeometry(SlotId{slot}, 4096, 100, 100, kDataBytes);
    auto segment = *store_.Create(Name(slot), SlotSegmentBytes(geometry));
    ASSERT_TRUE(segment->Reserve(0, segment->bytes().size()).ok());
    SlotView view = FormatSlot(segment->bytes(), geometry);
    view.header().grant = {.generation = 1, .rank = rank, .world = rank + 1};
    view.header().seal = {.generation = 1,
                          .timeline = 1,
                          .step = step,
                          .data_bytes = kDataBytes,
                          .extras_bytes = 10,
                          .manifest_bytes = 20};
    SetBodyCrc(view.header().grant);
    SetBodyCrc(view.header().seal);
    view.set_state(Generation{1}, SlotState::kSealed);
  }
  static std::string Name(uint64_t slot) {
    return kPrefix + std::string("slot") + char('0' + slot);
  }

  uint8_t ByteAt(const FlipResult& flip) {
    auto segment = *store_.Open(flip.segment, Access::kReadOnly);
    return static_cast<uint8_t>(segment->bytes()[flip.segment_offset]);
  }

  FakeHostMemory memory_;
  FakeSegmentStore store_{memory_};
};

TEST_F(BitFlipTest, TakesTheNewestSealedSlot) {
  Seal(0, 0, 5);
  Seal(1, 1, 7);
  Seal(2, 0, 6);
  const auto flip = FlipBit(store_, {.prefix = kPrefix, .bit = 3});
  ASSERT_TRUE(flip.ok()) << flip.status();
  EXPECT_EQ(flip->slot, SlotId{1});
  EXPECT_EQ(flip->version, (Version{Timeline{1}, Step{7}}));
  EXPECT_EQ(flip->region_offset, kDataBytes / 2);
  EXPECT_EQ(flip->after, 1 << 3);
  EXPECT_EQ(ByteAt(*flip), 1 << 3);
}

TEST_F(BitFlipTest, KeepsToRankAndSlot) {
  Seal(0, 0, 5);
  Seal(1, 1, 7);
  Seal(2, 0, 6);
  EXPECT_EQ(FlipBit(store_, {.prefix = kPrefix, .rank = Rank{0}})->slot, SlotId{2});
  EXPECT_EQ(FlipBit(store_, {.prefix = kPrefix, .slot = SlotId{0}})->slot, SlotId{0});
  EXPECT_TRUE(absl::IsNotFound(FlipBit(store_, {.prefix = kPrefix, .rank = Rank{9}}).status()));
}

TEST_F(BitFlipTest, StaysWithinWhatTheSealCovers) {
  Seal(0, 0, 5);
  EXPECT_TRUE(FlipBit(store_, {.prefix = kPrefix, .region = Region::kExtras, .offset = 9}).ok());
  const auto beyond = FlipBit(store_, {.prefix = kPrefix, .region = Region::kExtras, .offset = 10});
  EXPECT_TRUE(absl::IsOutOfRange(beyond.status())) << beyond.status();
  EXPECT_TRUE(FlipBit(store_, {.prefix = kPrefix, .region = Region::kManifest}).ok());
}

TEST_F(BitFlipTest, PassesByWhatIsNoSealedSlot) {
  ASSERT_TRUE((*store_.Create(std::string(kPrefix) + "node", 4096))->Reserve(0, 4096).ok());
  const auto flip = FlipBit(store_, {.prefix = kPrefix});
  EXPECT_TRUE(absl::IsNotFound(flip.status())) << flip.status();
}

}  // namespace
}  // namespace unreft::cli
