// The one place where a node's segments are made, counted and given their pages.

#include "smp/memory/segment_pool.h"

#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kChunk = 4096;
constexpr SegmentId kSlot{SegmentKind::kSlot, 0};
constexpr SegmentId kGuard{SegmentKind::kGuard, 0};

class SegmentPoolTest : public SmpFixture {
 protected:
  SegmentPoolTest() {
    options_.populate_chunk_bytes = kChunk;
    Restart();
  }
  // As a daemon that was killed and came again.
  void Restart() { pool_of_node_.emplace(Seams(), options_); }
  SegmentPool::Seams Seams() { return {*executor_, pool_, segments_, log_}; }

  void Make(SegmentId id, uint64_t bytes) {
    const auto made = pool_of_node_->Make(id, bytes);
    ASSERT_TRUE(made.ok()) << made.status();
    (*made)->bytes()[0] = std::byte{1};
  }
  // What came of it; none: nothing did.
  std::optional<absl::Status> Populate(SegmentId id) {
    auto populated = std::make_shared<std::optional<absl::Status>>();
    InTurn([&] { pool_of_node_->Populate(id, [populated](absl::Status s) { *populated = s; }); });
    Settle();
    return *populated;
  }
  std::vector<uint64_t> Adopt(SegmentKind kind) {
    std::vector<uint64_t> numbers;
    EXPECT_TRUE(pool_of_node_
                    ->Adopt(kind,
                            [&](SegmentId id, std::shared_ptr<Segment>) {
                              numbers.push_back(id.number);
                              return absl::OkStatus();
                            })
                    .ok());
    return numbers;
  }

  std::optional<SegmentPool> pool_of_node_;
};

TEST_F(SegmentPoolTest, EachKindHasNumbersOfItsOwnAndTheLowestIsUsedAgain) {
  for (uint64_t i = 0; i < 3; ++i) {
    const SegmentId next = pool_of_node_->Next(SegmentKind::kSlot);
    EXPECT_EQ(next.number, i);
    Make(next, kChunk);
  }
  EXPECT_EQ(pool_of_node_->Next(SegmentKind::kGuard).number, 0U);
  pool_of_node_->Remove({SegmentKind::kSlot, 1});
  EXPECT_EQ(pool_of_node_->Next(SegmentKind::kSlot).number, 1U);
  EXPECT_THAT(host_.Names(), ElementsAre("/unreft.job.0.slot0", "/unreft.job.0.slot2"));
}

TEST_F(SegmentPoolTest, PagesComeInTheBackgroundAndAreCounted) {
  Make(kSlot, 3 * kChunk);
  EXPECT_EQ(pool_of_node_->use().bytes, 3 * kChunk);
  EXPECT_EQ(pool_of_node_->use().unpopulated, 2 * kChunk) << "it has its first page";
  EXPECT_EQ(Populate(kSlot), absl::OkStatus());
  EXPECT_EQ(pool_of_node_->use().unpopulated, 0U);
  EXPECT_EQ(*host_.ReservedBytes("/unreft.job.0.slot0"), 3 * kChunk);
}

TEST_F(SegmentPoolTest, AllKindsAreHeldToOneLimit) {
  options_.memory_bytes_max = 5 * kChunk;
  Make(kSlot, kChunk);
  Make(kGuard, 2 * kChunk);
  Make({SegmentKind::kStaging, 0}, kChunk);
  EXPECT_EQ(pool_of_node_->use(SegmentKind::kGuard).bytes, 2 * kChunk);
  EXPECT_TRUE(pool_of_node_->Check(kChunk)->Fits());
  const MemoryBudget over = *pool_of_node_->Check(kChunk + 1);
  EXPECT_FALSE(over.Fits());
  EXPECT_THAT(over.Describe(), HasSubstr("20481 bytes of shared memory needed, 16384 held now, "
                                         "20480 allowed by memory_bytes_max"));
  pool_of_node_->Remove(kGuard);
  EXPECT_TRUE(pool_of_node_->Check(3 * kChunk)->Fits());
}

// The host still calls pages free that segments will take.
TEST_F(SegmentPoolTest, PagesThatAreYetToComeAreNotFree) {
  Make(kSlot, 4 * kChunk);
  host_.set_bytes_max(host_.bytes_used() + 4 * kChunk);
  EXPECT_TRUE(pool_of_node_->Check(kChunk)->Fits());
  EXPECT_FALSE(pool_of_node_->Check(kChunk + 1)->Fits());
}

TEST_F(SegmentPoolTest, PagesThatCannotBeHadAreToldOnce) {
  Make(kSlot, 4 * kChunk);
  host_.set_bytes_max(host_.bytes_used() + kChunk);
  const std::optional<absl::Status> status = Populate(kSlot);
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(absl::IsResourceExhausted(*status)) << *status;
}

TEST_F(SegmentPoolTest, OfWhatIsRemovedNothingIsToldAlsoWhereAnotherHasItsNumber) {
  Make(kSlot, 4 * kChunk);
  int told = 0;
  InTurn([&] {
    pool_of_node_->Populate(kSlot, [&](const absl::Status&) { ++told; });
    pool_of_node_->Remove(kSlot);
    Make(kSlot, 2 * kChunk);
  });
  Settle();
  EXPECT_EQ(told, 0);
  EXPECT_EQ(pool_of_node_->use().unpopulated, kChunk) << "the pages of the first are none of its";
  EXPECT_EQ(Populate(kSlot), absl::OkStatus());
}

TEST_F(SegmentPoolTest, WhatAnEarlierProcessLeftIsTakenOverByItsNumber) {
  Make(kSlot, kChunk);
  Make({SegmentKind::kSlot, 7}, 4 * kChunk);
  Make(kGuard, kChunk);
  Restart();
  EXPECT_THAT(Adopt(SegmentKind::kSlot), ElementsAre(0, 7));
  EXPECT_EQ(pool_of_node_->use(SegmentKind::kSlot).bytes, 5 * kChunk);
  EXPECT_EQ(pool_of_node_->use().unpopulated, 0U) << "its pages may be there";
  EXPECT_EQ(pool_of_node_->Next(SegmentKind::kSlot).number, 1U);
}

TEST_F(SegmentPoolTest, WhatNeverHeldAnythingIsRemovedInsteadOfAdopted) {
  ASSERT_TRUE(pool_of_node_->Make(kSlot, kChunk).ok());  // its maker dies before the header
  Make({SegmentKind::kSlot, 1}, kChunk);
  Restart();
  EXPECT_THAT(Adopt(SegmentKind::kSlot), ElementsAre(1));
  EXPECT_THAT(host_.Names(), ElementsAre("/unreft.job.0.slot1"));
}

TEST_F(SegmentPoolTest, AnAdoptionThatFailsLeavesTheOthersAlone) {
  Make(kSlot, kChunk);
  Make({SegmentKind::kSlot, 1}, kChunk);
  Restart();
  int seen = 0;
  const absl::Status status =
      pool_of_node_->Adopt(SegmentKind::kSlot, [&](SegmentId, std::shared_ptr<Segment>) {
        ++seen;
        return absl::FailedPreconditionError("of another format");
      });
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_EQ(seen, 1);
  EXPECT_EQ(host_.Names().size(), 2U);
}

}  // namespace
}  // namespace unreft::smp
