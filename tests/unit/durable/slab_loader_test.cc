#include "durable/slab_loader.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "durable/torch_archive.h"
#include "tests/unit/durable/written_copy_fixture.h"

namespace unreft::durable {
namespace {

using layout::CaptureMode;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SlabLoaderTest : public WrittenCopyTest {
 protected:
  // The slab of that rank, into memory that had other bytes, as long as that of the rank's blocks
  // and `more`.
  absl::StatusOr<std::vector<std::byte>> Load(CopyReader& copy, Rank rank, uint64_t more = 0) {
    const auto slab = copy.Describe(rank);
    if (!slab.ok()) return slab.status();
    std::vector<std::byte> data(slabs_[rank.value].data().size() + more, std::byte{0xee});
    const absl::Status status = LoadSlab(copy, *slab, data, on_progress_);
    if (!status.ok()) return status;
    return data;
  }
  absl::StatusOr<std::vector<std::byte>> Load(Rank rank, uint64_t more = 0) {
    auto copy = CopyReader::Open(store_);
    if (!copy.ok()) return copy.status();
    return Load(*copy, rank, more);
  }

  void ExpectAllAsTheyWere() {
    for (uint64_t rank = 0; rank < slabs_.size(); ++rank) {
      const auto data = Load(Rank{rank});
      ASSERT_TRUE(data.ok()) << "rank " << rank << ": " << data.status();
      EXPECT_TRUE(*data == slabs_[rank].data()) << "rank " << rank;
    }
  }

  void ExpectLost(Rank rank, const std::string& file, const std::string& why = "") {
    const absl::Status status = Load(rank).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("memory/" + file), HasSubstr(why)));
  }

  std::function<bool(uint64_t, uint64_t)> on_progress_ = [](uint64_t, uint64_t) { return true; };
};

TEST_F(SlabLoaderTest, EachSlabIsWhatItWasWhateverTheMemoryHadBefore) {
  WriteShardedCopy();
  ExpectAllAsTheyWere();
  // Several from one reader, in any order.
  auto copy = CopyReader::Open(store_);
  ASSERT_TRUE(copy.ok());
  for (const uint64_t rank : {1, 0, 1}) {
    EXPECT_TRUE(Load(*copy, Rank{rank}).value() == slabs_[rank].data());
  }
}

TEST_F(SlabLoaderTest, SoItIsWithItemsOfAnySize) {
  for (const uint64_t item_bytes_max : {kItemBytesMin, uint64_t{1500}, kItemBytesMax}) {
    RemoveCopy();
    WriteShardedCopy(item_bytes_max);
    ExpectAllAsTheyWere();
  }
}

TEST_F(SlabLoaderTest, SlabsOfAnyShardsAndReplicasAreWhatTheyWere) {
  Random random(20);
  for (int round = 0; round < 60; ++round) {
    RemoveCopy();
    const uint64_t world = 1 + random.Below(4);
    std::vector<std::vector<TensorSpec>> ranks(world);
    for (int tensor = 0; tensor < 4; ++tensor) {
      const std::string name = fmt::format("t{}", tensor);
      const Dtype dtype = random.OneIn(2) ? Dtype::kBool : Dtype::kFloat64;
      const Dims shape = RandomShape(random, 4, 12);
      for (const layout::Box& box : RandomShards(random, shape)) {
        // Of one rank, or of all, whichever is the first replica.
        std::vector<uint64_t> holders = {random.Below(world)};
        if (tensor % 2 == 1) {
          while (holders.size() < world) holders.push_back((holders.back() + 1) % world);
        }
        for (uint32_t i = 0; i < holders.size(); ++i) {
          ranks[holders[i]].push_back(Spec(name, shape, box.offset, box.extent, i,
                                           static_cast<uint32_t>(holders.size()), dtype));
        }
      }
    }
    WriteCopy(std::move(ranks), random.OneIn(2) ? CaptureMode::kFull : CaptureMode::kSharded,
              kItemBytesMin + random.Below(4096));
    if (HasFatalFailure()) FAIL() << "round " << round;
    ExpectAllAsTheyWere();
  }
}

