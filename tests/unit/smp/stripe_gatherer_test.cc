// How k chunks of a position come together, as each policy wants it.
//
// RS(2,2): nodes 0 to 3 have a slab of two blocks each, which are positions 0 of the stripes; node
// 0 gathers. Stripe 0 has its data on nodes 2 and 3, and its parities on nodes 0 and 1.

#include "smp/protect/stripe_gatherer.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "smp/job/cluster_records.h"
#include "smp/protect/all_data.h"
#include "smp/protect/any_k.h"
#include "tests/unit/smp/group_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

constexpr uint64_t kNodes = 4;

class StripeGathererTest : public GroupFixture {
 protected:
  StripeGathererTest() : GroupFixture(2, 2) {
    Random random(7);
    for (uint64_t slot = 0; slot < kNodes; ++slot) {
      members_.emplace_back().add_slabs()->set_rank(slot);
      members_[slot].mutable_slabs(0)->set_data_bytes(2 * kBlockBytes);
      for (const uint32_t kind : {0, 1}) {
        blocks_[{NodeSlot{slot}, kind}] = RandomBytes(random, kBlockBytes);
      }
    }
    StartOwn();
    InTurn([this] {
      coded_ = *CodedVersion::Make(kVersion, *FindGroup(job_.view.value.groups(), NodeSlot{0}),
                                   kBlockBytes, members_, state_->codes);
      health_ = std::make_unique<SourceHealth>(*executor_, *own_peers_, seconds(1),
                                               std::map<Rank, NodeSlot>());
      tiles_ = std::make_unique<TilePool>(*executor_, TileShares{1, 1});
    });
    for (uint64_t slot = 1; slot < kNodes; ++slot) {
      StartOther(NodeSlot{slot}, [this, slot](Peers& peers) {
        peers.ServeReads([this, slot](NodeSlot, const std::string& body, uint64_t, auto done) {
          ReadRequest request;
          UNREFT_CHECK(request.ParseFromString(body));
          Give(NodeSlot{slot}, request, std::move(done));
        });
      });
    }
  }
  ~StripeGathererTest() override {
    InTurn([this] {
      gatherer_.reset();
      tiles_.reset();
    });
  }

  void Give(NodeSlot slot, const ReadRequest& request, SlabSource::ReadDone done) {
    ++asked_[slot];
    if (request.is_suspect()) complaints_.insert(slot);
    if (failing_.contains(slot)) return done(absl::UnavailableError("not now"));
    std::vector<std::byte>& block = BlockOf(slot, request.kind() == ReadRequest::DATA);
    ReadSource source = SourceOf(block);
    // Until it is read again.
    if (rotten_.erase(slot) > 0) source.parts = {rot_};
    done(std::move(source));
  }
  std::vector<std::byte>& BlockOf(NodeSlot slot, bool is_data) {
    return blocks_.at({slot, is_data ? 0U : 1U});
  }

  void Gather(std::unique_ptr<SourcePolicy> policy, TilePurpose purpose = TilePurpose::kEncoding) {
    InTurn([&] {
      gatherer_ = std::make_unique<StripeGatherer>(
          StripeGatherer::Seams{*executor_, pool_, *own_peers_, log_, *tiles_,
                                [this](const ReadRequest& request, uint64_t, auto done) {
                                  Give(NodeSlot{0}, request, std::move(done));
                                }},
          state_->options, purpose);
      Want(std::move(policy));
    });
  }
  void Want(std::unique_ptr<SourcePolicy> policy) {
    StripeGatherer::Want want;
    want.coded = coded_;
    want.more_tiles = 1;
    want.make = [this](const GatheredStripe& gathered) {
      ++made_;
      std::ranges::fill(gathered.tiles[2], std::byte{9});
      return making_.empty() ? absl::OkStatus() : absl::DataLossError(making_);
    };
    gatherer_->Gather(std::move(want), std::move(policy), [this](auto gathered) {
      ++ended_;
      if (gathered.ok()) {
        gathered_ = *std::move(gathered);
      } else {
        failure_ = gathered.status();
      }
    });
  }
  std::unique_ptr<SourcePolicy> ToDecode(uint32_t target, Duration time = seconds(10)) {
    return std::make_unique<AnyK>(*health_, target, executor_->Now() + time);
  }
  // Those chunks were gathered, each with its block and CRC.
  void ExpectGathered(std::vector<uint32_t> chunks) {
    ASSERT_TRUE(gathered_.has_value()) << failure_;
    EXPECT_EQ(ended_, 1);
    ASSERT_EQ(gathered_->chunks.size(), chunks.size());
    for (size_t i = 0; i < chunks.size(); ++i) {
      const GatheredChunk& found = gathered_->chunks[i];
      EXPECT_EQ(found.chunk, chunks[i]);
      const auto& block = BlockOf(coded_->HolderOf(0, chunks[i]), chunks[i] < 2);
      EXPECT_TRUE(std::ranges::equal(found.bytes, block)) << "chunk " << chunks[i];
      EXPECT_EQ(found.crc, Crc32c(block));
    }
    EXPECT_EQ(gathered_->tiles[2][0], std::byte{9});
  }

