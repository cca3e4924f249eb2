// The blocks of other nodes in one segment for all ranks: each is fetched once, and nobody takes
// the places of all.

#include "smp/restore/staged_blocks.h"

#include <gmock/gmock.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kBlock = 4096;

BlockId IdOf(uint64_t block) { return {Rank{7}, block}; }

class StagedBlocksTest : public SmpFixture {
 protected:
  // Takes the blocks that it wants, in their order, but first what others fetch.
  struct Taker {
    Taker(StagedBlocks& of, uint64_t first, uint64_t end) : blocks(of) {
      for (uint64_t block = first; block < end; ++block) todo.push_back(IdOf(block));
      id = blocks.Join({.on_fetch = [this](BlockId fetched) { heard.push_back(fetched); },
                        .on_room = [this] { TakeAll(); }});
    }
    ~Taker() { blocks.Leave(id); }
    void TakeAll() {
      while (!todo.empty() && Take(todo.front())) todo.pop_front();
    }
    bool Take(BlockId wanted) {
      return blocks.Take(id, wanted, [this, wanted](absl::StatusOr<StagedBlocks::Hold> block) {
        if (block.ok()) {
          held[wanted] = *std::move(block);
        } else {
          failures.push_back(block.status());
        }
      });
    }
    StagedBlocks& blocks;
    uint64_t id = 0;
    std::deque<BlockId> todo;
    std::vector<BlockId> heard;
    std::map<BlockId, StagedBlocks::Hold> held;
    std::vector<absl::Status> failures;
  };

  StagedBlocksTest() {
    options_.block_bytes = kBlock;
    options_.populate_chunk_bytes = kBlock;
    memory_.emplace(SegmentPool::Seams{*executor_, pool_, segments_, log_}, options_);
    area_.emplace(StagingArea::Seams{*executor_, *memory_, processes_, log_}, options_);
  }
  ~StagedBlocksTest() override {
    InTurn([&] {
      takers_.clear();
      blocks_.reset();
      area_.reset();
    });
  }

  void Make(uint64_t places, bool others = false) {
    InTurn([&] { ASSERT_TRUE(area_->Provide(places * kBlock).ok()); });
    Settle();
    blocks_.emplace(
        *executor_,
        [this](BlockId id, std::span<std::byte> into, std::shared_ptr<void> keep, auto done) {
          ++fetches_[id];
          executor_->After(fetch_time_, [this, id, into, keep = std::move(keep),
                                         done = std::move(done)]() mutable {
            into[0] = std::byte(id.block);
            done(failing_ == id ? absl::DataLossError("it is gone") : absl::OkStatus());
          });
        },
        area_->places(),
        others ? StagedBlocks::IsForOthers([](BlockId id) { return id.block % 10 == 9; })
               : nullptr);
  }
  Taker& Join(uint64_t first, uint64_t end) {
    InTurn([&] { takers_.push_back(std::make_unique<Taker>(*blocks_, first, end)); });
    return *takers_.back();
  }
  void TakeAll() {
    InTurn([&] {
      for (const auto& taker : takers_) taker->TakeAll();
    });
    Settle();
  }
  void LetGo() {
    InTurn([&] {
      for (const auto& taker : takers_) taker->held.clear();
    });
    Settle();
  }
  uint64_t FetchesInAll() const {
    uint64_t fetches = 0;
    for (const auto& [id, times] : fetches_) fetches += times;
    return fetches;
  }

  std::optional<SegmentPool> memory_;
  std::optional<StagingArea> area_;
  std::optional<StagedBlocks> blocks_;
  std::vector<std::unique_ptr<Taker>> takers_;
  std::map<BlockId, uint64_t> fetches_;
  Duration fetch_time_ = std::chrono::milliseconds(1);
  std::optional<BlockId> failing_;
};

TEST_F(StagedBlocksTest, ABlockIsFetchedOnceForAllWhoTakeIt) {
  Make(12);
  for (int rank = 0; rank < 3; ++rank) Join(0, 4);
  TakeAll();
  for (const auto& taker : takers_) {
    ASSERT_EQ(taker->held.size(), 4U);
    for (const auto& [id, block] : taker->held) {
      EXPECT_EQ(block->place.bytes()[0], std::byte(id.block));
    }
  }
  EXPECT_EQ(FetchesInAll(), 4U);
}

TEST_F(StagedBlocksTest, WhoComesLaterFindsWhatNobodyHoldsAnyMore) {
  Make(4);
  Join(0, 3);
  TakeAll();
  LetGo();
  InTurn([&] { takers_.clear(); });
  Taker& later = Join(0, 3);
  EXPECT_EQ(blocks_->Present().size(), 3U);
  TakeAll();
  EXPECT_EQ(later.held.size(), 3U);
  for (const auto& [id, block] : later.held) {
    EXPECT_EQ(block->place.bytes()[0], std::byte(id.block));
  }
  EXPECT_EQ(FetchesInAll(), 3U);
}

TEST_F(StagedBlocksTest, APlaceThatIsNeededGoesToAnotherBlock) {
  Make(2);
  Taker& taker = Join(0, 4);
  TakeAll();
  LetGo();
  LetGo();
  EXPECT_TRUE(taker.todo.empty());
  EXPECT_THAT(blocks_->Present(), ElementsAre(IdOf(2), IdOf(3)));
  InTurn([&] { EXPECT_TRUE(taker.Take(IdOf(0))); });
  Settle();
  EXPECT_EQ(fetches_[IdOf(0)], 2U);
  EXPECT_EQ(taker.held.at(IdOf(0))->place.bytes()[0], std::byte{0});
}