// More than one piece, and a piece that is not whole.
TEST_F(SlabLoaderTest, AnItemThatIsReadInPiecesIsWhatItWas) {
  WriteCopy({{Whole("w", {(9 << 20) + 13}, 0, 1, Dtype::kUint8)}}, CaptureMode::kSharded,
            kItemBytesMax);
  std::vector<uint64_t> heard;
  on_progress_ = [&](uint64_t done, uint64_t bytes) {
    EXPECT_EQ(bytes, (9u << 20) + 13);
    heard.push_back(done);
    return true;
  };
  ExpectAllAsTheyWere();
  EXPECT_THAT(heard, ElementsAre(4u << 20, 8u << 20, (9u << 20) + 13));
  const layout::Box whole{{0}, {(9 << 20) + 13}};
  const size_t head = ArchiveHead(ArchiveOf(slabs_[0].manifest().tensors[0], whole)).size();
  for (const size_t at : {size_t{0}, size_t{5} << 20, (size_t{9} << 20) + 12}) {
    store_.FlipByte(ItemsFile(Rank{0}), head + at);
    ExpectLost(Rank{0}, "__0_0.distcp", "tensor 'w'");
    store_.FlipByte(ItemsFile(Rank{0}), head + at);
  }
}

TEST_F(SlabLoaderTest, WhatIsBetweenPartsAndBehindThemIsZero) {
  WriteShardedCopy();
  const auto data = Load(Rank{0}, 2 * kCopyBlockBytes);
  ASSERT_TRUE(data.ok()) << data.status();
  uint64_t end = 0;
  uint64_t padding = 0;
  const auto expect_zero = [&](uint64_t begin, uint64_t until) {
    padding += until - begin;
    const std::vector<std::byte> gap(data->begin() + static_cast<int64_t>(begin),
                                     data->begin() + static_cast<int64_t>(until));
    EXPECT_THAT(gap, Each(std::byte{0}));
  };
  for (const layout::CapturedPart& part : slabs_[0].manifest().parts) {
    expect_zero(end, part.slab_offset);
    end = part.slab_offset + part.bytes;
  }
  EXPECT_GT(padding, 0u);
  expect_zero(end, data->size());
}

TEST_F(SlabLoaderTest, ASlabWithoutPartsIsLoaded) {
  WriteCopy({{}, {Whole("w", {5})}});
  ExpectAllAsTheyWere();
}

TEST_F(SlabLoaderTest, MemoryThatIsTooSmallIsRefused) {
  WriteShardedCopy();
  auto copy = CopyReader::Open(store_);
  ASSERT_TRUE(copy.ok());
  const CopySlab slab = copy->Describe(Rank{0}).value();
  std::vector<std::byte> data(slabs_[0].data().size() - 1, std::byte{0xee});
  const absl::Status status = LoadSlab(*copy, slab, data, on_progress_);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(fmt::format("needs {} bytes, found {}", data.size() + 1, data.size())));
  EXPECT_THAT(data, Each(std::byte{0xee}));
}

TEST_F(SlabLoaderTest, ItEndsWhenItIsToldTo) {
  WriteShardedCopy();
  on_progress_ = [](uint64_t done, uint64_t) { return done < 3000; };
  EXPECT_TRUE(absl::IsCancelled(Load(Rank{0}).status()));
}

TEST_F(SlabLoaderTest, ProgressEndsWithAllBytesOfTheParts) {
  WriteShardedCopy();
  uint64_t needed = 0;
  for (const layout::CapturedPart& part : slabs_[0].manifest().parts) needed += part.bytes;
  uint64_t last = 0;
  on_progress_ = [&](uint64_t done, uint64_t bytes) {
    EXPECT_GT(done, last);
    EXPECT_EQ(bytes, needed);
    last = done;
    return true;
  };
  ASSERT_TRUE(Load(Rank{0}).ok());
  EXPECT_EQ(last, needed);
}

