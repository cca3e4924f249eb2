// A block is decoded although most nodes of its group have lost a slab, if the chunks are there.
//
// RS(2,2): bits have turned in a slab on each of the nodes 0, 1 and 2, and their parities are
// right; node 3 has no rank. Node 0 decodes its own slab. Slabs that are lost are being rebuilt:
// who asks for them waits.

#include "smp/restore/block_reader.h"

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ec/isal_code.h"
#include "smp/restore/restore_catalog.h"
#include "tests/unit/layout_testing.h"
#include "tests/unit/smp/group_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;

constexpr uint64_t kNodes = 4;
constexpr uint64_t kRanks = 3;
constexpr uint64_t kBlocks = 4;

class BlockReaderTest : public GroupFixture {
 protected:
  using ReadDone = absl::AnyInvocable<void(absl::StatusOr<ReadSource>)>;

  BlockReaderTest() : GroupFixture(2, 2) {
    options_.read_timeout = seconds(5);
    *record_message_.mutable_group() = group();
    for (uint64_t slot = 0; slot < kNodes; ++slot) {
      MemberSlab& member = *record_message_.add_members();
      if (slot >= kRanks) continue;
      RankSlab& slab = *member.add_slabs();
      slab.set_rank(slot);
      slab.set_data_bytes(kBlocks * kBlockBytes);
    }
    Random random(7);
    for (auto& data : data_) data = RandomBytes(random, kBlocks * kBlockBytes);
    const auto& members = record_message_.members();
    slabs_ = *GroupSlabs::Make({2, 2}, kBlockBytes, {members.begin(), members.end()});
    StartOwn();
    InTurn([&] { Serve(NodeSlot{0}, *own_peers_); });
    for (uint64_t slot = 1; slot < kNodes; ++slot) {
      StartOther(NodeSlot{slot}, [this, slot](Peers& peers) { Serve(NodeSlot{slot}, peers); });
    }
  }
  ~BlockReaderTest() override {
    InTurn([&] {
      reader_.reset();
      catalog_.reset();
    });
  }

  void Serve(NodeSlot slot, Peers& peers) {
    peers.Answer<MetaRequest, MetaReply>("meta", [this](NodeSlot, auto request, auto done) {
      MetaReply reply;
      *reply.add_slabs() = DescriptionOf(Rank{request.slot()});
      done(std::move(reply));
    });
    peers.Answer<MetaRequest, GuardRecord>("record", [this, slot](NodeSlot, auto, auto done) {
      if (on_record_asked_) on_record_asked_(slot);
      const auto refusal = record_refusals_.find(slot);
      if (refusal != record_refusals_.end()) return done(refusal->second);
      done(GuardRecord(record_message_));
    });
    peers.ServeReads([this, slot](NodeSlot, const std::string& body, uint64_t, auto done) {
      ReadRequest request;
      UNREFT_CHECK(request.ParseFromString(body));
      Give(slot, request, std::move(done));
    });
  }
  void Give(NodeSlot slot, const ReadRequest& request, ReadDone done) {
    if (request.kind() == ReadRequest::DATA) return waiting_.push_back(std::move(done));
    if (without_parities_.contains(slot)) {
      return done(absl::NotFoundError("it has no parities"));
    }
    const std::span<const std::byte> block =
        *sent_.emplace_back(std::make_unique<std::vector<std::byte>>(
            ParityOf(request.stripe(), request.parity(), request.first_block())));
    ReadSource source = SourceOf(block);
    if (rotten_.contains(slot)) (*sent_.back())[0] ^= std::byte{1};
    done(std::move(source));
  }
  void MakeReader() {
    reader_ =
        std::make_unique<BlockReader>(*state_, *own_peers_, job_, *catalog_,
                                      [this](const ReadRequest& request, uint64_t, ReadDone done) {
                                        Give(NodeSlot{0}, request, std::move(done));
                                      });
  }
  SlabDescription DescriptionOf(Rank rank) const {
    const std::vector<std::byte>& data = data_[rank.value];
    SlabDescription description = GroupFixture::DescriptionOf(
        rank, kRanks, Whole(fmt::format("w{}", rank), {data.size() / 4}), data);
    description.set_generation(5 + rank.value);
    return description;
  }
  std::span<const std::byte> BlockOf(Rank rank, uint64_t block) const {
    return std::span(data_[rank.value]).subspan(block * kBlockBytes, kBlockBytes);
  }
  std::vector<std::byte> ParityOf(uint32_t stripe, uint32_t parity, uint64_t position) const {
    std::vector<std::span<const std::byte>> data;
    for (uint32_t chunk = 0; chunk < 2; ++chunk) {
      const std::optional<uint64_t> block = slabs_->layout().BlockAt(stripe, chunk, position);
      if (!block) {
        data.emplace_back();
        continue;
      }
      const RankBlock at = slabs_->BlockOf(slabs_->layout().MemberOf(stripe, chunk), *block);
      data.push_back(BlockOf(at.rank, at.block));
    }
    std::vector<std::byte> parities[2] = {std::vector<std::byte>(kBlockBytes),
                                          std::vector<std::byte>(kBlockBytes)};
    const std::span<std::byte> into[] = {parities[0], parities[1]};
    (*ec::IsalCode::Make({2, 2}))->Encode(data, into);
    return parities[parity];
  }

