// One segment for all ranks that restore: who has how much of it, and when it is there.

#include "smp/memory/staging_area.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBlock = 4096;

class StagingAreaTest : public SmpFixture {
 protected:
  // A rank that restores: takes whatever it can have.
  struct Rank {
    explicit Rank(std::shared_ptr<StagingPlaces> of) : places(std::move(of)) {
      id = places->Join([this] { TakeAll(); });
    }
    ~Rank() { places->Leave(id); }
    void TakeAll() {
      while (wanted > 0) {
        auto place = StagingPlaces::Take(places, id, [](uint64_t) { return false; });
        if (!place) return;
        --wanted;
        ++taken;
        held.push_back(*std::move(place));
      }
    }
    std::shared_ptr<StagingPlaces> places;
    uint64_t id = 0;
    uint64_t wanted = 1000;
    uint64_t taken = 0;
    StagingArea::Holds Holds() {
      StagingArea::Holds holds;
      for (auto& place : held) {
        holds.push_back(std::make_shared<const StagingPlaces::Place>(std::move(place)));
      }
      held.clear();
      return holds;
    }
    std::deque<StagingPlaces::Place> held;
  };

  StagingAreaTest() {
    options_.block_bytes = kBlock;
    options_.populate_chunk_bytes = kBlock;
    memory_.emplace(SegmentPool::Seams{*executor_, pool_, segments_, log_}, options_);
    area_.emplace(StagingArea::Seams{*executor_, *memory_, processes_, log_}, options_);
  }
  ~StagingAreaTest() override {
    InTurn([&] { area_.reset(); });
  }

  absl::Status Provide(uint64_t blocks) {
    absl::Status status;
    InTurn([&] { status = area_->Provide(blocks * kBlock); });
    Settle();
    return status;
  }
  bool Exists() const {
    const std::vector<std::string> names = host_.Names();
    return std::ranges::find(names, "/unreft.job.0.staging") != names.end();
  }

  std::optional<SegmentPool> memory_;
  std::optional<StagingArea> area_;
};

TEST_F(StagingAreaTest, ItHasItsPagesBeforeAnybodyRestores) {
  ASSERT_TRUE(Provide(3).ok());
  EXPECT_EQ(*host_.ReservedBytes("/unreft.job.0.staging"), 3 * kBlock);
  EXPECT_EQ(memory_->use().bytes, 3 * kBlock);
  EXPECT_EQ(memory_->use().unpopulated, 0U);
  EXPECT_EQ(area_->MemoryFor(5 * kBlock).lacking_bytes, 2 * kBlock);
}

TEST_F(StagingAreaTest, APlaceThatWasGivenBackKeepsItsBytesUntilItIsLentAgain) {
  ASSERT_TRUE(Provide(2).ok());
  InTurn([&] {
    Rank rank(area_->places());
    rank.TakeAll();
    const uint64_t offset = rank.held[1].offset();
    const uint64_t lending = rank.held[1].lending();
    const auto take_again = [&] {
      return StagingPlaces::TakeAgain(rank.places, rank.id, offset, lending);
    };
    EXPECT_FALSE(take_again()) << "it is lent";
    rank.held.pop_back();
    {
      const auto again = take_again();
      ASSERT_TRUE(again);
      EXPECT_EQ(again->offset(), offset);
    }
    EXPECT_FALSE(take_again()) << "it has been lent since";
  });
}

TEST_F(StagingAreaTest, ThePlaceThatWasGivenBackFirstIsLentFirst) {
  ASSERT_TRUE(Provide(3).ok());
  InTurn([&] {
    Rank rank(area_->places());
    rank.TakeAll();
    const std::vector<uint64_t> order = {rank.held[2].offset(), rank.held[0].offset(),
                                         rank.held[1].offset()};
    rank.held.pop_back();
    rank.held.pop_front();
    rank.held.clear();
    rank.wanted = 3;
    rank.TakeAll();
    for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(rank.held[i].offset(), order[i]);
  });
}

TEST_F(StagingAreaTest, OnePlaceGoesRound) {
  ASSERT_TRUE(Provide(1).ok());
  std::vector<std::unique_ptr<Rank>> ranks;
  InTurn([&] {
    for (int i = 0; i < 3; ++i) ranks.push_back(std::make_unique<Rank>(area_->places()));
    ranks[0]->TakeAll();
  });
  for (int round = 0; round < 9; ++round) {
    InTurn([&] {
      for (auto& rank : ranks) rank->held.clear();
    });
    Settle();
  }
  for (const auto& rank : ranks) EXPECT_GE(rank->taken, 3U);
  InTurn([&] { ranks.clear(); });
}