// What is read of the file are data alone: a byte of one of them that is flipped is noticed, and
// any other changes nothing.
TEST_F(SlabLoaderTest, AnyByteOfItemsThatIsFlippedIsNoticedOrDoesNotMatter) {
  WriteShardedCopy();
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    auto copy = CopyReader::Open(store_);
    ASSERT_TRUE(copy.ok());
    const SlabItems* const items = copy->KeptItems(rank).value();
    std::vector<bool> is_data(items->plan.file_bytes, false);
    for (const CopyItem& item : items->plan.items) {
      const TensorSpec& spec = items->manifest.tensors[item.tensor];
      const size_t begin = item.at + ArchiveHead(ArchiveOf(spec, item.box)).size();
      std::fill_n(is_data.begin() + static_cast<int64_t>(begin), item.bytes, true);
    }
    for (size_t at = 0; at < is_data.size(); at += is_data[at] ? 1 : 7) {
      store_.FlipByte(items->file, at);
      const auto data = Load(*copy, rank);
      if (is_data[at]) {
        ASSERT_TRUE(absl::IsDataLoss(data.status())) << at << ": " << data.status();
      } else {
        ASSERT_TRUE(data.ok()) << at << ": " << data.status();
        ASSERT_TRUE(*data == slabs_[rank.value].data()) << at;
      }
      store_.FlipByte(items->file, at);
    }
  }
}

TEST_F(SlabLoaderTest, TheTensorAndBothCrcsAreNamed) {
  WriteShardedCopy();
  const CopySlab slab = RecordOf(Rank{0});
  const auto items = CopyReader::Open(store_)->ItemsOf(slab);
  ASSERT_TRUE(items.ok());
  const CopyItem& item = items->plan.items.front();
  const TensorSpec& spec = items->manifest.tensors[item.tensor];
  store_.FlipByte(items->file, item.at + ArchiveHead(ArchiveOf(spec, item.box)).size());
  ExpectLost(Rank{0}, "__0_0.distcp",
             fmt::format("tensor '{}': its {} bytes", spec.name, item.bytes));
  ExpectLost(Rank{0}, "__0_0.distcp", fmt::format("needed {:08x}", slab.item_crcs(0)));
  EXPECT_TRUE(Load(Rank{1}).ok());
}

TEST_F(SlabLoaderTest, AFileOfItemsThatIsMissingOrCutIsDamage) {
  WriteShardedCopy();
  const std::string file = ItemsFile(Rank{1});
  const std::string bytes = Bytes(file);
  ASSERT_TRUE(store_.Remove(file).ok());
  ExpectLost(Rank{1}, file, "needed");
  for (const size_t left : {size_t{0}, size_t{700}, bytes.size() / 2}) {
    ASSERT_TRUE(store_.Put(file, bytes.substr(0, left)).ok());
    ExpectLost(Rank{1}, file, "needed");
    ASSERT_TRUE(store_.Remove(file).ok());
  }
  // Of the same length, of another rank.
  ASSERT_TRUE(store_.Put(file, Bytes(ItemsFile(Rank{0}))).ok());
  ExpectLost(Rank{1}, file);
}

class ReplicasTest : public SlabLoaderTest {
 protected:
  // Four ranks that have captured all: two halves of `model/w`, each of two ranks, of which the
  // second half's first replica is the last rank; all have `model/norm`, the third rank's first.
  ReplicasTest() {
    std::vector<std::vector<TensorSpec>> ranks;
    for (uint32_t rank = 0; rank < 4; ++rank) {
      const uint32_t half = rank % 2;
      const uint32_t replica = half == 0 ? rank / 2 : 1 - rank / 2;
      ranks.push_back({Spec("model/w", {80, 33}, {40 * half, 0}, {40, 33}, replica, 2),
                       Whole("model/norm", {33}, (rank + 2) % 4, 4),
                       Whole(fmt::format("rank{}/own", rank), {3}, 0, 1, Dtype::kInt64)});
    }
    WriteCopy(std::move(ranks), CaptureMode::kFull);
  }

  // As if that rank had known its tensors otherwise than they were.
  void ChangeManifest(Rank rank, std::function<void(layout::SlotManifest&)> change) {
    CopySlab slab = RecordOf(rank);
    layout::SlotManifest manifest = layout::DecodeManifest(slab.manifest()).value();
    change(manifest);
    slab.set_manifest(layout::EncodeManifest(manifest));
    const CopyPlan plan = PlanCopy(manifest, slab.item_bytes_max()).value();
    slab.set_file_bytes(plan.file_bytes);
    while (slab.item_crcs_size() > static_cast<int>(plan.items.size())) {
      slab.mutable_item_crcs()->RemoveLast();
    }
    while (slab.item_crcs_size() < static_cast<int>(plan.items.size())) slab.add_item_crcs(0);
    ReplaceRecord(rank, slab);
  }
};

