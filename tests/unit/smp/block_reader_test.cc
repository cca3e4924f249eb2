// A block is decoded although most nodes of its group have lost a slab, if the chunks are there.
//
// RS(2,2): bits have turned in a slab on each of the nodes 0, 1 and 2, and their parities are
// right; node 3 has no rank. Node 0 decodes its own slab. Slabs that are lost are being rebuilt:
// who asks for them waits.

#include "tests/unit/smp/block_reader_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;

using BlockReaderTest = BlockReaderFixture;

// They waited for each other: another's lost slab was preferred to parities beside a lost slab.
TEST_F(BlockReaderTest, NodesWhoseSlabsHaveRottedDoNotWaitForEachOther) {
  ExpectRight(DecodeAll());
  EXPECT_TRUE(waiting_.empty()) << "it asked for a slab that is lost";
}

// Parities that are kept for a slow holder may hold all the others until what is decoded is there.
TEST_F(BlockReaderTest, ItDecodesWhileAllTilesForEncodingAreHeld) {
  std::vector<TileSet> held;
  const size_t share = TileSharesOf(state_->options).encoding;
  InTurn([&] {
    for (size_t set = 0; set < share; ++set) {
      state_->tiles->Take(TilePurpose::kEncoding, 4, kBlockBytes,
                          [&](TileSet taken) { held.push_back(std::move(taken)); });
    }
  });
  EXPECT_EQ(held.size(), share);
  ExpectRight(DecodeAll());
}

// It ended the daemon: who was guarded without a rank may not say so of one that is lost only.
TEST_F(BlockReaderTest, ARecordWithoutASlabThatIsThereDecodesNothingOfIt) {
  record_message_.mutable_members(0)->clear_slabs();
  for (const auto& result : DecodeAll(false)) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(result.status())) << result.status();
  }
}

TEST_F(BlockReaderTest, SlabsOfMoreBytesThanThereAreMakeNoGroup) {
  MemberSlab member;
  member.add_slabs()->set_data_bytes(uint64_t{1} << 57);
  const auto slabs = GroupSlabs::Make({1, 1}, uint32_t{1} << 31, {member, MemberSlab()});
  EXPECT_TRUE(absl::IsInvalidArgument(slabs.status())) << slabs.status();
}

TEST_F(BlockReaderTest, ANodeThatHasLostItsParitiesAsWellIsPassedOver) {
  without_parities_ = {NodeSlot{1}};
  ExpectRight(DecodeAll());
  EXPECT_TRUE(waiting_.empty()) << "it asked for a slab that is lost";
}

// The same ones were read again and again.
TEST_F(BlockReaderTest, ANodeWhoseParitiesHaveRottedIsPassedOver) {
  rotten_ = {NodeSlot{1}};
  ExpectRight(DecodeAll());
  EXPECT_TRUE(waiting_.empty()) << "it asked for a slab that is lost";
}

TEST_F(BlockReaderTest, WhatNobodyHasGuardedIsDescribedByTheCatalog) {
  NobodyHasARecord();
  EXPECT_TRUE(absl::IsNotFound(AskForRecord().status()));
  for (uint64_t slot = 0; slot < kNodes; ++slot) {
    const auto record = catalog_->DescribeGroup(NodeSlot{slot});
    ASSERT_TRUE(record);
    EXPECT_EQ(record->group().SerializeAsString(), record_message_.group().SerializeAsString());
    ASSERT_EQ(record->members_size(), static_cast<int>(kNodes));
    for (uint64_t rank = 0; rank < kRanks; ++rank) {
      ASSERT_EQ(record->members(rank).slabs_size(), 1);
      const RankSlab& slab = record->members(rank).slabs(0);
      EXPECT_EQ(slab.rank(), rank);
      EXPECT_EQ(slab.generation(), 5 + rank);
      EXPECT_EQ(slab.data_bytes(), kBlocks * kBlockBytes);
    }
    EXPECT_EQ(record->members(kRanks).slabs_size(), 0);
    // Copies of the manifests of the two members before it.
    ASSERT_EQ(record->descriptions_size(), 2);
    for (const MemberDescription& description : record->descriptions()) {
      EXPECT_NE(description.slot(), slot);
      EXPECT_EQ(description.slabs_size(), description.slot() < kRanks ? 1 : 0);
    }
  }
}

TEST_F(BlockReaderTest, WhoDoesNotAnswerMayHaveARecord) {
  NobodyHasARecord();
  record_refusals_[NodeSlot{2}] = absl::UnavailableError("it starts");
  EXPECT_TRUE(absl::IsDeadlineExceeded(AskForRecord().status()));
  record_refusals_.erase(NodeSlot{2});
  const auto record = AskForRecord();
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ((*record)->members_size(), static_cast<int>(kNodes));
}

TEST_F(BlockReaderTest, WhoIsLostIsNotAsked) {
  NobodyHasARecord();
  record_refusals_[NodeSlot{3}] = absl::UnavailableError("it is away");
  ViewMember& lost = *job_.view.value.add_members();
  lost.set_slot(3);
  lost.set_lost(true);
  EXPECT_TRUE(absl::IsNotFound(AskForRecord().status()));
}

// Whoever said so last when time was up was taken for all.
TEST_F(BlockReaderTest, WhenTimeIsUpWhoDidNotAnswerMayHaveARecord) {
  NobodyHasARecord();
  record_refusals_[NodeSlot{2}] = absl::UnavailableError("it starts");
  for (int retries = 0; retries < 3; ++retries) {
    state_->options.read_timeout = retries * options_.read_retry;
    const absl::Status status = AskForRecord().status();
    EXPECT_FALSE(status.ok() || absl::IsNotFound(status)) << status;
  }
}

