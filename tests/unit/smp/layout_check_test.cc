#include "smp/job/layout_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "layout/capture_plan.h"
#include "tests/unit/layout_testing.h"

namespace unreft::smp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// As a daemon seals it.
std::shared_ptr<const layout::SlotManifest> ManifestOf(std::vector<TensorSpec> tensors) {
  const auto table = layout::TensorTable::Create(tensors);
  EXPECT_TRUE(table.ok()) << table.status();
  layout::SlotManifest manifest;
  manifest.tensors = std::move(tensors);
  manifest.layout_digest =
      layout::CapturePlan::Make(*table, layout::CaptureMode::kSharded).digest();
  return std::make_shared<const layout::SlotManifest>(std::move(manifest));
}

ManifestsByRank Replicas(uint32_t index_of_0, uint32_t index_of_1) {
  return {{Rank{0}, ManifestOf({Whole("w", {2048}, index_of_0, 2)})},
          {Rank{1}, ManifestOf({Whole("w", {2048}, index_of_1, 2)})}};
}

TEST(LayoutCheckTest, NamesRanksThatAreTheSameReplica) {
  EXPECT_TRUE(LayoutCheck().Check(Replicas(0, 1)).ok());
  EXPECT_TRUE(LayoutCheck().Check(Replicas(1, 0)).ok());
  EXPECT_THAT(std::string(LayoutCheck().Check(Replicas(0, 0)).message()),
              AllOf(HasSubstr("'w'"), HasSubstr("ranks 0 and 1 both say that they are replica 0")));
}

TEST(LayoutCheckTest, SeesALaterVersionThatDiffersInReplicaIndicesAlone) {
  LayoutCheck check;
  ASSERT_TRUE(check.Check(Replicas(0, 1)).ok());
  EXPECT_THAT(std::string(check.Check(Replicas(1, 1)).message()),
              HasSubstr("ranks 0 and 1 both say that they are replica 1"));
  EXPECT_TRUE(check.Check(Replicas(1, 0)).ok());
  EXPECT_FALSE(check.Check(Replicas(0, 0)).ok());
}

TEST(LayoutCheckTest, KnowsWhatItHasFoundToFitAndNothingElse) {
  LayoutCheck check;
  EXPECT_FALSE(check.AreKnownToFit({}));
  const auto digests = [](const ManifestsByRank& manifests) {
    std::vector<uint64_t> all;
    for (const auto& [rank, manifest] : manifests) all.push_back(manifest->layout_digest);
    return all;
  };
  EXPECT_FALSE(check.AreKnownToFit(digests(Replicas(0, 1))));
  ASSERT_TRUE(check.Check(Replicas(0, 1)).ok());
  EXPECT_TRUE(check.AreKnownToFit(digests(Replicas(0, 1))));
  ASSERT_FALSE(check.Check(Replicas(0, 0)).ok());
  EXPECT_FALSE(check.AreKnownToFit(digests(Replicas(0, 0))));
  EXPECT_TRUE(check.AreKnownToFit(digests(Replicas(0, 1))));
}

}  // namespace
}  // namespace unreft::smp
