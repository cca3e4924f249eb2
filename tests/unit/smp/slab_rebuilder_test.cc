// A lost slab is decoded, however often its sources fail meanwhile; so is a block that has rotted.
//
// RS(1,1): node 0 is new in its slot and rebuilds the slab of rank 0, of which node 1 has the
// parities, the catalog's part and the group's record.

#include "smp/restore/slab_rebuilder.h"

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ec/isal_code.h"
#include "smp/job/cluster_records.h"
#include "smp/restore/block_reader.h"
#include "smp/restore/restore_catalog.h"
#include "tests/unit/layout_testing.h"
#include "tests/unit/smp/group_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;

constexpr uint64_t kBlocks = 5;

class SlabRebuilderTest : public GroupFixture {
 protected:
  SlabRebuilderTest() : GroupFixture(1, 1) {
    options_.read_timeout = seconds(5);
    Random random(7);
    data_ = RandomBytes(random, kBlocks * kBlockBytes);
    parity_.resize(data_.size());
    const std::span<const std::byte> data(data_);
    const std::span<std::byte> parity(parity_);
    (*ec::IsalCode::Make({1, 1}))->Encode({&data, 1}, {&parity, 1});
    StartOther(NodeSlot{1}, [this](Peers& peers) { ServeOther(peers); });
    StartOwn([this] {
      if (rebuilder_ != nullptr) rebuilder_->RunRules();
    });
  }
  ~SlabRebuilderTest() override {
    InTurn([&] {
      rebuilder_.reset();
      reader_.reset();
      catalog_.reset();
    });
  }

  // Node 1.
  void ServeOther(Peers& peers) {
    peers.Answer<MetaRequest, MetaReply>("meta", [this](NodeSlot, auto, auto done) {
      MetaReply reply;
      SlabDescription& slab = *reply.add_slabs();
      slab = DescriptionOf(Rank{0}, world_, Whole("w", {kBlocks * kBlockBytes / 4}), data_);
      if (change_) change_(slab);
      if (world_ == 2) {
        *reply.add_slabs() =
            DescriptionOf(Rank{1}, world_, Whole("v", {kBlocks * kBlockBytes / 4}), data_);
      }
      done(std::move(reply));
    });
    peers.Answer<MetaRequest, GuardRecord>("record", [this](NodeSlot, auto, auto done) {
      GuardRecord record;
      *record.mutable_group() = group();
      MemberSlab& member = *record.add_members();
      for (uint64_t rank = 0; rank < world_; ++rank) {
        RankSlab& slab = *member.add_slabs();
        slab.set_rank(rank);
        slab.set_data_bytes(data_.size());
      }
      record.add_members();
      done(std::move(record));
    });
    peers.ServeReads([this](NodeSlot, const std::string& body, uint64_t, auto done) {
      ReadRequest request;
      UNREFT_CHECK(request.ParseFromString(body));
      ++asked_;
      if (failures_ > 0) {
        --failures_;
        return done(absl::NotFoundError("its guard is not complete yet"));
      }
      done(SourceOf(std::span(parity_).subspan(request.first_block() * kBlockBytes, kBlockBytes)));
    });
  }

  // `then` runs as soon as blocks can be read.
  void Restore(std::function<void()> then) {
    JobDecision decision;
    decision.kind = DecisionKind::kRestored;
    decision.version = kVersion;
    decision.holders = {{NodeSlot{0}, {Rank{0}}, true}};
    if (world_ == 2) decision.holders.push_back({NodeSlot{1}, {Rank{1}}, false});
    InTurn([&] {
      catalog_ = std::make_unique<RestoreCatalog>(
          *state_, *own_peers_, job_, decision, std::nullopt, [this, then] {
            // What asks node 0 for the slab waits, as of one that is being rebuilt.
            reader_ =
                std::make_unique<BlockReader>(*state_, *own_peers_, job_, *catalog_,
                                              [this](const ReadRequest&, uint64_t, auto done) {
                                                asked_itself_.push_back(std::move(done));
                                              });
            then();
          });
    });
  }
  void Rebuild() {
    Restore([this] {
      rebuilder_ =
          std::make_unique<SlabRebuilder>(*state_, *reader_, *catalog_, [this] { done_ = true; });
    });
  }
  void ExpectRebuilt() {
    ASSERT_TRUE(done_);
    EXPECT_TRUE(asked_itself_.empty()) << "it asked for what it is rebuilding";
    const std::vector<Slot*> sealed = state_->slots->Sealed(kVersion);
    ASSERT_EQ(sealed.size(), 1U);
    const auto bytes = sealed[0]->view->data().first(data_.size());
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), data_.begin(), data_.end()));
  }

  std::vector<std::byte> data_;
  std::vector<std::byte> parity_;
  std::unique_ptr<RestoreCatalog> catalog_;
  std::unique_ptr<BlockReader> reader_;
  std::unique_ptr<SlabRebuilder> rebuilder_;
  std::function<void(SlabDescription&)> change_;  // of what node 1 says of the slab
  uint64_t world_ = 1;  // with 2, rank 1 was on node 0 when that was encoded, and is on node 1 now
  uint64_t asked_ = 0;  // reads of node 1
  uint64_t failures_ = 0;  // that node 1 answers with, first
  std::vector<absl::AnyInvocable<void(absl::StatusOr<ReadSource>)>> asked_itself_;
  bool done_ = false;
};

