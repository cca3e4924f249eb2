// What a member does when the meta store was lost, or says what is over.

#include <gmock/gmock.h>

#include "smp/job/pins.h"
#include "tests/unit/smp/member_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class MemberStoreLossTest : public MemberFixture {
 protected:
  // Node 1 leads, and a fresh start was decided.
  MemberStoreLossTest() {
    leader_ = &Join(1, true);
    StartMember();
    Put("timeline", Decided(1, 1, Version{}));
  }
};

TEST_F(MemberStoreLossTest, AStoreThatWentBackIsNotFollowed) {
  Seed();
  Put("timeline", Decided(2, 2, At(1, 10)));
  LoseStore();
  TimelineRecord older = Chain(1, 7);
  older.set_closing(true);
  Put("timeline", older);
  EXPECT_THAT(node_.closing, IsEmpty());
  EXPECT_EQ(record_->chain().newest(), Timeline{2});
}

TEST_F(MemberStoreLossTest, AnOlderCommitIsWhatAStoreSaysThatWentBack) {
  Seed();
  Put("commit", Committed(At(1, 5)));
  LoseStore();
  Put("commit", Committed(At(1, 4)));
  EXPECT_THAT(node_.committed, ElementsAre(At(1, 5)));
  EXPECT_EQ(record_->committed(), At(1, 5));
}

// It was lowered to that of the store: what it had freed for the newer one was to be restored.
TEST_F(MemberStoreLossTest, ANewProcessKeepsTheCommitThatTheStoreHasLost) {
  Seed();
  Put("timeline", Decided(2, 2, At(1, 10)));
  Put("commit", Committed(At(2, 12)));
  StopMember();
  LoseStore();
  Put("commit", Committed(At(2, 11)));
  StartMember();
  Settle();
  EXPECT_EQ(record_->chain().newest(), Timeline{2});
  EXPECT_EQ(record_->committed(), At(2, 12));
}

// Its revisions begin again, and one may be the same.
TEST_F(MemberStoreLossTest, ThePinsOfAnotherStoreAreOthersAlsoAtTheSameRevision) {
  for (int i = 0; i < 30; ++i) Put("filler", PinRecord());
  PinRecord pins;
  SetVersion(At(1, 5), *pins.add_pins());
  Put("pins", pins);
  EXPECT_TRUE(IsPinned(node_.pins.back(), At(1, 5)));
  const meta::Revision revision = member_->job().pins.modified;
  kv_store_.CutOff(*process_);
  LoseStore();
  const meta::JobState& job = leader_->store->state();
  ASSERT_NE(job.store_id, member_->job().store_id);
  while (job.revision.value + 1 < revision.value) Put("filler", PinRecord());
  pins.Clear();
  SetVersion(At(1, 6), *pins.add_pins());
  Put("pins", pins);
  ASSERT_EQ(job.pins.modified, revision);
  kv_store_.Mend(*process_);
  Settle(seconds(20));
  ASSERT_EQ(job.store_id, member_->job().store_id);
  EXPECT_TRUE(IsPinned(node_.pins.back(), At(1, 6)));
}

// A store that was lost has its records back without the decision. The memory of a spare that took
// a slot then followed no commit, and let go of no guard.
TEST_F(MemberStoreLossTest, AChainIsFollowedAlsoWithoutTheDecisionThatOpenedIt) {
  const size_t told = node_.decisions.size();
  Put("timeline", Chain(2, 2));
  Put("commit", Committed(At(2, 11)));
  EXPECT_EQ(record_->chain().newest(), Timeline{2});
  EXPECT_TRUE(record_->capture_began());
  EXPECT_EQ(record_->committed(), At(2, 11));
  EXPECT_THAT(node_.committed, ElementsAre(At(2, 11)));
  EXPECT_EQ(node_.decisions.size(), told);
}

// It took the round for one that it had closed, and the leader waited for it for ever.
TEST_F(MemberStoreLossTest, ATimelineThatADecisionOpenedIsClosedAgainForTheSameRound) {
  TimelineRecord closing = Chain(1, 3);
  closing.set_closing(true);
  Put("timeline", closing);
  Do([this](Member&) { node_.closing.at(0)(); });
  EXPECT_EQ(leader_->reports.back().round_closed(), 3U);
  Put("timeline", Decided(1, 2, Version{}));  // the store went back
  EXPECT_EQ(leader_->reports.back().round_closed(), 0U);
  Put("timeline", closing);
  ASSERT_EQ(node_.closing.size(), 2U);
  EXPECT_EQ(leader_->reports.back().round_closed(), 0U);
  Do([this](Member&) { node_.closing.at(1)(); });
  EXPECT_EQ(leader_->reports.back().round_closed(), 3U);
}

}  // namespace
}  // namespace unreft::smp