// One of three had said that it has none, and that was taken for the answer of all.
TEST_F(BlockReaderTest, ASearchThatIsCancelledTellsNothingOfTheOthers) {
  NobodyHasARecord();
  on_record_asked_ = [this](NodeSlot) {
    executor_->Deliver(Duration{}, [this] { reader_->Cancel(); });
  };
  EXPECT_TRUE(absl::IsCancelled(AskForRecord().status()));
}

// With fewer to be asked, those who had been asked twice were as many as all.
TEST_F(BlockReaderTest, WhoIsLostMeanwhileDoesNotCountForWhoWasNotAsked) {
  NobodyHasARecord();
  record_refusals_.erase(NodeSlot{3});
  on_record_asked_ = [this](NodeSlot slot) {
    if (slot != NodeSlot{2}) return;
    ViewMember& lost = *job_.view.value.add_members();
    lost.set_slot(1);
    lost.set_lost(true);
  };
  const auto record = AskForRecord();
  EXPECT_TRUE(record.ok()) << record.status();
}

// --- what another node decodes for all ---

class BlockReaderDecodedTest : public BlockReaderTest {
 protected:
  // Node 0 reads all of the slab that node 1 had.
  void ReadLost() {
    LoseNodeOne([this] {
      for (uint64_t block = 0; block < kBlocks; ++block) Read(Rank{1}, block);
    });
  }
  void Read(Rank rank, uint64_t block) {
    auto into = std::make_shared<std::vector<std::byte>>(kBlockBytes);
    reader_->Read(rank, block, *into, into, [this, into, rank, block](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      const auto right = BlockOf(rank, block);
      EXPECT_TRUE(std::equal(right.begin(), right.end(), into->begin()));
      ++read_;
    });
  }
  uint64_t DecodedHere() {
    uint64_t here = 0;
    for (uint64_t block = 0; block < kBlocks; ++block) {
      if (reader_->DecoderOf(Rank{1}, block) == NodeSlot{0}) ++here;
    }
    return here;
  }

  uint64_t read_ = 0;
};

TEST_F(BlockReaderDecodedTest, ALostBlockIsReadFromTheOneThatDecodesItForAll) {
  ReadLost();
  EXPECT_EQ(read_, kBlocks);
  const uint64_t here = DecodedHere();
  EXPECT_LT(here, kBlocks);
  EXPECT_EQ(decoders_asked_.size(), kBlocks - here);
  for (const auto& [slot, block] : decoders_asked_) {
    EXPECT_EQ(reader_->DecoderOf(Rank{1}, block), slot);
    EXPECT_NE(slot, NodeSlot{1}) << "it has lost its memory";
  }
}

TEST_F(BlockReaderDecodedTest, WhoDoesNotDecodeForAllIsNotAskedForTheNextBlocks) {
  for (const uint64_t slot : {2, 3}) {
    decoded_refusals_[NodeSlot{slot}] = absl::InvalidArgumentError("a kind that is not known");
  }
  ReadLost();
  EXPECT_EQ(read_, kBlocks);
  ASSERT_FALSE(decoders_asked_.empty());
  const uint64_t block = decoders_asked_.front().second;
  decoders_asked_.clear();
  for (int time = 0; time < 3; ++time) {
    InTurn([&] { Read(Rank{1}, block); });
    Settle(options_.read_retry);
  }
  EXPECT_EQ(decoders_asked_.size(), 1U);
  Settle(seconds(1));
  EXPECT_EQ(read_, kBlocks + 3);
}

TEST_F(BlockReaderDecodedTest, WhoIsNotReadyYetIsAskedAgain) {
  for (const uint64_t slot : {2, 3}) {
    decoded_refusals_[NodeSlot{slot}] = absl::NotFoundError("it restores nothing yet");
  }
  InTurn([&] { executor_->After(3 * options_.read_retry, [this] { decoded_refusals_.clear(); }); });
  ReadLost();
  EXPECT_EQ(read_, kBlocks);
  EXPECT_GT(decoders_asked_.size(), kBlocks - DecodedHere());
  // Node 0 has decoded no more than its own.
  EXPECT_LE(parities_given_, 2 * DecodedHere());
}

TEST_F(BlockReaderDecodedTest, WhoNeverIsReadyIsDoneWithout) {
  for (const uint64_t slot : {2, 3}) {
    decoded_refusals_[NodeSlot{slot}] = absl::NotFoundError("it restores nothing yet");
  }
  ReadLost();
  EXPECT_EQ(read_, kBlocks);
}

TEST_F(BlockReaderDecodedTest, WhatWasDecodedWrongIsDecodedHere) {
  rotten_ = {NodeSlot{2}};
  ReadLost();
  EXPECT_EQ(read_, kBlocks);
}

// It was decoded of k others, which are no less busy.
TEST_F(BlockReaderDecodedTest, ABusyHomeIsAskedAgain) {
  LoseNodeOne([this] {
    data_refusals_[NodeSlot{2}] = absl::ResourceExhaustedError("1000 reads wait already");
    executor_->After(3 * options_.read_retry, [this] { data_refusals_.erase(NodeSlot{2}); });
    Read(Rank{2}, 0);
  });
  EXPECT_EQ(read_, 1U);
  EXPECT_GT(data_refused_, 1U);
  EXPECT_EQ(parities_given_, 0U);
  EXPECT_TRUE(decoders_asked_.empty());
}

}  // namespace
}  // namespace unreft::smp
