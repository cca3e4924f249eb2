// This node decodes blocks of a lost slab for the others, each once, and lets nobody wait for a
// place.

#include "smp/restore/decoded_blocks.h"

#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <vector>

#include "smp/job/cluster_records.h"
#include "tests/unit/smp/block_reader_fixture.h"

namespace unreft::smp {
namespace {

class DecodedBlocksTest : public BlockReaderFixture {
 protected:
  ~DecodedBlocksTest() override {
    InTurn([&] {
      answers_.clear();
      decoded_.reset();
      blocks_.reset();
    });
  }

  // Node 1 has lost its memory; this node has so many places for the blocks of others.
  void Start(uint64_t places = 8) {
    if (places > 0) {
      InTurn([&] { ASSERT_TRUE(state_->staging->Provide(places * kBlockBytes).ok()); });
      Settle();
    }
    LoseNodeOne([this, places] {
      if (places > 0) {
        blocks_.emplace(
            *executor_,
            [this](BlockId id, auto into, auto keep, auto done) {
              reader_->Read(id.rank, id.block, into, std::move(keep), std::move(done));
            },
            state_->staging->places(), [](BlockId) { return true; });
      }
      decoded_.emplace(*state_, *reader_, *catalog_,
                       [this] { return blocks_ ? &*blocks_ : nullptr; });
      reader_->FindDecoder(Rank{1}, 0, [](const auto&) {});
    });
    for (uint64_t block = 0; block < kBlocks; ++block) {
      (reader_->DecoderOf(Rank{1}, block) == NodeSlot{0} ? here_ : elsewhere_).push_back(block);
    }
    ASSERT_FALSE(here_.empty());
    ASSERT_FALSE(elsewhere_.empty());
  }
  ReadRequest RequestOf(uint64_t block, Rank rank = Rank{1}, Version version = kVersion) {
    ReadRequest request;
    request.set_kind(ReadRequest::DECODED);
    SetVersion(version, request);
    request.set_rank(rank.value);
    request.set_first_block(block);
    request.set_blocks(1);
    return request;
  }
  void Ask(const ReadRequest& request, uint64_t bytes = kBlockBytes) {
    InTurn([&] {
      decoded_->OnRead(request, bytes, [this](absl::StatusOr<ReadSource> source) {
        answers_.push_back(std::move(source));
      });
    });
  }
  absl::StatusCode CodeFor(const ReadRequest& request, uint64_t bytes = kBlockBytes) {
    answers_.clear();
    Ask(request, bytes);
    Settle();
    return answers_.size() == 1 ? answers_[0].status().code() : absl::StatusCode::kUnknown;
  }

  std::optional<StagedBlocks> blocks_;
  std::optional<DecodedBlocks> decoded_;
  std::vector<absl::StatusOr<ReadSource>> answers_;
  std::vector<uint64_t> here_;  // blocks that node 0 decodes
  std::vector<uint64_t> elsewhere_;
};

TEST_F(DecodedBlocksTest, ABlockIsDecodedOnceForAllWhoAsk) {
  Start();
  for (int node = 0; node < 3; ++node) Ask(RequestOf(here_[0]));
  Settle();
  Ask(RequestOf(here_[0]));
  Settle();
  ASSERT_EQ(answers_.size(), 4U);
  const auto right = BlockOf(Rank{1}, here_[0]);
  for (const auto& answer : answers_) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    ASSERT_EQ(answer->parts.size(), 1U);
    EXPECT_TRUE(std::equal(right.begin(), right.end(), answer->parts[0].begin()));
    ReadHeader header;
    ASSERT_TRUE(header.ParseFromString(answer->header));
    EXPECT_EQ(header.crcs(0), reader_->CrcOf(Rank{1}, here_[0]));
  }
  EXPECT_LE(parities_given_, 2U) << "one block of k chunks";
  EXPECT_TRUE(blocks_->Has({Rank{1}, here_[0]})) << "this node's ranks find it, too";
}

TEST_F(DecodedBlocksTest, ItIsThereForWhoComesLater) {
  Start();
  EXPECT_EQ(CodeFor(RequestOf(here_[0])), absl::StatusCode::kOk);
  const uint64_t given = parities_given_;
  answers_.clear();
  Settle();
  EXPECT_EQ(CodeFor(RequestOf(here_[0])), absl::StatusCode::kOk);
  EXPECT_EQ(parities_given_, given);
}

TEST_F(DecodedBlocksTest, WhatAnotherDecodesIsRefused) {
  Start();
  EXPECT_EQ(CodeFor(RequestOf(elsewhere_[0])), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(decoders_asked_.empty()) << "two could wait for each other";
}

TEST_F(DecodedBlocksTest, WithoutRoomItIsRefusedAtOnce) {
  Start(1);
  std::optional<uint64_t> taker;
  StagedBlocks::Hold held;
  InTurn([&] {
    taker = blocks_->Join({.on_fetch = [](BlockId) {}, .on_room = [] {}});
    EXPECT_TRUE(blocks_->Take(*taker, {Rank{2}, 0}, [&](auto block) { held = *block; }));
  });
  Settle();
  EXPECT_EQ(CodeFor(RequestOf(here_[0])), absl::StatusCode::kResourceExhausted);
  InTurn([&] {
    held.reset();
    blocks_->Leave(*taker);
  });
  EXPECT_EQ(CodeFor(RequestOf(here_[0])), absl::StatusCode::kOk);
}

TEST_F(DecodedBlocksTest, WithoutAStagingAreaWhoAsksIsToldWhetherThereWillBeOne) {
  Start(0);
  EXPECT_EQ(CodeFor(RequestOf(here_[0])), absl::StatusCode::kFailedPrecondition);
  InTurn([&] {
    Hello hello;
    hello.rank = Rank{0};
    hello.life = table_.Start();
    state_->sessions[Rank{0}] = std::make_unique<RankSession>(hello, segments_);
  });
  EXPECT_EQ(CodeFor(RequestOf(here_[0])), absl::StatusCode::kNotFound);
}

TEST_F(DecodedBlocksTest, WhatIsNotThereIsRefusedByName) {
  Start();
  EXPECT_EQ(CodeFor(RequestOf(here_[0], Rank{9})), absl::StatusCode::kNotFound);
  EXPECT_EQ(CodeFor(RequestOf(here_[0], Rank{1}, Version{Timeline{77}, Step{1}})),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(CodeFor(RequestOf(kBlocks)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeFor(RequestOf(here_[0]), kBlockBytes / 2), absl::StatusCode::kInvalidArgument);
  ReadRequest two = RequestOf(0);
  two.set_blocks(2);
  EXPECT_EQ(CodeFor(two, 2 * kBlockBytes), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace unreft::smp
