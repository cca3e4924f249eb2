// What a node does to bring its ranks' slabs back out of a durable copy.

#include "smp/node/load_part.h"

#include <cstring>

#include "base/crc32c.h"
#include "tests/unit/smp/export_desk_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kDataBytes = 100;
constexpr uint64_t kBlocks = 2;

class LoadPartTest : public ExportDeskTest {
 protected:
  LoadPartTest() { state_->timeline_closed = true; }

  static CopyPartRequest Order(const std::string& id = "first") {
    CopyPartRequest order;
    order.set_what(CopyPartRequest::LOAD);
    order.set_id(id);
    order.set_node(0);
    order.set_directory("/copies/40");
    order.set_timeline(kVersion.timeline.value);
    order.set_step(kVersion.step.value);
    order.set_world(2);
    order.add_ranks(0);
    order.add_ranks(1);
    return order;
  }
  // What node 0 answers to node 1.
  absl::StatusOr<CopyPartReply> Call(const CopyPartRequest& request) {
    std::optional<absl::StatusOr<CopyPartReply>> answer;
    InTurnOf(*leader_->executor, [&] {
      leader_->peers->Ask<CopyPartReply>(
          NodeSlot{0}, kLoadPartMethod, request, std::chrono::seconds(5),
          [&answer](absl::StatusOr<CopyPartReply> reply) { answer = std::move(reply); });
    });
    Settle(std::chrono::seconds(1));
    return answer.value_or(absl::UnknownError("no answer yet"));
  }
  CopyPartReply AskHow(const std::string& id = "first") {
    CopyPartRequest request;
    request.set_what(CopyPartRequest::ASK);
    request.set_id(id);
    absl::StatusOr<CopyPartReply> reply = Call(request);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.value_or(CopyPartReply());
  }
  static layout::SlotManifest ManifestOf(uint64_t rank) {
    layout::SlotManifest manifest;
    manifest.job = "job";
    manifest.version = kVersion;
    manifest.rank = Rank{rank};
    manifest.world = 2;
    manifest.layout_digest = 7 + rank;
    manifest.block_bytes = 64;
    manifest.data_bytes = kDataBytes;
    manifest.tensors = {{.name = "w",
                         .dtype = Dtype::kUint8,
                         .global_shape = {kDataBytes},
                         .offset = {0},
                         .extent = {kDataBytes}}};
    manifest.parts = {{.tensor = 0, .shard_begin = 0, .bytes = kDataBytes, .slab_offset = 0}};
    return manifest;
  }
  void EndDrain(const CopyPartReply& last) {
    DrainSays(last);
    InTurnOf(*process_, [this] { drain_.End(); });
    Settle(std::chrono::seconds(2));
  }
  void Describe(uint64_t block_bytes = 64) {
    CopyPartReply last;
    last.set_is_done(true);
    for (uint64_t rank = 0; rank < 2; ++rank) {
      CopySlabSize& size = *last.add_sizes();
      size.set_rank(rank);
      size.set_world(2);
      size.set_block_bytes(block_bytes);
      size.set_data_bytes(kDataBytes);
      size.set_manifest_bytes(layout::EncodeManifest(ManifestOf(rank)).size());
    }
    EndDrain(last);
  }
  // As the drain does, into a slot that it opens by its name.
  LoadedSlab Fill(const CopySlot& into) {
    auto segment = segments_.Open(into.segment(), Access::kReadWrite);
    UNREFT_CHECK(segment.ok());
    absl::StatusOr<SlotView> view = SlotView::Check((*segment)->bytes());
    UNREFT_CHECK(view.ok());
    EXPECT_EQ(view->state().generation.value, into.generation());
    const auto put = [](std::span<std::byte> region, const std::string& bytes) {
      std::memcpy(region.data(), bytes.data(), bytes.size());
      return Crc32c(std::as_bytes(std::span(bytes)));
    };
    std::string data(kBlocks * 64, static_cast<char>(into.rank() + 1));
    put(view->data(), data);
    std::string table;
    for (uint64_t block = 0; block < kBlocks; ++block) {
      const uint32_t crc = Crc32c(view->block(block));
      table.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
    }
    const std::string manifest = layout::EncodeManifest(ManifestOf(into.rank()));
    LoadedSlab loaded;
    loaded.set_rank(into.rank());
    loaded.set_layout_digest(7 + into.rank());
    loaded.set_data_bytes(kDataBytes);
    loaded.set_manifest_bytes(manifest.size());
    loaded.set_manifest_crc(put(view->manifest(), manifest));
    loaded.set_extras_crc(Crc32c({}));
    loaded.set_crc_table_crc(put(view->crc_table(), table));
    return loaded;
  }
  // All of the drain's last order.
  CopyPartReply FillAll() {
    CopyPartReply last;
    last.set_is_done(true);
    for (const CopySlot& into : drain_.orders.back().into()) *last.add_loaded() = Fill(into);
    return last;
  }
  std::vector<Rank> Sealed() {
    std::vector<Rank> ranks;
    InTurnOf(*process_, [&] {
      for (const Slot* slot : state_->slots->Sealed(kVersion)) {
        EXPECT_EQ(*slot->manifest, ManifestOf(slot->owner.value));
        EXPECT_TRUE(slot->view->CheckedSeal().ok());
        ranks.push_back(slot->owner);
      }
    });
    return ranks;
  }
  size_t Unsealed() {
    size_t slots = 0;
    InTurnOf(*process_, [&] {
      for (const Slot* slot : state_->slots->All()) slots += slot->phase != SlotPhase::kFree;
    });
    return slots;
  }
};