TEST_F(StagedBlocksTest, EachHasAShareWhoeverCameFirst) {
  Make(4);
  Taker& first = Join(0, 100);
  TakeAll();
  EXPECT_EQ(first.held.size(), 4U) << "alone, all of it is its share";
  Taker& second = Join(200, 300);
  TakeAll();
  EXPECT_TRUE(second.held.empty());
  LetGo();
  EXPECT_EQ(first.held.size(), 2U);
  EXPECT_EQ(second.held.size(), 2U);
}

TEST_F(StagedBlocksTest, AShareIsLeftForOtherNodes) {
  Make(4, /*others=*/true);
  Taker& rank = Join(0, 100);
  TakeAll();
  EXPECT_EQ(rank.held.size(), 2U);
  Taker& other = Join(200, 201);
  TakeAll();
  EXPECT_EQ(other.held.size(), 1U);
}

// Nodes begin at different times.
TEST_F(StagedBlocksTest, WhatOthersWillAskForStaysLongest) {
  Make(6, /*others=*/true);
  Join(0, 65);
  TakeAll();
  for (int round = 0; round < 25; ++round) LetGo();
  EXPECT_TRUE(takers_[0]->todo.empty());
  EXPECT_TRUE(blocks_->Has(IdOf(39)));
  EXPECT_TRUE(blocks_->Has(IdOf(49)));
  EXPECT_TRUE(blocks_->Has(IdOf(59)));
  EXPECT_FALSE(blocks_->Has(IdOf(29))) << "as many as the share of the others";
  Taker& other = Join(100, 100);
  InTurn([&] { EXPECT_TRUE(other.Take(IdOf(39))); });
  Settle();
  EXPECT_EQ(other.held.at(IdOf(39))->place.bytes()[0], std::byte{39});
  EXPECT_EQ(fetches_[IdOf(39)], 1U);
}

TEST_F(StagedBlocksTest, WhatOneHoldsCountsForAnotherToo) {
  Make(4);
  Taker& slow = Join(0, 100);
  Taker& fast = Join(0, 100);
  TakeAll();
  EXPECT_EQ(slow.held.size(), 2U);
  // The slow one keeps what it has, and stands in nobody's way.
  for (int round = 0; round < 10; ++round) {
    InTurn([&] { fast.held.clear(); });
    Settle();
  }
  EXPECT_EQ(slow.held.size(), 2U);
  EXPECT_LT(fast.todo.size(), 85U);
}

TEST_F(StagedBlocksTest, OthersHearWhatIsFetched) {
  Make(8);
  Taker& first = Join(0, 2);
  Taker& second = Join(5, 5);
  InTurn([&] { first.TakeAll(); });
  EXPECT_THAT(second.heard, ElementsAre(IdOf(0), IdOf(1)));
  EXPECT_TRUE(first.heard.empty());
  EXPECT_TRUE(blocks_->Has(IdOf(1)));
}

TEST_F(StagedBlocksTest, AFailureIsToldToAllWhoWaitAndRememberedByNobody) {
  Make(8);
  failing_ = IdOf(1);
  Taker& first = Join(0, 3);
  Taker& second = Join(0, 3);
  TakeAll();
  EXPECT_EQ(first.failures.size(), 1U);
  EXPECT_EQ(second.failures.size(), 1U);
  EXPECT_THAT(blocks_->Present(), ElementsAre(IdOf(0), IdOf(2)));
  failing_.reset();
  InTurn([&] { EXPECT_TRUE(first.Take(IdOf(1))); });
  Settle();
  EXPECT_TRUE(first.held.contains(IdOf(1)));
}

TEST_F(StagedBlocksTest, WhatIsNotWhatItOughtToBeIsFetchedAnewForTheNext) {
  Make(4);
  Taker& first = Join(0, 1);
  Taker& second = Join(0, 1);
  TakeAll();
  InTurn([&] {
    blocks_->Forget(first.held.at(IdOf(0)));
    first.held.clear();
    EXPECT_TRUE(first.Take(IdOf(0)));
  });
  Settle();
  EXPECT_EQ(fetches_[IdOf(0)], 2U);
  EXPECT_NE(first.held.at(IdOf(0))->place.offset(), second.held.at(IdOf(0))->place.offset())
      << "the other may still copy from there";
}

TEST_F(StagedBlocksTest, WhoLeavesWhileItWaitsLeavesTheBlockToTheOthers) {
  Make(4);
  fetch_time_ = std::chrono::milliseconds(20);
  Join(0, 1);
  Taker& second = Join(0, 1);
  InTurn([&] {
    for (const auto& taker : takers_) taker->TakeAll();
    blocks_->Leave(takers_.front()->id);
  });
  Settle();
  EXPECT_TRUE(second.held.contains(IdOf(0)));
  EXPECT_EQ(FetchesInAll(), 1U);
}

// Memory that the pool does not count any more is not kept for blocks that nobody takes.
TEST_F(StagedBlocksTest, AnAreaThatNobodyTakesOfCanBeMadeAnew) {
  Make(4);
  Join(0, 2);
  TakeAll();
  InTurn([&] {
    takers_.clear();
    EXPECT_NE(blocks_->places(), nullptr);
    EXPECT_TRUE(area_->Provide(2 * kBlock).ok());
    EXPECT_EQ(blocks_->places(), nullptr);
  });
}

}  // namespace
}  // namespace unreft::smp