  // Node 0 decodes all of its slab; each block's bytes, or why not.
  std::vector<absl::StatusOr<std::vector<std::byte>>> DecodeAll(bool lost = true) {
    std::vector<absl::StatusOr<std::vector<std::byte>>> results(
        kBlocks, absl::DeadlineExceededError("it still waits"));
    JobDecision decision;
    decision.kind = DecisionKind::kRestored;
    decision.version = kVersion;
    for (uint64_t slot = 0; slot < kRanks; ++slot) {
      decision.holders.push_back({NodeSlot{slot}, {Rank{slot}}, lost});
    }
    InTurn([&] {
      catalog_ =
          std::make_unique<RestoreCatalog>(*state_, *own_peers_, job_, decision, [this, &results] {
            MakeReader();
            for (uint64_t block = 0; block < kBlocks; ++block) {
              auto into = std::make_shared<std::vector<std::byte>>(kBlockBytes);
              reader_->Decode(Rank{0}, block, *into, into,
                              [into, &result = results[block]](const absl::Status& status) {
                                if (status.ok()) {
                                  result = *into;
                                } else {
                                  result = status;
                                }
                              });
            }
          });
    });
    Settle(seconds(4));
    return results;
  }

  // What node 0 learns of its group within a second, though it would ask for five.
  absl::StatusOr<std::shared_ptr<const GuardRecord>> AskForRecord() {
    absl::StatusOr<std::shared_ptr<const GuardRecord>> result =
        absl::DeadlineExceededError("it still asks");
    JobDecision decision;
    decision.kind = DecisionKind::kRestored;
    decision.version = kVersion;
    for (uint64_t slot = 0; slot < kRanks; ++slot) {
      decision.holders.push_back({NodeSlot{slot}, {Rank{slot}}, false});
    }
    InTurn([&] {
      reader_.reset();
      catalog_ =
          std::make_unique<RestoreCatalog>(*state_, *own_peers_, job_, decision, [this, &result] {
            MakeReader();
            reader_->GroupRecordOf(NodeSlot{0}, [&result](auto record) { result = record; });
          });
    });
    Settle(seconds(1));
    return result;
  }
  void NobodyHasARecord() {
    for (uint64_t slot = 0; slot < kNodes; ++slot) {
      record_refusals_[NodeSlot{slot}] = absl::NotFoundError("it has no guard");
    }
  }

  void ExpectRight(const std::vector<absl::StatusOr<std::vector<std::byte>>>& results) const {
    for (uint64_t block = 0; block < kBlocks; ++block) {
      ASSERT_EQ(results[block].status(), absl::OkStatus()) << "block " << block;
      const auto right = BlockOf(Rank{0}, block);
      EXPECT_TRUE(std::equal(right.begin(), right.end(), results[block]->begin()));
    }
  }

  GuardRecord record_message_;
  std::vector<std::byte> data_[kRanks];
  std::optional<GroupSlabs> slabs_;
  std::unique_ptr<RestoreCatalog> catalog_;
  std::unique_ptr<BlockReader> reader_;
  std::set<NodeSlot> without_parities_;
  std::set<NodeSlot> rotten_;  // their parities are not what they say
  std::map<NodeSlot, absl::Status> record_refusals_;
  std::function<void(NodeSlot)> on_record_asked_;
  std::vector<ReadDone> waiting_;  // for a lost slab
  std::vector<std::unique_ptr<std::vector<std::byte>>> sent_;
};

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

}  // namespace
}  // namespace unreft::smp
