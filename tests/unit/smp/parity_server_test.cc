// What the aggregator of a stripe keeps of its parities, and for how long.
//
// RS(1,2): node 0 aggregates stripe 0, node 1 is to hold parity 1 of it, node 2 has the data.

#include "smp/protect/parity_server.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "ec/code_cache.h"
#include "smp/job/cluster_records.h"
#include "tests/unit/smp/group_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;

constexpr uint64_t kPositions = 4;
constexpr uint32_t kParity = 1;  // node 1's

class ParityServerTest : public GroupFixture {
 protected:
  ParityServerTest() : GroupFixture(1, 2) {
    StartOther(NodeSlot{2}, [this](Peers& peers) {
      peers.ServeReads([this](NodeSlot, const std::string&, uint64_t, auto done) {
        ++reads_;
        done(SourceOf(block_));
      });
    });
    StartOwn();
    const GroupView group = *FindGroup(job_.view.value.groups(), NodeSlot{0});
    std::vector<MemberSlab> members(group.members());
    members[2].add_slabs()->set_data_bytes(kPositions * kBlockBytes);
    coded_ = *CodedVersion::Make(kVersion, group, kBlockBytes, members, state_->codes);
    task_ = std::make_unique<GuardTask>(GuardTask{
        {*executor_, pool_, *own_peers_, log_, *state_->tiles}, options_, coded_, guard_});
    InTurn([&] {
      activity_ = std::make_unique<GuardActivity>(*task_, [this] { ++looks_; });
      server_ = std::make_unique<ParityServer>(*task_, *activity_, /*is_encoded=*/false);
    });
  }
  ~ParityServerTest() override {
    InTurn([&] {
      server_.reset();
      activity_.reset();
    });
  }

  // Node 1 asks for its parity of the position.
  void Ask(uint64_t position) { Ask(position, coded_->coding); }
  void Ask(uint64_t position, uint64_t coding) {
    BeginToAsk(position, coding);
    Settle();
  }
  void BeginToAsk(uint64_t position, uint64_t coding) {
    ReadRequest request;
    request.set_parity(kParity);
    request.set_first_block(position);
    request.set_blocks(1);
    request.set_coding(coding);
    answer_.reset();
    InTurn([&] {
      server_->OnRead(request, kBlockBytes, [this](absl::StatusOr<ReadSource> source) {
        answer_ = source.status();
        if (!source.ok()) return;
        EXPECT_TRUE(header_.ParseFromString(source->header));
      });
    });
  }
  // The lane has encoded the position.
  void Encode(uint64_t position) {
    auto encoded = std::make_shared<EncodedPosition>();
    encoded->position = position;
    encoded->parities.assign(2, block_);
    encoded->parity_crcs = {11, 12};
    encoded->input_crcs = {21};
    InTurn([&] { server_->OnEncoded(encoded); });
  }
  void BePatient(bool is_idle) {
    InTurn([&] { server_->BePatient(is_idle); });
  }

  Guard guard_;
  std::vector<std::byte> block_ = std::vector<std::byte>(kBlockBytes, std::byte{5});
  int reads_ = 0;  // of node 2's blocks
  int looks_ = 0;
  std::shared_ptr<const CodedVersion> coded_;
  std::unique_ptr<GuardTask> task_;
  std::unique_ptr<GuardActivity> activity_;
  std::unique_ptr<ParityServer> server_;
  std::optional<absl::Status> answer_;
  ReadHeader header_;
};

TEST_F(ParityServerTest, WhoAsksBeforeItIsEncodedWaits) {
  Ask(0);
  EXPECT_FALSE(answer_.has_value());
  Encode(0);
  EXPECT_EQ(answer_, absl::OkStatus());
  EXPECT_EQ(header_.crcs(0), 12U);
  EXPECT_EQ(header_.input_crcs(0), 21U);
  EXPECT_EQ(server_->kept(), 0U);
  EXPECT_EQ(reads_, 0);
}

TEST_F(ParityServerTest, ItIsKeptUntilItIsTaken) {
  Encode(0);
  EXPECT_EQ(server_->kept(), 1U);
  Ask(0);
  EXPECT_EQ(answer_, absl::OkStatus());
  EXPECT_EQ(server_->kept(), 0U);
}

TEST_F(ParityServerTest, WhatIsGoneIsEncodedOnceMore) {
  Encode(0);
  Ask(0);
  Ask(0);
  EXPECT_EQ(answer_, absl::OkStatus());
  EXPECT_EQ(header_.input_crcs(0), Crc32c(block_));
  EXPECT_EQ(reads_, 1);
  EXPECT_EQ(server_->kept(), 0U);
  EXPECT_TRUE(activity_->is_idle());
}

// The guard of a version that is complete may not verify, and is removed then.
TEST_F(ParityServerTest, EncodingOnceMoreDoesNotTouchTheGuard) {
  guard_.segment = *segments_.Create("/unreft.job.0.guard", 4096);
  Encode(0);
  Ask(0);
  BeginToAsk(0, coded_->coding);
  ASSERT_TRUE(scheduler_.RunUntil([&] { return pool_.pending() > 0; }, 100000));
  EXPECT_EQ(guard_.segment.use_count(), 1);
  Settle();
  EXPECT_EQ(answer_, absl::OkStatus());
}

TEST_F(ParityServerTest, WhoNeverAsksIsWaitedForAWhile) {
  Encode(0);
  BePatient(/*is_idle=*/false);
  Settle(seconds(10));
  EXPECT_EQ(server_->kept(), 1U) << "more is being encoded";
  BePatient(/*is_idle=*/true);
  EXPECT_EQ(server_->kept(), 1U);
  Settle(seconds(10));
  EXPECT_EQ(server_->kept(), 0U);
  EXPECT_EQ(looks_, 1) << "there is room for more";
}

TEST_F(ParityServerTest, NothingIsKeptForALostMember) {
  Encode(0);
  InTurn([&] { server_->DoWithout(1); });
  EXPECT_EQ(server_->kept(), 0U);
}

TEST_F(ParityServerTest, OtherSlabsParitiesAreNotHandedOn) {
  Encode(0);
  Ask(0, coded_->coding + 1);
  ASSERT_TRUE(answer_.has_value());
  EXPECT_TRUE(absl::IsNotFound(*answer_)) << *answer_;
  Ask(kPositions);
  ASSERT_TRUE(answer_.has_value());
  EXPECT_TRUE(absl::IsInvalidArgument(*answer_)) << *answer_;
  EXPECT_EQ(server_->kept(), 1U);
}

TEST_F(ParityServerTest, ClosedItRefusesWhoWaitsAndWhoAsks) {
  Ask(0);
  InTurn([&] { server_->Close(); });
  ASSERT_TRUE(answer_.has_value());
  EXPECT_TRUE(absl::IsNotFound(*answer_)) << *answer_;
  Ask(1);
  ASSERT_TRUE(answer_.has_value());
  EXPECT_TRUE(absl::IsNotFound(*answer_)) << *answer_;
  Encode(0);
  EXPECT_EQ(server_->kept(), 0U);
}

}  // namespace
}  // namespace unreft::smp
