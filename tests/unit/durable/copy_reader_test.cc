#include "durable/copy_reader.h"

#include <gmock/gmock.h>

#include <string>

#include "tests/unit/durable/written_copy_fixture.h"

namespace unreft::durable {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class CopyReaderTest : public WrittenCopyTest {
 protected:
  CopyReaderTest() { WriteShardedCopy(); }

  absl::Status Opened() { return CopyReader::Open(store_).status(); }
  absl::Status Described(Rank rank) {
    const auto copy = CopyReader::Open(store_);
    EXPECT_TRUE(copy.ok()) << copy.status();
    return copy.ok() ? copy->Describe(rank).status() : copy.status();
  }

  static void ExpectLost(const absl::Status& status, const std::string& file,
                         const std::string& why = "") {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("memory/" + file), HasSubstr(why)));
  }
};

TEST_F(CopyReaderTest, ItSaysWhatTheCopyHas) {
  auto copy = CopyReader::Open(store_);
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(copy->world(), 2u);
  EXPECT_EQ(copy->order().step(), kCopyVersion.step.value);
  EXPECT_EQ(copy->order().id(), kCopyId);
  EXPECT_EQ(copy->PathOf("__0_0.distcp"), "memory/__0_0.distcp");
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    const auto slab = copy->Describe(rank);
    ASSERT_TRUE(slab.ok()) << slab.status();
    EXPECT_EQ(slab->SerializeAsString(), RecordOf(rank).SerializeAsString());
    const auto items = copy->ItemsOf(*slab);
    ASSERT_TRUE(items.ok()) << items.status();
    EXPECT_EQ(items->manifest, slabs_[rank.value].manifest());
    EXPECT_EQ(items->file, ItemsFile(rank));
    EXPECT_EQ(items->plan.file_bytes, Bytes(ItemsFile(rank)).size());
    EXPECT_THAT(items->crcs, SizeIs(items->plan.items.size()));
  }
}

TEST_F(CopyReaderTest, WhatItKeepsIsReadOnce) {
  auto copy = CopyReader::Open(store_);
  ASSERT_TRUE(copy.ok());
  const auto items = copy->KeptItems(Rank{1});
  ASSERT_TRUE(items.ok()) << items.status();
  EXPECT_EQ((*items)->manifest, slabs_[1].manifest());
  ASSERT_TRUE(store_.Remove(SlabFile(Rank{1})).ok());
  ASSERT_TRUE(store_.Remove(SlabFile(Rank{0})).ok());
  EXPECT_EQ(copy->KeptItems(Rank{1}).value(), *items);
  // What failed is not kept.
  EXPECT_TRUE(absl::IsDataLoss(copy->KeptItems(Rank{0}).status()));
  EXPECT_TRUE(absl::IsDataLoss(copy->KeptItems(Rank{0}).status()));
}

TEST_F(CopyReaderTest, ARankThatIsNotOfTheWorldIsRefused) {
  const absl::Status status = Described(Rank{2});
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("needed a rank below 2, found 2"));
}

TEST_F(CopyReaderTest, WhatIsNotCompleteIsNotOpened) {
  for (const char* const file : {kMetadataFile, kRecordFile, kOrderFile}) {
    const std::string bytes = Bytes(file);
    ASSERT_TRUE(store_.Remove(file).ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(Opened())) << Opened();
    EXPECT_THAT(std::string(Opened().message()), HasSubstr(std::string("needed ") + file));
    ASSERT_TRUE(store_.Put(file, bytes).ok());
    EXPECT_TRUE(Opened().ok()) << Opened();
  }
  MemoryColdStore empty;
  EXPECT_TRUE(absl::IsFailedPrecondition(CopyReader::Open(empty).status()));
}

TEST_F(CopyReaderTest, AnEmptyMarkIsDamage) {
  Replace(kMetadataFile, "");
  ExpectLost(Opened(), kMetadataFile, "needed a byte");
}

TEST_F(CopyReaderTest, ARecordOfAnotherCopyIsNotTaken) {
  CopyRecord record = DecodeRecord(Bytes(kRecordFile), "").value();
  record.mutable_order()->set_id(std::string(16, 'o'));
  Replace(kRecordFile, EncodeRecord(record));
  ExpectLost(Opened(), kRecordFile, "found 6f6f6f6f");
}

TEST_F(CopyReaderTest, ARecordThatLacksARankIsNotTaken) {
  CopyRecord record = DecodeRecord(Bytes(kRecordFile), "").value();
  record.mutable_slab_crcs()->RemoveLast();
  Replace(kRecordFile, EncodeRecord(record));
  ExpectLost(Opened(), kRecordFile, "needed the CRCs of 2 ranks, found 1");
}

