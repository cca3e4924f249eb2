// What node 1 has lost is decoded beside the job, into a segment that a drain reads as a slot.

#include "smp/restore/decoded_slabs.h"

#include <gmock/gmock.h>

#include "durable/sealed_slab.h"
#include "tests/unit/smp/block_reader_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class DecodedSlabsTest : public BlockReaderFixture {
 protected:
  ~DecodedSlabsTest() override { LetGo(); }

  // Of the nodes, those in `lost` have theirs no more.
  void Decode(std::set<uint64_t> lost, Duration within = seconds(4)) {
    with_data_ = {NodeSlot{0}, NodeSlot{1}, NodeSlot{2}};
    std::set<Rank> ranks;
    for (const uint64_t slot : lost) {
      with_data_.erase(NodeSlot{slot});
      data_refusals_[NodeSlot{slot}] = absl::NotFoundError("its memory is new");
      ranks.insert(Rank{slot});
    }
    const auto is_lost = [&](uint64_t slot) { return lost.contains(slot); };
    InTurn([&] {
      decoded_ = std::make_unique<DecodedSlabs>(
          *state_, *own_peers_, job_,
          [this](const ReadRequest& request, uint64_t, ReadDone done) {
            Give(NodeSlot{0}, request, std::move(done));
          },
          kVersion, DecisionWhere(is_lost).holders, ranks,
          [this](absl::StatusOr<DecodedSlabs::Segments> segments) {
            ++told_;
            segments_found_ = std::move(segments);
          });
    });
    Settle(within);
  }
  void LetGo() {
    InTurn([&] { decoded_.reset(); });
  }
  // Named as what is decoded is.
  size_t Left() { return segments_.List(MemoryPrefix(options_) + "decoded")->size(); }

  std::unique_ptr<DecodedSlabs> decoded_;
  int told_ = 0;
  absl::StatusOr<DecodedSlabs::Segments> segments_found_ = absl::UnknownError("nothing was told");
};

TEST_F(DecodedSlabsTest, WhatIsLostIsReadAsASlotIs) {
  Decode({1, 2});
  ASSERT_TRUE(segments_found_.ok()) << segments_found_.status();
  EXPECT_EQ(told_, 1);
  ASSERT_EQ(segments_found_->size(), 2U);
  EXPECT_EQ(decoded_->decoded_bytes(), 2 * kBlocks * kBlockBytes);
  EXPECT_EQ(decoded_->bytes(), 2 * kBlocks * kBlockBytes);
  for (const auto& [rank, name] : *segments_found_) {
    const auto slab = durable::SealedSlab::Open(segments_, name, rank, kVersion);
    ASSERT_TRUE(slab.ok()) << slab.status();
    EXPECT_EQ((*slab)->manifest().world, kRanks);
    for (uint64_t block = 0; block < kBlocks; ++block) {
      std::vector<std::byte> into(kBlockBytes);
      ASSERT_TRUE((*slab)->Read(block, into).ok());
      const auto right = BlockOf(rank, block);
      EXPECT_TRUE(std::equal(into.begin(), into.end(), right.begin()))
          << "rank " << rank.value << ", block " << block;
    }
  }
  EXPECT_TRUE(state_->slots->All().empty()) << "the job does not know of it";
  EXPECT_GT(state_->memory->use(SegmentKind::kDecoded).bytes, 2 * kBlocks * kBlockBytes);
  LetGo();
  EXPECT_EQ(Left(), 0U);
  EXPECT_EQ(state_->memory->use(SegmentKind::kDecoded).bytes, 0U);
}

TEST_F(DecodedSlabsTest, MoreThanTheParitiesAreNotDecoded) {
  without_parities_ = {NodeSlot{0}, NodeSlot{3}};
  Decode({1, 2}, seconds(30));
  EXPECT_EQ(told_, 1);
  EXPECT_THAT(segments_found_.status().message(), HasSubstr("of version"));
  EXPECT_TRUE(decoded_->idle());
  LetGo();
  EXPECT_EQ(Left(), 0U);
}

TEST_F(DecodedSlabsTest, WithoutRoomItSaysHowMuchIsNeeded) {
  InTurn([&] { state_->options.memory_bytes_max = state_->memory->use().bytes + 4096; });
  Decode({1});
  EXPECT_TRUE(absl::IsResourceExhausted(segments_found_.status())) << segments_found_.status();
  EXPECT_THAT(segments_found_.status().message(), HasSubstr("the slab of rank 1"));
  EXPECT_THAT(segments_found_.status().message(), HasSubstr("bytes of shared memory needed"));
  EXPECT_EQ(Left(), 0U);
}

TEST_F(DecodedSlabsTest, ARankThatNobodyIsSaidToHaveHadIsNamed) {
  InTurn([&] {
    decoded_ = std::make_unique<DecodedSlabs>(
        *state_, *own_peers_, job_, nullptr, kVersion,
        DecisionWhere([](uint64_t) { return false; }).holders, std::set<Rank>{Rank{7}},
        [this](absl::StatusOr<DecodedSlabs::Segments> segments) {
          segments_found_ = std::move(segments);
        });
  });
  Settle(seconds(1));
  EXPECT_THAT(segments_found_.status().message(), HasSubstr("the slab of rank 7"));
}

TEST_F(DecodedSlabsTest, OnceCancelledItTellsNothing) {
  Decode({1, 2}, Duration{});
  InTurn([&] { decoded_->Cancel(); });
  Settle(seconds(30));
  EXPECT_EQ(told_, 0);
  EXPECT_TRUE(decoded_->idle());
}

}  // namespace
}  // namespace unreft::smp