  std::vector<MemberSlab> members_;
  std::shared_ptr<const CodedVersion> coded_;
  std::map<std::pair<NodeSlot, uint32_t>, std::vector<std::byte>> blocks_;  // data 0, parity 1
  std::vector<std::byte> rot_ = std::vector<std::byte>(kBlockBytes);
  std::set<NodeSlot> failing_;
  std::set<NodeSlot> rotten_;
  std::set<NodeSlot> complaints_;
  std::map<NodeSlot, int> asked_;
  std::unique_ptr<SourceHealth> health_;
  std::unique_ptr<TilePool> tiles_;
  std::unique_ptr<StripeGatherer> gatherer_;
  std::string making_;  // why it fails
  int made_ = 0;
  int ended_ = 0;
  std::optional<GatheredStripe> gathered_;
  absl::Status failure_;
};

// --- all data ---

TEST_F(StripeGathererTest, AllDataIsGatheredWithItsCrcs) {
  Gather(std::make_unique<AllData>());
  Settle(seconds(1));
  ExpectGathered({0, 1});
  EXPECT_EQ(made_, 1);
}

TEST_F(StripeGathererTest, AllDataIsWaitedForWithoutADeadline) {
  failing_ = {NodeSlot{3}};
  Gather(std::make_unique<AllData>());
  Settle(minutes(2));  // beyond the timeout of a read
  EXPECT_EQ(ended_, 0);
  EXPECT_EQ(asked_[NodeSlot{2}], 1) << "it had landed";
  EXPECT_EQ(asked_[NodeSlot{1}], 0) << "a parity is not data";
  failing_.clear();
  Settle(seconds(1));
  ExpectGathered({0, 1});
}

TEST_F(StripeGathererTest, AllDataTellsAHolderThatItsBlockWasNotWhatItSaid) {
  rotten_ = {NodeSlot{2}};
  Gather(std::make_unique<AllData>());
  Settle(seconds(1));
  ExpectGathered({0, 1});
  EXPECT_EQ(complaints_, std::set{NodeSlot{2}});
  EXPECT_EQ(asked_[NodeSlot{2}], 2);
  EXPECT_EQ(asked_[NodeSlot{3}], 1) << "it had landed";
  EXPECT_EQ(made_, 1) << "of what was not right";
  EXPECT_EQ(log_lines_.Count("chunk 0 of stripe 0 at 0 was not what node 2 sent"), 1U);
}

TEST_F(StripeGathererTest, ZerosThatAreNowhereAreNotRead) {
  members_[2].mutable_slabs(0)->set_data_bytes(0);
  members_[3].mutable_slabs(0)->set_data_bytes(0);
  InTurn([this] {
    coded_ = *CodedVersion::Make(kVersion, coded_->group, kBlockBytes, members_, state_->codes);
  });
  Gather(std::make_unique<AllData>());
  Settle(seconds(1));
  ASSERT_TRUE(gathered_.has_value());
  for (const GatheredChunk& chunk : gathered_->chunks) EXPECT_TRUE(chunk.bytes.empty());
  EXPECT_TRUE(asked_.empty());
}

// --- any k ---

TEST_F(StripeGathererTest, AnyKTakesAnotherChunkForOneThatFails) {
  failing_ = {NodeSlot{3}};
  Gather(ToDecode(/*target=*/0), TilePurpose::kDecoding);
  Settle(seconds(1));
  ExpectGathered({2, 3});
  EXPECT_EQ(asked_[NodeSlot{3}], 1) << "it is avoided";
  EXPECT_EQ(asked_[NodeSlot{0}], 1) << "its own parity has landed at once";
  EXPECT_TRUE(health_->IsBad(NodeSlot{3}, SourceHealth::Kind::kData));
  EXPECT_FALSE(health_->IsBad(NodeSlot{3}, SourceHealth::Kind::kParity));
}

TEST_F(StripeGathererTest, AnyKTakesAnotherChunkForOneThatHasRotted) {
  rotten_ = {NodeSlot{3}};
  Gather(ToDecode(/*target=*/0), TilePurpose::kDecoding);
  Settle(seconds(1));
  ExpectGathered({2, 3});
  EXPECT_TRUE(complaints_.empty());
}

TEST_F(StripeGathererTest, AnyKEndsWithTheLastFailureWhenItsTimeIsUp) {
  failing_ = {NodeSlot{1}, NodeSlot{3}};
  Gather(ToDecode(/*target=*/0, seconds(3)), TilePurpose::kDecoding);
  Settle(seconds(2));
  EXPECT_EQ(ended_, 0);
  Settle(seconds(2));
  EXPECT_EQ(ended_, 1);
  EXPECT_TRUE(absl::IsUnavailable(failure_)) << failure_;
  EXPECT_EQ(made_, 0);
}