TEST_F(LoadPartTest, SlabsAreMeasuredFilledAndSealed) {
  ASSERT_TRUE(Call(Order()).ok());
  ASSERT_THAT(drain_.orders, SizeIs(1));
  EXPECT_EQ(drain_.orders[0].what(), CopyPartRequest::DESCRIBE);
  EXPECT_THAT(drain_.orders[0].ranks(), ElementsAre(0, 1));
  EXPECT_EQ(drain_.orders[0].directory(), "/copies/40");
  Describe();
  ASSERT_THAT(drain_.orders, SizeIs(2));
  EXPECT_EQ(drain_.orders[1].what(), CopyPartRequest::LOAD);
  EXPECT_THAT(drain_.orders[1].into(), SizeIs(2));
  EXPECT_THAT(Sealed(), SizeIs(0)) << "nobody has said that they are full";
  EXPECT_TRUE(AskHow().is_running());
  EndDrain(FillAll());
  EXPECT_THAT(Sealed(), UnorderedElementsAre(Rank{0}, Rank{1}));
  EXPECT_TRUE(AskHow().is_done());
}

TEST_F(LoadPartTest, WhatIsThereIsNotLoadedAgain) {
  ASSERT_TRUE(Call(Order()).ok());
  Describe();
  EndDrain(FillAll());
  ASSERT_TRUE(Call(Order("second")).ok());
  EXPECT_TRUE(AskHow("second").is_done());
  EXPECT_THAT(drain_.orders, SizeIs(2)) << "the drain is not asked";
}

TEST_F(LoadPartTest, AnOrderThatIsSentTwiceIsOne) {
  ASSERT_TRUE(Call(Order()).ok());
  ASSERT_TRUE(Call(Order()).ok());
  EXPECT_THAT(drain_.orders, SizeIs(1));
}

TEST_F(LoadPartTest, ADamagedCopyIsToldAndTheSlotsAreFree) {
  ASSERT_TRUE(Call(Order()).ok());
  Describe();
  CopyPartReply last;
  last.set_error("an item has CRC 1, needed 2");
  last.set_is_damaged(true);
  EndDrain(last);
  const CopyPartReply said = AskHow();
  EXPECT_FALSE(said.is_running() || said.is_done());
  EXPECT_TRUE(said.is_damaged());
  EXPECT_THAT(said.error(), HasSubstr("has CRC 1"));
  EXPECT_EQ(Unsealed(), 0u);
}