TEST_F(StagingAreaTest, NobodyHasAPlaceBeforeItHasItsPages) {
  InTurn([&] {
    ASSERT_TRUE(area_->Provide(2 * kBlock).ok());
    Rank rank(area_->places());
    rank.TakeAll();
    EXPECT_TRUE(rank.held.empty());
  });
  std::optional<Rank> rank;
  InTurn([&] { rank.emplace(area_->places()); });
  Settle();
  EXPECT_EQ(rank->held.size(), 2U);
  InTurn([&] { rank.reset(); });
}

TEST_F(StagingAreaTest, WhatATrainerMayStillCopyIsLentToNobodyUntilItsLifeEnds) {
  ASSERT_TRUE(Provide(2).ok());
  const ProcessLife life = table_.Start();
  std::optional<Rank> other;
  InTurn([&] {
    Rank rank(area_->places());
    rank.TakeAll();
    area_->KeepUntilEnd(life, rank.Holds());
  });
  InTurn([&] { other.emplace(area_->places()); });
  Settle();
  EXPECT_TRUE(other->held.empty());
  table_.End(life);
  Settle();
  EXPECT_EQ(other->held.size(), 2U);
  InTurn([&] { other.reset(); });
}

TEST_F(StagingAreaTest, OrUntilTheTrainerSaysThatItHasEnded) {
  ASSERT_TRUE(Provide(1).ok());
  const ProcessLife life = table_.Start();
  std::optional<Rank> other;
  InTurn([&] {
    Rank rank(area_->places());
    rank.TakeAll();
    area_->KeepUntilEnd(life, rank.Holds());
    other.emplace(area_->places());
    area_->OnTrainerDone(life);
  });
  Settle();
  EXPECT_EQ(other->held.size(), 1U);
  InTurn([&] { other.reset(); });
}

TEST_F(StagingAreaTest, AnotherSizeIsMadeAnewUnlessSomebodyRestores) {
  ASSERT_TRUE(Provide(2).ok());
  std::optional<Rank> rank;
  InTurn([&] { rank.emplace(area_->places()); });
  ASSERT_TRUE(Provide(5).ok());
  EXPECT_EQ(area_->places()->bytes(), 2 * kBlock);
  InTurn([&] { rank.reset(); });
  ASSERT_TRUE(Provide(5).ok());
  EXPECT_EQ(area_->places()->bytes(), 5 * kBlock);
  EXPECT_EQ(*host_.ReservedBytes("/unreft.job.0.staging"), 5 * kBlock);
  ASSERT_TRUE(Provide(0).ok());
  EXPECT_EQ(area_->places(), nullptr);
  EXPECT_FALSE(Exists());
}

TEST_F(StagingAreaTest, WhatDoesNotFitIsRefusedWithTheNumbers) {
  options_.memory_bytes_max = 10 * kBlock;
  ASSERT_TRUE(memory_->Make({SegmentKind::kSlot, 0}, 7 * kBlock).ok());
  const absl::Status status = Provide(4);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("45056 bytes of shared memory needed, 28672 held now, 40960 allowed by "
                        "memory_bytes_max"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--restore-staging-bytes"));
  EXPECT_FALSE(Exists());
  EXPECT_TRUE(Provide(3).ok());
}

TEST_F(StagingAreaTest, PagesThatCannotBeHadAreToldAndItIsMadeAgain) {
  std::optional<Rank> rank;
  InTurn([&] {
    ASSERT_TRUE(area_->Provide(4 * kBlock).ok());
    rank.emplace(area_->places());
    host_.set_bytes_max(host_.bytes_used() + kBlock);
  });
  Settle();
  EXPECT_TRUE(rank->held.empty());
  EXPECT_TRUE(absl::IsResourceExhausted(rank->places->status())) << rank->places->status();
  EXPECT_EQ(area_->status(), rank->places->status());
  EXPECT_EQ(area_->places(), nullptr);
  EXPECT_FALSE(Exists());
  InTurn([&] { rank.reset(); });
  host_.set_bytes_max(1 << 24);
  EXPECT_TRUE(Provide(4).ok());
  EXPECT_TRUE(area_->status().ok());
  EXPECT_EQ(memory_->use().unpopulated, 0U);
}

TEST_F(StagingAreaTest, WhatAnEarlierProcessStagedIsNotUsedAgain) {
  ASSERT_TRUE((*segments_.Create("/unreft.job.0.staging", kBlock))->Reserve(0, kBlock).ok());
  ASSERT_TRUE((*segments_.Create("/unreft.job.0.staging.1.2.3.4", kBlock))->Reserve(0, 1).ok());
  InTurn([&] { area_->RemoveOld(); });
  EXPECT_TRUE(host_.Names().empty());
}

}  // namespace
}  // namespace unreft::smp