TEST_F(SlabRebuilderTest, DecodesALostSlab) {
  Rebuild();
  Settle(seconds(1));
  ExpectRebuilt();
  EXPECT_EQ(asked_, kBlocks);
  EXPECT_EQ(state_->slots->All().size(), 1U) << "what its rank captures is asked for by that";
}

// As where both came out of a durable copy.
TEST_F(SlabRebuilderTest, AnotherSlabOfTheNodeThatLiesElsewhereByNowIsNoHindrance) {
  world_ = 2;
  Rebuild();
  Settle(seconds(1));
  ExpectRebuilt();
}

// They were written beyond their region.
TEST_F(SlabRebuilderTest, ExtrasThatAreMoreThanTheManifestSaysAreNotTaken) {
  change_ = [](SlabDescription& slab) {
    slab.set_extras(std::string(1 << 20, 'x'));
    slab.set_extras_crc(Crc32c(std::as_bytes(std::span(slab.extras()))));
  };
  Rebuild();
  Settle(seconds(1));
  EXPECT_FALSE(done_);
  EXPECT_TRUE(state_->slots->Sealed(kVersion).empty());
  change_ = nullptr;
  Settle(seconds(20));
  ExpectRebuilt();
}

TEST_F(SlabRebuilderTest, ASlabInBlocksOfAnotherSizeIsRefused) {
  change_ = [this](SlabDescription& slab) {
    layout::SlotManifest manifest = *layout::DecodeManifest(slab.manifest());
    manifest.block_bytes = 2 * kBlockBytes;
    slab.set_manifest(layout::EncodeManifest(manifest));
    slab.set_manifest_crc(Crc32c(std::as_bytes(std::span(slab.manifest()))));
    slab.set_crc_table(std::string((kBlocks + 1) / 2 * sizeof(uint32_t), '\0'));
    slab.set_crc_table_crc(Crc32c(std::as_bytes(std::span(slab.crc_table()))));
  };
  Rebuild();
  Settle(seconds(1));
  EXPECT_FALSE(done_);
  EXPECT_TRUE(state_->slots->All().empty());
  EXPECT_EQ(log_lines_.Count("saved in blocks of 128 bytes, this node has blocks of 64"), 1U);
}

// The second try asked the block's home, which is the node that rebuilds it, and waited for itself.
TEST_F(SlabRebuilderTest, AfterAFailedReadItDecodesAgainAndDoesNotAskItself) {
  failures_ = 3;
  Rebuild();
  Settle(seconds(2));
  ExpectRebuilt();
  EXPECT_EQ(asked_, kBlocks + 3);
}

// A block whose time had run out was never tried again.
TEST_F(SlabRebuilderTest, ASourceThatComesBackAfterTheDeadlineIsWaitedFor) {
  failures_ = UINT64_MAX;
  Rebuild();
  Settle(3 * options_.read_timeout);
  EXPECT_FALSE(done_);
  EXPECT_GT(asked_, 3 * kBlocks);
  failures_ = 0;
  Settle(seconds(2));
  ExpectRebuilt();
}

// It was read from its home again and again until its deadline.
TEST_F(SlabRebuilderTest, ABlockThatHasRottedAtItsHomeIsDecoded) {
  auto into = std::make_shared<std::vector<std::byte>>(kBlockBytes);
  std::optional<absl::Status> read;
  Restore([&] {
    reader_->Read(Rank{0}, 2, *into, into, [&](absl::Status status) { read = std::move(status); });
  });
  Settle(seconds(1));
  ASSERT_EQ(asked_itself_.size(), 1U);
  EXPECT_EQ(asked_, 0U);
  const std::span<const std::byte> right = std::span(data_).subspan(2 * kBlockBytes, kBlockBytes);
  std::vector<std::byte> rotted(right.begin(), right.end());
  rotted[17] ^= std::byte{1};
  InTurn([&] {
    ReadHeader header;
    header.add_crcs(Crc32c(right));
    ReadSource source;
    source.header = header.SerializeAsString();
    source.parts.push_back(rotted);
    asked_itself_[0](std::move(source));
  });
  Settle(seconds(1));
  EXPECT_EQ(read, absl::OkStatus());
  EXPECT_TRUE(std::equal(into->begin(), into->end(), right.begin(), right.end()));
  EXPECT_EQ(asked_, 1U);
  EXPECT_EQ(asked_itself_.size(), 1U);
}

}  // namespace
}  // namespace unreft::smp