TEST_F(LoadPartTest, ADescriptionThatIsAnotherThanTheDrainSaysIsNotSealed) {
  ASSERT_TRUE(Call(Order()).ok());
  Describe();
  CopyPartReply last = FillAll();
  last.mutable_loaded(0)->set_manifest_crc(1);
  EndDrain(last);
  EXPECT_THAT(AskHow().error(), HasSubstr("its manifest has CRC"));
  EXPECT_THAT(Sealed(), SizeIs(0));
  EXPECT_EQ(Unsealed(), 0u);
}

TEST_F(LoadPartTest, BlocksOfAnotherSizeAreRefused) {
  ASSERT_TRUE(Call(Order()).ok());
  Describe(128);
  EXPECT_THAT(AskHow().error(), HasSubstr("blocks of 128 bytes, this node has blocks of 64"));
}

// The drain that fills slots may write to them until it has ended.
TEST_F(LoadPartTest, TheNextOrderWaitsForTheEndOfTheDrainThatFills) {
  ASSERT_TRUE(Call(Order()).ok());
  Describe();
  ASSERT_TRUE(Call(Order("second")).ok());
  EXPECT_TRUE(AskHow("second").is_running());
  EXPECT_EQ(drain_.stops, 1);
  EXPECT_EQ(Unsealed(), 2u) << "nobody else gets them";
  ASSERT_THAT(drain_.orders, SizeIs(2));
  CopyPartReply last;
  last.set_error("the copy was cancelled");
  EndDrain(last);
  EXPECT_TRUE(AskHow("second").is_running());
  ASSERT_THAT(drain_.orders, SizeIs(3));
  EXPECT_EQ(drain_.orders[2].what(), CopyPartRequest::DESCRIBE);
}

TEST_F(LoadPartTest, ADrainThatWritesACopyIsEndedFirst) {
  drain_.refusal = absl::FailedPreconditionError("it writes");
  ASSERT_TRUE(Call(Order()).ok());
  EXPECT_GT(drain_.stops, 0);
  drain_.refusal = absl::OkStatus();
  Settle(std::chrono::seconds(1));
  ASSERT_THAT(drain_.orders, SizeIs(1));
  EXPECT_EQ(drain_.orders[0].what(), CopyPartRequest::DESCRIBE);
}

// As one of a rank whose slot takes longer to populate than another's.
TEST_F(LoadPartTest, ASlotThatIsThereIsNotProvidedAgain) {
  ASSERT_TRUE(Call(Order()).ok());
  Describe();
  size_t slots = 0;
  InTurnOf(*process_, [&] { slots = state_->slots->All().size(); });
  EXPECT_EQ(slots, 2u);
}

TEST_F(LoadPartTest, NothingIsTakenOnceTheDecisionIsMade) {
  ASSERT_TRUE(Call(Order()).ok());
  state_->timeline_closed = false;
  Describe();
  EXPECT_THAT(AskHow().error(), HasSubstr("the decision was made without it"));
  EXPECT_THAT(drain_.orders, SizeIs(1));
}

TEST_F(LoadPartTest, WhatNobodyAsksForIsEnded) {
  ASSERT_TRUE(Call(Order()).ok());
  Settle(std::chrono::minutes(2));
  EXPECT_GT(drain_.stops, 0);
  CopyPartReply last;
  last.set_error("the copy was cancelled");
  EndDrain(last);
  EXPECT_FALSE(AskHow().is_running());
}

TEST_F(LoadPartTest, WhoseDaemonStartedAnewKnowsOfNoLoad) {
  CopyPartRequest request;
  request.set_what(CopyPartRequest::ASK);
  request.set_id("first");
  EXPECT_TRUE(absl::IsNotFound(Call(request).status()));
}

}  // namespace
}  // namespace unreft::smp