TEST_F(ReplicasTest, WhatAnotherRankHasOfASlabIsTakenFromThere) {
  const auto copied = [&](uint64_t rank) { return RecordOf(Rank{rank}).item_crcs_size(); };
  ASSERT_LT(copied(1), copied(0)) << "it is to have its own tensor alone";
  ExpectAllAsTheyWere();
  auto copy = CopyReader::Open(store_);
  ASSERT_TRUE(copy.ok());
  for (uint64_t rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(Load(*copy, Rank{rank}).value() == slabs_[rank].data()) << rank;
  }
}

TEST_F(ReplicasTest, OnlyRecordsThatAreNeededAreRead) {
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    // Of rank 2, whose `model/norm` is the first, rank 0 has the rest.
    const absl::Status removed =
        rank == Rank{0} ? store_.Remove(SlabFile(Rank{3})) : store_.Remove(SlabFile(Rank{1}));
    ASSERT_TRUE(removed.ok());
    EXPECT_TRUE(Load(Rank{2}).ok()) << Load(Rank{2}).status();
  }
}

TEST_F(ReplicasTest, ItsBytesAreCheckedAsItsOwnAre) {
  auto copy = CopyReader::Open(store_);
  ASSERT_TRUE(copy.ok());
  const SlabItems* const items = copy->KeptItems(Rank{3}).value();
  ASSERT_EQ(items->manifest.tensors[items->plan.items[0].tensor].name, "model/w");
  store_.FlipByte(items->file, items->plan.items[0].at + items->plan.items[0].archive_bytes / 2);
  ExpectLost(Rank{1}, "__3_0.distcp", "tensor 'model/w'");
  ExpectLost(Rank{3}, "__3_0.distcp", "tensor 'model/w'");
  EXPECT_TRUE(Load(Rank{0}).ok());
  ASSERT_TRUE(store_.Remove(SlabFile(Rank{3})).ok());
  ExpectLost(Rank{1}, SlabFile(Rank{3}), "found no file");
}

TEST_F(ReplicasTest, ATensorThatNoRankHasIsNamed) {
  ChangeManifest(Rank{3}, [](layout::SlotManifest& manifest) {
    for (TensorSpec& spec : manifest.tensors) {
      if (spec.name == "model/w") spec.replica_index = 1;
    }
  });
  const absl::Status status = Load(Rank{1}).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 1: tensor 'model/w'"), HasSubstr("in none of 4 ranks")));
}

TEST_F(ReplicasTest, ATensorOfWhichThereIsLessIsNamed) {
  ChangeManifest(Rank{3}, [](layout::SlotManifest& manifest) { manifest.parts[0].bytes -= 4; });
  const absl::Status status = Load(Rank{1}).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 1: tensor 'model/w'"), HasSubstr("needed bytes 0 to 5280")));
}

TEST_F(ReplicasTest, ATensorOfAnotherTypeOrPlaceIsNotTaken) {
  const CopySlab right = RecordOf(Rank{3});
  for (const auto& change : std::vector<std::function<void(TensorSpec&)>>{
           [](TensorSpec& spec) { spec.dtype = Dtype::kInt32; },
           [](TensorSpec& spec) { spec.offset[0] -= 1; },
           [](TensorSpec& spec) { spec.name = "model/v"; }}) {
    ChangeManifest(Rank{3}, [&](layout::SlotManifest& manifest) {
      for (TensorSpec& spec : manifest.tensors) {
        if (spec.name == "model/w") change(spec);
      }
    });
    const absl::Status status = Load(Rank{1}).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1: tensor 'model/w'"));
    ReplaceRecord(Rank{3}, right);
  }
  EXPECT_TRUE(Load(Rank{1}).ok());
}

TEST(BlockCrcsTest, EachIsThatOfItsBlock) {
  std::vector<std::byte> data(3 * 512 + 5);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * i);
  const std::span<const std::byte> bytes(data);
  EXPECT_THAT(BlockCrcs(data, 512, 3),
              ElementsAre(Crc32c(bytes.subspan(0, 512)), Crc32c(bytes.subspan(512, 512)),
                          Crc32c(bytes.subspan(1024, 512))));
  EXPECT_THAT(BlockCrcs(data, 512, 0), ElementsAre());
  EXPECT_THAT(BlockCrcs({}, 512, 0), ElementsAre());
}

}  // namespace
}  // namespace unreft::durable
