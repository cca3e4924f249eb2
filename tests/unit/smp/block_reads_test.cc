// Blocks that a node reads: from another by the transport, its own out of its memory.

#include "smp/protect/block_reads.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/smp/group_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr NodeSlot kOwn{0};
constexpr NodeSlot kOther{1};

class BlockReadsTest : public GroupFixture {
 protected:
  BlockReadsTest() : GroupFixture(1, 1) {
    Random random(7);
    block_ = RandomBytes(random, kBlockBytes);
    StartOther(kOther, [this](Peers& peers) {
      peers.ServeReads([this](NodeSlot, const std::string&, uint64_t, auto done) {
        ++asked_other_;
        waiting_.push_back(std::move(done));
        if (answers_) Answer();
      });
    });
    StartOwn();
    // Whoever asks node 0 by the transport has gone a way around.
    InTurn([this] {
      own_peers_->ServeReads([this](NodeSlot, const std::string&, uint64_t, auto done) {
        ++asked_by_transport_;
        done(absl::InternalError("by the transport"));
      });
      reads_ = std::make_unique<BlockReads>(
          *executor_, pool_, *own_peers_, seconds(2),
          [this](const ReadRequest& request, uint64_t bytes, auto done) {
            EXPECT_EQ(request.first_block(), 3U);
            EXPECT_EQ(bytes, kBlockBytes);
            waiting_.push_back(std::move(done));
            if (answers_) Answer();
          });
    });
  }
  ~BlockReadsTest() override {
    InTurn([this] { reads_.reset(); });
  }

  void Answer() {
    ReadSource source = SourceOf(block_);
    if (header_) source.header = *header_;
    source.parts.clear();
    const std::span<const std::byte> block(block_);
    source.parts = {block.first(20), block.subspan(20)};
    if (is_short_) source.parts.pop_back();
    source.hold = hold_;
    waiting_.front()(std::move(source));
    waiting_.pop_back();
  }
  void Read(NodeSlot from) {
    InTurn([&] { BeginToRead(from); });
    Settle(seconds(1));
  }
  void BeginToRead(NodeSlot from) {
    ReadRequest request;
    request.set_first_block(3);
    request.set_blocks(1);
    into_.assign(kBlockBytes, std::byte{0});
    reads_->Read(from, request, into_, [this](absl::StatusOr<ReadHeader> header) {
      EXPECT_FALSE(ended_.has_value()) << "it has ended twice";
      ended_ = header.status();
      if (header.ok()) crc_ = header->crcs(0);
    });
    EXPECT_FALSE(ended_.has_value()) << "inline";
  }
  void ExpectRead() {
    ASSERT_EQ(ended_, absl::OkStatus());
    EXPECT_EQ(into_, block_);
    EXPECT_EQ(crc_, Crc32c(block_));
  }

  std::vector<std::byte> block_;
  std::vector<std::byte> into_;
  bool answers_ = true;
  bool is_short_ = false;
  std::optional<std::string> header_;
  std::shared_ptr<const void> hold_;
  std::vector<SlabSource::ReadDone> waiting_;
  int asked_other_ = 0;
  int asked_by_transport_ = 0;
  std::unique_ptr<BlockReads> reads_;
  std::optional<absl::Status> ended_;
  uint32_t crc_ = 0;
};

TEST_F(BlockReadsTest, AnotherNodesBlockComesByTheTransport) {
  Read(kOther);
  ExpectRead();
  EXPECT_EQ(asked_other_, 1);
}

TEST_F(BlockReadsTest, AnOwnBlockDoesNot) {
  Read(kOwn);
  ExpectRead();
  EXPECT_EQ(asked_by_transport_, 0);
}

TEST_F(BlockReadsTest, AnOwnSourceIsHeldUntilTheBlockHasLanded) {
  hold_ = std::make_shared<int>();
  InTurn([&] {
    BeginToRead(kOwn);
    EXPECT_EQ(hold_.use_count(), 2);
  });
  Settle(seconds(1));
  ExpectRead();
  EXPECT_EQ(hold_.use_count(), 1);
}

TEST_F(BlockReadsTest, AnOwnBlockThatIsNotThereYetIsWaitedFor) {
  answers_ = false;
  Read(kOwn);
  EXPECT_FALSE(ended_.has_value());
  InTurn([this] { Answer(); });
  Settle();
  ExpectRead();
}

TEST_F(BlockReadsTest, ItIsNotWaitedForBeyondTheTimeout) {
  answers_ = false;
  Read(kOwn);
  Settle(seconds(2));
  ASSERT_TRUE(ended_.has_value());
  EXPECT_TRUE(absl::IsDeadlineExceeded(*ended_)) << *ended_;
  // What comes then touches nothing any more.
  InTurn([this] { Answer(); });
  Settle();
  EXPECT_EQ(into_, std::vector<std::byte>(kBlockBytes));
}

TEST_F(BlockReadsTest, CancelledAllEndSoon) {
  answers_ = false;
  for (const NodeSlot from : {kOwn, kOther}) {
    ended_.reset();
    Read(from);
    EXPECT_FALSE(ended_.has_value());
    InTurn([this] {
      reads_->Cancel();
      EXPECT_FALSE(ended_.has_value()) << "inline";
    });
    Settle(milliseconds(100));
    ASSERT_TRUE(ended_.has_value());
    EXPECT_TRUE(absl::IsCancelled(*ended_)) << *ended_;
    waiting_.clear();
  }
}

TEST_F(BlockReadsTest, GoneItCallsNobodyBack) {
  answers_ = false;
  Read(kOwn);
  InTurn([this] {
    reads_.reset();
    Answer();
  });
  Settle(seconds(5));
  EXPECT_FALSE(ended_.has_value());
}

TEST_F(BlockReadsTest, AHeaderOfOneBlockNamesOneCrc) {
  header_ = "";
  for (const NodeSlot from : {kOwn, kOther}) {
    ended_.reset();
    Read(from);
    ASSERT_TRUE(ended_.has_value());
    EXPECT_TRUE(absl::IsDataLoss(*ended_)) << *ended_;
  }
}

TEST_F(BlockReadsTest, AnOwnSourceOfFewerBytesIsRefused) {
  is_short_ = true;
  Read(kOwn);
  ASSERT_TRUE(ended_.has_value());
  EXPECT_TRUE(absl::IsDataLoss(*ended_)) << *ended_;
}

}  // namespace
}  // namespace unreft::smp