TEST_F(StripeGathererTest, WhatIsMadeOfRightChunksAndIsWrongIsMadeOfThemReadAgain) {
  making_ = "decoded, its CRC is another";
  Gather(ToDecode(/*target=*/0), TilePurpose::kDecoding);
  ASSERT_TRUE(scheduler_.RunUntil([this] { return made_ == 1; }, 100000));
  making_.clear();
  Settle(seconds(1));
  ExpectGathered({1, 2});
  EXPECT_EQ(made_, 2);
  EXPECT_EQ(asked_[NodeSlot{3}], 2);
}

// --- tiles, and the end ---

TEST_F(StripeGathererTest, DecodingGoesOnWhileAllOtherTilesAreHeld) {
  TileSet held;
  InTurn([&] {
    tiles_->Take(TilePurpose::kEncoding, 3, kBlockBytes,
                 [&](TileSet set) { held = std::move(set); });
  });
  Gather(std::make_unique<AllData>());
  Settle(seconds(1));
  EXPECT_EQ(ended_, 0);
  EXPECT_EQ(gatherer_->under_way(), 0U);
  EXPECT_TRUE(asked_.empty());

  const std::unique_ptr<StripeGatherer> encoding = std::move(gatherer_);
  Gather(ToDecode(/*target=*/0), TilePurpose::kDecoding);
  Settle(seconds(1));
  ExpectGathered({1, 2});
  held = TileSet();
  Settle(seconds(1));
  EXPECT_EQ(ended_, 2) << "there are tiles for it";
}

TEST_F(StripeGathererTest, CancelledAllEndSoon) {
  failing_ = {NodeSlot{3}};
  Gather(std::make_unique<AllData>());
  // The second waits for tiles.
  InTurn([this] { Want(std::make_unique<AllData>()); });
  Settle(seconds(1));
  EXPECT_EQ(ended_, 0);
  InTurn([this] {
    gatherer_->Cancel();
    EXPECT_EQ(ended_, 0) << "inline";
  });
  Settle(seconds(1));
  EXPECT_EQ(ended_, 2);
  EXPECT_TRUE(absl::IsCancelled(failure_)) << failure_;
  InTurn([this] { Want(std::make_unique<AllData>()); });
  Settle(seconds(1));
  EXPECT_EQ(ended_, 3);
  EXPECT_FALSE(gathered_.has_value());
  EXPECT_EQ(gatherer_->under_way(), 0U);
}

// --- the choice ---

class AnyKTest : public StripeGathererTest {
 protected:
  std::vector<uint32_t> Choose(uint32_t target, const std::vector<uint32_t>& landed = {}) {
    return *AnyK(*health_, target, Time::max()).Choose(*coded_, 0, 0, landed);
  }
  void Lose(NodeSlot slot) {
    health_ = std::make_unique<SourceHealth>(*executor_, *own_peers_, seconds(1),
                                             std::map<Rank, NodeSlot>{{Rank{slot.value}, slot}});
  }
};

// It need not be sent, be it a parity.
TEST_F(AnyKTest, WhatThisNodeHasComesFirst) {
  EXPECT_EQ(coded_->HolderOf(0, 2), own_peers_->self());
  EXPECT_EQ(Choose(1), (std::vector<uint32_t>{2, 0}));
}

TEST_F(AnyKTest, DataComesBeforeParities) {
  InTurn([this] { health_->Avoid(NodeSlot{0}, SourceHealth::Kind::kParity); });
  EXPECT_EQ(Choose(1), (std::vector<uint32_t>{0, 3}));
}

TEST_F(AnyKTest, WhatHasLandedComesFirst) {
  EXPECT_EQ(Choose(1, {3}), (std::vector<uint32_t>{3, 2}));
}

TEST_F(AnyKTest, WhoIsAwayComesLate) {
  job_.present.erase(NodeSlot{2});
  EXPECT_EQ(Choose(1), (std::vector<uint32_t>{2, 3}));
}

TEST_F(AnyKTest, ALostSlabComesLast) {
  Lose(NodeSlot{2});
  InTurn([this] { health_->Avoid(NodeSlot{0}, SourceHealth::Kind::kParity); });
  EXPECT_EQ(Choose(1), (std::vector<uint32_t>{3, 2}));
}

TEST_F(AnyKTest, TheParitiesOfANodeThatHasLostItsSlabComeLate) {
  Lose(NodeSlot{0});
  EXPECT_EQ(Choose(0), (std::vector<uint32_t>{1, 3}));
}

TEST_F(AnyKTest, ASourceThatFailedIsAvoidedForAWhile) {
  InTurn([this] { health_->Avoid(NodeSlot{2}, SourceHealth::Kind::kData); });
  EXPECT_EQ(Choose(1), (std::vector<uint32_t>{2, 3}));
  Settle(seconds(2));
  EXPECT_EQ(Choose(1), (std::vector<uint32_t>{2, 0}));
}

}  // namespace
}  // namespace unreft::smp
