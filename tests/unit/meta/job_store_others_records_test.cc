// Records that somebody else has written: wrong ones, and the presence of other nodes.

#include "tests/unit/meta/job_store_fixture.h"

namespace unreft::meta {
namespace {

using std::chrono::seconds;

class JobStoreOthersRecordsTest : public JobStoreFixture {};

TEST_F(JobStoreOthersRecordsTest, AWrongRecordChangesNothingAndTheNextOneTakesItsPlace) {
  Node a(*this, "a");
  Node b(*this, "b");
  Settle();
  Lead(a);
  ASSERT_TRUE(Write(a, a.leadership.holding(), View(1)).ok());
  for (const std::string& wrong : {WrongView(), std::string("no message at all")}) {
    Put(b, "view", wrong);
    for (Node* node : {&a, &b}) {
      EXPECT_EQ(node->store.state().view.value.number(), 1U);
      EXPECT_TRUE(node->store.ready());
    }
  }
  EXPECT_EQ(sink_.Count("the record unreft/job/view is wrong: a group of 1 nodes with 0 data"), 2U);
  EXPECT_EQ(sink_.Count("the one before it counts"), 4U);
  EXPECT_TRUE(Write(a, a.leadership.holding(), View(2)).ok());
  Node c(*this, "c");
  Settle(seconds(1));
  EXPECT_EQ(c.store.state().view.value.number(), 2U);
  EXPECT_TRUE(c.store.ready());
}

TEST_F(JobStoreOthersRecordsTest, AWrongRecordIsNotTakenForNoneByWhoNeverSawAGoodOne) {
  Node a(*this, "a");
  Settle();
  Lead(a);
  JobChange change;
  change.commit.emplace().set_step(7);
  ASSERT_TRUE(Write(a, a.leadership.holding(), std::move(change)).ok());
  CommitRecord wrong;
  wrong.set_world(uint64_t{1} << 33);
  Put(a, "commit", wrong.SerializeAsString());
  Node b(*this, "b");
  Settle(seconds(1));
  EXPECT_FALSE(b.store.ready());
  EXPECT_TRUE(absl::IsDataLoss(b.store.status())) << b.store.status();
  EXPECT_NE(b.store.status().message().find("commit is wrong: a world of 8589934592"),
            std::string_view::npos);
  EXPECT_EQ(sink_.Count("nothing is decided or committed until it is mended"), 1U);

  // Who was there reads all again, and still knows what that very record stands for.
  InTurn(a, [&] { a.store.ReadAgain(); });
  Settle(seconds(12));
  EXPECT_TRUE(a.store.ready());
  EXPECT_EQ(a.store.state().commit.value.step(), 7U);
  change.commit.emplace().set_step(8);
  ASSERT_TRUE(Write(a, a.leadership.holding(), std::move(change)).ok());
  EXPECT_TRUE(b.store.ready());
  EXPECT_EQ(b.store.state().commit.value.step(), 8U);
}

TEST_F(JobStoreOthersRecordsTest, AWrongRecordThatWasWrittenUnseenStandsForNothing) {
  Node a(*this, "a");
  Node b(*this, "b");
  Settle();
  Lead(b);
  ASSERT_TRUE(Write(b, b.leadership.holding(), View(1)).ok());
  store_.CutOff(*a.executor);
  ASSERT_TRUE(Write(b, b.leadership.holding(), View(2)).ok());
  Put(b, "view", WrongView());
  InTurn(a, [&] { a.store.ReadAgain(); });
  store_.Mend(*a.executor);
  Settle(seconds(12));
  EXPECT_FALSE(a.store.ready()) << "view 2 came between";
  EXPECT_TRUE(b.store.ready());
  ASSERT_TRUE(Write(b, b.leadership.holding(), View(3)).ok());
  EXPECT_TRUE(a.store.ready());
  EXPECT_EQ(a.store.state().view.value.number(), 3U);
}

TEST_F(JobStoreOthersRecordsTest, AWrongPresenceIsAsGoodAsNone) {
  Node a(*this, "a");
  Settle();
  PresenceRecord presence;
  presence.set_address(std::string(5000, 'x'));
  Put(a, "node/3", presence.SerializeAsString());
  EXPECT_TRUE(a.store.state().present.empty());
  presence.set_address("10.0.0.3:4400");
  Put(a, "node/3", presence.SerializeAsString());
  EXPECT_EQ(a.store.state().present.size(), 1U);
}

TEST_F(JobStoreOthersRecordsTest, WhoIsLeavingIsNotPresent) {
  Node a(*this, "a");
  Settle();
  PresenceRecord presence;
  presence.set_address("10.0.0.3:4400");
  Put(a, "node/3", presence.SerializeAsString());
  ASSERT_TRUE(a.store.state().present.contains(NodeSlot{3}));
  presence.set_leaving(true);
  Put(a, "node/3", presence.SerializeAsString());
  EXPECT_FALSE(a.store.state().present.contains(NodeSlot{3}));
  EXPECT_TRUE(a.store.state().leaving.contains(NodeSlot{3}));
  presence.set_leaving(false);
  Put(a, "node/3", presence.SerializeAsString());
  EXPECT_TRUE(a.store.state().present.contains(NodeSlot{3}));
  EXPECT_TRUE(a.store.state().leaving.empty());
}

}  // namespace
}  // namespace unreft::meta
