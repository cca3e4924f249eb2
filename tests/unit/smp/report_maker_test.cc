#include "smp/job/report_maker.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>

#include "tests/unit/layout_testing.h"
#include "tests/unit/smp/job_records_testing.h"
#include "tests/unit/smp/recording_node.h"
#include "tests/unit/smp/recording_protection.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;

class ReportMakerTest : public SmpFixture {
 protected:
  // In timeline 2, where 2:10 is committed.
  ReportMakerTest() {
    InTurn([this] {
      record_->AdoptTimelines(OriginsOf(Chain(2, 2)), /*unused=*/true);
      record_->SetCommitted(At(2, 10), 4);
    });
    versions_.OnTimeline(Step{10});
  }

  // Sealed in this node's memory, of replicas that were compared by digest.
  void Hold(Version version, Rank rank) {
    auto manifest = std::make_shared<layout::SlotManifest>();
    manifest->layout_digest = 77;
    manifest->tensors = {Whole("w", {4}, /*replica_index=*/0, /*replica_count=*/2)};
    manifest->replica_digests = {5};
    node_.held.push_back({{.version = version, .rank = rank, .world = 4}, std::move(manifest)});
  }
  static VersionHolding Of(const NodeReport& report, Version version) {
    for (const VersionHolding& holding : report.versions()) {
      if (VersionOf(holding) == version) return holding;
    }
    ADD_FAILURE() << "nothing is said of the version";
    return {};
  }

  std::unique_ptr<NodeRecord> record_ = NewRecord();
  meta::JobState job_;
  RecordingNode node_;
  RecordingProtection protection_;
  std::unique_ptr<KeptRecords> kept_ = OpenKept();
  OwnVersions versions_{*record_, job_, node_, protection_};
  Follower follower_{*kept_, *record_, versions_, node_, protection_, [] {}};
  ReportMaker reports_{{*record_, *kept_, follower_, versions_, node_, protection_}};
};

TEST_F(ReportMakerTest, EachHasANumberOfItsOwn) {
  EXPECT_EQ(reports_.Make().number(), 1U);
  EXPECT_EQ(reports_.Make().number(), 2U);
}

TEST_F(ReportMakerTest, SaysWhatTheNodeRemembers) {
  const NodeReport report = reports_.Make();
  EXPECT_EQ(report.session(), record_->session().value);
  EXPECT_EQ(report.incarnation(), AsBytes(record_->incarnation()));
  EXPECT_EQ(report.newest_timeline(), 2U);
  EXPECT_EQ(report.kept_epoch(), 0U) << "of a store that nobody has seeded";
  EXPECT_EQ(report.kept_sequence(), kept_->stamp().sequence);
  EXPECT_EQ(report.newest_step(), 10U);
  EXPECT_FALSE(report.capture_began());
}

TEST_F(ReportMakerTest, SaysWhatIsHeldOfEachVersion) {
  Hold(At(2, 10), Rank{0});
  Hold(At(2, 11), Rank{0});
  Hold(At(2, 11), Rank{1});
  GuardHeld guard{.version = At(2, 11), .complete = true, .coding = 9, .data_chunks = 2};
  guard.descriptions.push_back({.of = NodeSlot{3}, .ranks = {Rank{6}}, .world = 4});
  guard.encoded.push_back({NodeSlot{3}, "a memory", {Rank{6}}});
  protection_.held = {guard};
  const NodeReport report = reports_.Make();
  ASSERT_EQ(report.versions_size(), 2);
  const VersionHolding holding = Of(report, At(2, 11));
  ASSERT_EQ(holding.sealed_size(), 2);
  EXPECT_EQ(holding.sealed(1).rank(), 1U);
  EXPECT_EQ(holding.sealed(1).world(), 4U);
  EXPECT_EQ(holding.sealed(1).layout_digest(), 77U);
  ASSERT_EQ(holding.sealed(1).replica_digests_size(), 1);
  EXPECT_EQ(holding.sealed(1).replica_digests(0).digest(), 5U);
  EXPECT_TRUE(holding.guarded());
  EXPECT_EQ(holding.coding(), 9U);
  EXPECT_EQ(holding.data_chunks(), 2U);
  EXPECT_EQ(holding.encoded(0).incarnation(), "a memory");
  EXPECT_THAT(holding.encoded(0).ranks(), ElementsAre(6));
  EXPECT_THAT(holding.descriptions(0).ranks(), ElementsAre(6U));
  const VersionHolding committed = Of(report, At(2, 10));
  EXPECT_FALSE(committed.guarded());
  EXPECT_EQ(committed.sealed(0).replica_digests_size(), 0) << "they were compared";
}

TEST_F(ReportMakerTest, AVersionThatRanksBeganIsNamedBeforeAnythingIsHeld) {
  versions_.OnClaimed(At(2, 12), Rank{0});
  const NodeReport report = reports_.Make();
  EXPECT_EQ(Of(report, At(2, 12)).failure(), "");
  EXPECT_EQ(Of(report, At(2, 12)).sealed_size(), 0);
  EXPECT_EQ(report.newest_step(), 12U);
}

// What ranks, guards and slabs say of one version, from the first to the last word.
TEST_F(ReportMakerTest, TheLastWordOfAFailureIsARottenSlab) {
  versions_.OnFailed(At(2, 11), Rank{0}, "skipped");
  EXPECT_EQ(Of(reports_.Make(), At(2, 11)).failure(), "rank 0: skipped");
  protection_.failures[At(2, 11)] = "no room for a guard";
  EXPECT_EQ(Of(reports_.Make(), At(2, 11)).failure(), "no room for a guard");
  node_.rotten = {{At(2, 11), Rank{1}, "block 3 has rotted"}};
  EXPECT_EQ(Of(reports_.Make(), At(2, 11)).failure(), "rank 1: block 3 has rotted");
}

// The leader would give up what it has committed, or gave up long ago.
TEST_F(ReportMakerTest, ASlabRotsUnsaidWhereNothingCanBeCommittedAnyMore) {
  AbandonRecord& abandoned = job_.abandoned.value;
  abandoned.set_timeline(2);
  abandoned.set_after_step(10);
  abandoned.set_through_step(11);
  node_.rotten = {{At(2, 10), Rank{1}, "rotten"}, {At(2, 11), Rank{1}, "rotten"}};
  EXPECT_EQ(reports_.Make().versions_size(), 0);
}

TEST_F(ReportMakerTest, NamesWhoAsksAndInWhichLife) {
  EXPECT_EQ(reports_.Make().world(), 0U);
  follower_.Ask({Attempt{3}, 2, {{Rank{1}, {100, 7}, 4}}});
  const NodeReport report = reports_.Make();
  EXPECT_EQ(report.attempt(), 3U);
  EXPECT_EQ(report.world(), 2U);
  ASSERT_EQ(report.asking_size(), 1);
  EXPECT_EQ(report.asking(0).rank(), 1U);
  EXPECT_EQ(report.asking(0).pid(), 100);
  EXPECT_EQ(report.asking(0).start_time(), 7U);
  EXPECT_EQ(report.asking(0).request(), 4U);
}

}  // namespace
}  // namespace unreft::smp
