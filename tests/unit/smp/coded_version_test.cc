// A version as it is encoded in a group, from what a guard's record says, and what its chunks'
// holders are asked for.
//
// RS(2,1): member i is node i + 4 and has i blocks of rank i. Stripe s has its parity on member s.

#include "smp/protect/coded_version.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "smp/job/cluster_records.h"
#include "smp/protect/guard_share.h"

namespace unreft::smp {
namespace {

constexpr Version kVersion{Timeline{3}, Step{8}};
constexpr uint32_t kBlockBytes = 64;

class CodedVersionTest : public ::testing::Test {
 protected:
  CodedVersionTest() {
    record_.mutable_group()->set_k(2);
    for (uint64_t member = 0; member < 3; ++member) {
      record_.mutable_group()->add_slots(member + 4);
      RankSlab& slab = *record_.add_members()->add_slabs();
      slab.set_rank(member);
      slab.set_data_bytes(member * kBlockBytes);
    }
  }
  absl::StatusOr<std::shared_ptr<const CodedVersion>> Make(NodeSlot self) {
    return CodedVersion::FromRecord(kVersion, record_, self, kBlockBytes, codes_);
  }

  GuardRecord record_;
  ec::CodeCache codes_;
};

TEST_F(CodedVersionTest, IsAsTheRecordHasIt) {
  const auto coded = Make(NodeSlot{5});
  ASSERT_TRUE(coded.ok()) << coded.status();
  EXPECT_EQ((*coded)->version, kVersion);
  EXPECT_EQ((*coded)->group.self, 1U);
  EXPECT_EQ((*coded)->group.MemberIn(NodeSlot{6}), 2U);
  EXPECT_EQ((*coded)->group.MemberIn(NodeSlot{7}), std::nullopt);
  EXPECT_EQ((*coded)->layout().positions(), 1U);
  EXPECT_EQ((*coded)->coding, CodingOf(record_.group(), record_.members()));
}

TEST_F(CodedVersionTest, ACodeIsMadeOnce) {
  const auto a = Make(NodeSlot{4});
  record_.mutable_members(1)->set_incarnation("another");
  const auto b = Make(NodeSlot{4});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ((*a)->code, (*b)->code);
  EXPECT_NE((*a)->coding, (*b)->coding);
  record_.mutable_group()->set_k(1);
  const auto other_shape = Make(NodeSlot{4});
  ASSERT_TRUE(other_shape.ok()) << other_shape.status();
  EXPECT_EQ((*other_shape)->code->shape(), (ec::CodeShape{1, 2}));
}

TEST_F(CodedVersionTest, ARecordOfOthersIsRefused) {
  EXPECT_TRUE(absl::IsDataLoss(Make(NodeSlot{3}).status()));
  record_.mutable_members()->RemoveLast();
  EXPECT_TRUE(absl::IsDataLoss(Make(NodeSlot{5}).status()));
}

TEST_F(CodedVersionTest, AGroupThatNoCodeHasIsRefused) {
  record_.mutable_group()->set_k(0);
  EXPECT_TRUE(absl::IsInvalidArgument(Make(NodeSlot{4}).status()));
}

TEST_F(CodedVersionTest, AHolderIsAskedForItsBlockOrItsParity) {
  const auto coded = *Make(NodeSlot{4});
  // Stripe 1: member 2 has data chunk 0, member 0 chunk 1, member 1 the parity.
  EXPECT_EQ(coded->HolderOf(1, 0), NodeSlot{6});
  const std::optional<ReadRequest> data = coded->ReadOf(1, 0, 0);
  ASSERT_TRUE(data.has_value());
  EXPECT_EQ(data->kind(), ReadRequest::DATA);
  EXPECT_EQ(VersionOf(*data), kVersion);
  EXPECT_EQ(data->rank(), 2U);
  EXPECT_EQ(data->first_block(), coded->DataAt(1, 0, 0)->block);
  EXPECT_EQ(data->blocks(), 1U);
  EXPECT_FALSE(coded->ReadOf(1, 1, 0).has_value()) << "member 0 has no blocks";
  const std::optional<ReadRequest> parity = coded->ReadOf(1, 2, 0);
  ASSERT_TRUE(parity.has_value());
  EXPECT_EQ(parity->kind(), ReadRequest::STORED_PARITY);
  EXPECT_EQ(parity->stripe(), 1U);
  EXPECT_EQ(parity->parity(), 0U);
  EXPECT_EQ(parity->coding(), coded->coding);
}

TEST_F(CodedVersionTest, AShareHasRoomForTheReplicasOfThoseBefore) {
  const GuardShare share(*Make(NodeSlot{5}), {1, 10, 100});
  EXPECT_EQ(share.description_bytes, 1U);
  EXPECT_EQ(share.Needs().chunks, 1U);
  EXPECT_EQ(share.Needs().sources, 2U);
  EXPECT_EQ(share.Needs().positions, 1U);
  EXPECT_EQ(share.Needs().record_bytes, GuardRecordBytes(3, 1));
}

}  // namespace
}  // namespace unreft::smp