// All but the four bytes of a head that are reserved, which no CRC of ours covers there.
TEST_F(CopyReaderTest, AnyByteThatIsFlippedInWhatIsOpenedIsNoticed) {
  for (const char* const file : {kRecordFile, kOrderFile}) {
    const size_t bytes = Bytes(file).size();
    for (size_t at = 0; at < bytes; ++at) {
      if (at >= 28 && at < 32) continue;
      store_.FlipByte(file, at);
      ExpectLost(Opened(), file);
      store_.FlipByte(file, at);
    }
  }
  EXPECT_TRUE(Opened().ok());
}

TEST_F(CopyReaderTest, AnyByteThatIsFlippedInTheRecordOfARankIsNoticed) {
  const std::string file = SlabFile(Rank{1});
  const size_t bytes = Bytes(file).size();
  for (size_t at = 0; at < bytes; ++at) {
    store_.FlipByte(file, at);
    ExpectLost(Described(Rank{1}), file);
    EXPECT_TRUE(Described(Rank{0}).ok());
    store_.FlipByte(file, at);
  }
  EXPECT_TRUE(Described(Rank{1}).ok());
}

TEST_F(CopyReaderTest, ARecordOfARankThatIsMissingOrCutIsDamage) {
  const std::string file = SlabFile(Rank{1});
  const std::string bytes = Bytes(file);
  ASSERT_TRUE(store_.Remove(file).ok());
  ExpectLost(Described(Rank{1}), file, "found no file");
  for (const size_t left : {size_t{0}, size_t{31}, size_t{32}, bytes.size() - 1}) {
    ASSERT_TRUE(store_.Put(file, bytes.substr(0, left)).ok());
    ExpectLost(Described(Rank{1}), file);
    ASSERT_TRUE(store_.Remove(file).ok());
  }
}

// Each is whole in itself, and the copy's record names another.
TEST_F(CopyReaderTest, ARecordOfARankThatTheCopyDoesNotNameIsNotTaken) {
  CopySlab slab = RecordOf(Rank{1});
  slab.set_extras("other");
  Replace(SlabFile(Rank{1}), EncodeSlab(slab));
  ExpectLost(Described(Rank{1}), SlabFile(Rank{1}), ".unreft/copy has CRC");
  Replace(SlabFile(Rank{1}), Bytes(SlabFile(Rank{0})));
  ExpectLost(Described(Rank{1}), SlabFile(Rank{1}), ".unreft/copy has CRC");
}

// The CRCs are right in all of these.
TEST_F(CopyReaderTest, ARecordOfARankThatContradictsItselfOrTheCopyIsNotTaken) {
  const CopySlab right = RecordOf(Rank{1});
  const auto manifest_with = [&](auto change) {
    layout::SlotManifest manifest = slabs_[1].manifest();
    change(manifest);
    return layout::EncodeManifest(manifest);
  };
  const auto expect_lost = [&](auto change, const std::string& why) {
    CopySlab slab = right;
    change(slab);
    ReplaceRecord(Rank{1}, slab);
    ExpectLost(Described(Rank{1}), SlabFile(Rank{1}), why);
    const auto copy = CopyReader::Open(store_);
    ASSERT_TRUE(copy.ok());
    EXPECT_TRUE(absl::IsDataLoss(copy->ItemsOf(slab).status()));
  };
  expect_lost([](CopySlab& slab) { slab.set_id(std::string(16, 'o')); }, "rank 1 of copy 6f6f");
  expect_lost([](CopySlab& slab) { slab.set_rank(0); }, "found rank 0");
  expect_lost([](CopySlab& slab) { slab.set_file(ItemsFile(Rank{0})); }, "of '__0_0.distcp'");
  expect_lost([](CopySlab& slab) { slab.set_file_bytes(slab.file_bytes() - 1); }, "bytes of");
  expect_lost([](CopySlab& slab) { slab.add_item_crcs(0); }, "items in");
  expect_lost([](CopySlab& slab) { slab.mutable_item_crcs()->RemoveLast(); }, "items in");
  expect_lost([](CopySlab& slab) { slab.set_item_bytes_max(1024); }, "items in");
  expect_lost([](CopySlab& slab) { slab.set_item_bytes_max(0); }, "at most, found 0");
  expect_lost([](CopySlab& slab) { slab.set_item_bytes_max(kItemBytesMax + 1); }, "at most, found");
  expect_lost([](CopySlab& slab) { slab.set_manifest("none"); }, "manifest");
  expect_lost(
      [&](CopySlab& slab) {
        slab.set_manifest(manifest_with([](auto& manifest) { manifest.rank = Rank{0}; }));
      },
      "of rank 0 of 2");
  expect_lost(
      [&](CopySlab& slab) {
        slab.set_manifest(manifest_with([](auto& manifest) { manifest.world = 3; }));
      },
      "of rank 1 of 3");
  expect_lost(
      [&](CopySlab& slab) {
        slab.set_manifest(manifest_with([](auto& manifest) { ++manifest.version.step.value; }));
      },
      "found version");
  ReplaceRecord(Rank{1}, right);
  EXPECT_TRUE(Described(Rank{1}).ok());
}

}  // namespace
}  // namespace unreft::durable
