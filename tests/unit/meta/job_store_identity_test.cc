// Whether the meta store is still the one that it was: it may be another, or have gone back.

#include "tests/unit/meta/job_store_fixture.h"

namespace unreft::meta {
namespace {

using std::chrono::seconds;

class JobStoreIdentityTest : public JobStoreFixture {};

TEST_F(JobStoreIdentityTest, AnotherStoreIsAnErrorThatIsLogged) {
  Node a(*this, "a");
  Settle();
  const std::string before = a.store.state().store_id;
  store_.Kill();
  store_.LoseData();
  store_.Restart();
  Settle(seconds(5));
  EXPECT_NE(a.store.state().store_id, before);
  EXPECT_EQ(sink_.Count("it is another one now"), 1U);
}

TEST_F(JobStoreIdentityTest, AStoreThatWentBackGetsANewId) {
  Node a(*this, "a");
  Node b(*this, "b");
  Settle();
  Lead(a);
  const FakeKvStore::Copy copy = store_.TakeCopy();
  const std::string before = a.store.state().store_id;
  ASSERT_TRUE(Write(a, a.leadership.holding(), View(1)).ok());
  store_.Kill();
  store_.RollBack(copy);
  store_.Restart();
  Settle(seconds(5));
  const std::string after = a.store.state().store_id;
  EXPECT_NE(after, before);
  EXPECT_EQ(b.store.state().store_id, after);
  EXPECT_FALSE(a.store.state().view.exists());
  EXPECT_GE(sink_.Count("it went back and is at revision"), 1U);

  // The id that was given up is refused although the store is no older than what was seen of it.
  const Revision seen = a.store.state().revision;
  store_.Kill();
  store_.RollBack(copy);
  store_.Restart();
  Settle(seconds(5));
  EXPECT_NE(a.store.state().store_id, before);
  EXPECT_NE(a.store.state().store_id, after);
  EXPECT_EQ(b.store.state().store_id, a.store.state().store_id);
  EXPECT_GT(seen.value, 0U);
}

// Others write to it, too: by its revision alone it was taken for one that had only restarted.
TEST_F(JobStoreIdentityTest, AStoreThatWentBackAndIsAsFarAgainGetsANewId) {
  Node a(*this, "a");
  Settle();
  Lead(a);
  const FakeKvStore::Copy copy = store_.TakeCopy();
  const std::string before = a.store.state().store_id;
  ASSERT_TRUE(Write(a, a.leadership.holding(), View(1)).ok());
  const Revision seen = a.store.state().revision;
  store_.Kill();
  store_.RollBack(copy);
  store_.Restart();
  Process other(*this);
  ASSERT_TRUE(scheduler_.RunUntil([&] { return sink_.Count("the watch ended") > 0; }, 100000));
  Revision written;
  for (int i = 0; i < 5; ++i) {
    Settle(std::chrono::milliseconds(20));
    InTurn(other, [&] {
      Txn txn;
      txn.then.push_back(PutOp{"elsewhere", "value", LeaseId{}});
      other.kv->Commit(std::move(txn), [&](absl::StatusOr<TxnResult> result) {
        if (result.ok()) written = result->revision;
      });
    });
  }
  EXPECT_EQ(a.store.state().store_id, before) << "it was not read yet";
  EXPECT_GT(written, seen);
  Settle(seconds(5));
  EXPECT_NE(a.store.state().store_id, before);
  EXPECT_FALSE(a.store.state().view.exists());
}

// A store that other jobs write to, too, restored from a copy of before: no watch told of it, and
// what the leader had written since was missing for ever.
TEST_F(JobStoreIdentityTest, AStoreThatWentBackUnseenIsKnownByTheRecordsThatItLacks) {
  Node a(*this, "a");
  Settle();
  Lead(a);
  ASSERT_TRUE(Write(a, a.leadership.holding(), View(1)).ok());
  const FakeKvStore::Copy copy = store_.TakeCopy();
  const std::string before = a.store.state().store_id;
  ASSERT_TRUE(Write(a, a.leadership.holding(), View(2)).ok());
  const Revision seen = a.store.state().revision;
  store_.CutOff(*a.executor);
  store_.Kill();
  store_.RollBack(copy);
  store_.Restart();
  Process other(*this);
  Settle(seconds(1));
  Revision written;
  for (uint64_t i = 0; i < 50; ++i) {
    InTurn(other, [&] {
      Txn txn;
      txn.then.push_back(PutOp{"elsewhere", "value", LeaseId{}});
      other.kv->Commit(std::move(txn), [&](const auto& result) {
        UNREFT_CHECK(result.ok());
        written = result->revision;
      });
    });
    Settle(std::chrono::milliseconds(5));
  }
  ASSERT_GT(written, seen);
  store_.Mend(*a.executor);
  Settle(seconds(15));
  EXPECT_GT(a.store.state().revision, seen);
  EXPECT_NE(a.store.state().store_id, before);
  EXPECT_GE(sink_.Count("it went back and is at revision"), 1U);
}

TEST_F(JobStoreIdentityTest, ItIsSeededOnceARecordNamesItsId) {
  Node a(*this, "a");
  Settle();
  Lead(a);
  EXPECT_FALSE(a.store.state().IsSeeded());
  ASSERT_TRUE(Write(a, a.leadership.holding(), View(1)).ok());
  EXPECT_FALSE(a.store.state().IsSeeded());
  EXPECT_EQ(a.store.state().stamp().epoch, 0U);
  ASSERT_TRUE(Write(a, a.leadership.holding(), Seed(a, 3)).ok());
  EXPECT_TRUE(a.store.state().IsSeeded());
  Node b(*this, "b");
  Settle(seconds(1));
  EXPECT_EQ(b.store.state().stamp(), (Stamp{3, a.store.state().view.modified.value}));
  EXPECT_EQ(b.store.state().view.bytes, a.store.state().view.bytes);
  EXPECT_NE(b.store.state().view.bytes, "");
}

// Its daemon was away meanwhile, and the store has gone on: nobody else may be left who knows.
TEST_F(JobStoreIdentityTest, AStoreThatHasLessThanWasKeptOfItGetsANewId) {
  Node a(*this, "a");
  Settle();
  Lead(a);
  ASSERT_TRUE(Write(a, a.leadership.holding(), Seed(a, 1)).ok());
  const Node::Expected seen{a.store.state().store_id, a.store.state().stamp()};
  Node b(*this, "b", seen);
  Settle(seconds(1));
  EXPECT_EQ(b.store.state().store_id, seen.store_id) << "it has all that";
  const Node::Expected more{seen.store_id, {1, seen.newest.sequence + 1}};
  Node c(*this, "c", more);
  Settle(seconds(1));
  EXPECT_NE(c.store.state().store_id, seen.store_id);
  EXPECT_FALSE(c.store.state().IsSeeded());
}

TEST_F(JobStoreIdentityTest, AStoreOfAnEarlierEpochThanWasKeptGetsANewId) {
  Node a(*this, "a");
  Settle();
  Lead(a);
  ASSERT_TRUE(Write(a, a.leadership.holding(), Seed(a, 1)).ok());
  const std::string before = a.store.state().store_id;
  Node b(*this, "b", {"another", {2, 1}});
  Settle(seconds(1));
  EXPECT_NE(b.store.state().store_id, before);
  EXPECT_GE(sink_.Count("it went back and is at revision"), 1U);
}

// A job that was begun in a store of its own, by nodes that knew nothing: its epoch says nothing to
// one whose store was written from copies more often.
TEST_F(JobStoreIdentityTest, AStoreThatHasDecidedForAnotherJobKeepsItsId) {
  Node a(*this, "a");
  const std::string before = Decide(a, 2, Timelines(11, 12));
  Node b(*this, "b", {"another", {5, 1}, Timelines(21, 23)});
  Settle(seconds(1));
  InTurn(b, [&] { b.store.ReadAgain(); });
  Settle(seconds(1));
  EXPECT_EQ(a.store.state().store_id, before);
  EXPECT_EQ(b.store.state().stamp().epoch, 2U);
}

// As an operator may do with a backup: whose job is meant, nobody else knows.
TEST_F(JobStoreIdentityTest, AnotherJobsRecordsInThePlaceOfThisOnesKeepTheirId) {
  Node a(*this, "a");
  const std::string before = Decide(a, 3, Timelines(11, 12));
  Node b(*this, "b", {before, {3, 1}, Timelines(11, 12)});
  Settle(seconds(1));
  JobChange other = Seed(a, 2);
  other.timeline = Timelines(21, 23);
  ASSERT_TRUE(Write(a, a.leadership.holding(), std::move(other)).ok());
  EXPECT_EQ(b.store.state().store_id, before);
  InTurn(b, [&] { b.store.ReadAgain(); });
  Settle(seconds(1));
  EXPECT_EQ(b.store.state().store_id, before);
}

TEST_F(JobStoreIdentityTest, WhoseARecordIsThatCannotBeReadIsNotKnown) {
  Node a(*this, "a");
  const std::string before = Decide(a, 2, Timelines(11, 12));
  Put(a, "timeline", "no record");
  Node b(*this, "b", {"another", {5, 1}, Timelines(21, 23)});
  Settle(seconds(1));
  EXPECT_EQ(a.store.state().store_id, before);
}

TEST_F(JobStoreIdentityTest, AStoreOfAnEarlierEpochOfTheSameJobGetsANewId) {
  Node a(*this, "a");
  const std::string before = Decide(a, 2, Timelines(11, 12));
  Node b(*this, "b", {"another", {5, 1}, Timelines(11, 95)});
  Settle(seconds(1));
  EXPECT_NE(a.store.state().store_id, before) << "no fresh start makes another job of it";
}

// The reading was made before the write, and its answer came after: it lacks what was written.
TEST_F(JobStoreIdentityTest, AWriteThatIsAnsweredDuringAReadingIsNoSignOfAStoreThatWentBack) {
  Node a(*this, "a");
  Settle();
  Lead(a);
  const std::string before = a.store.state().store_id;
  for (uint64_t i = 1; i <= 100; ++i) {
    InTurn(a, [&] { a.store.ReadAgain(); });
    Settle(std::chrono::microseconds(200000 + 10 * i));  // when it is being read
    InTurn(a, [&] { a.store.Write(a.leadership.holding(), View(i), [](const auto&) {}); });
    Settle(std::chrono::milliseconds(50));
  }
  EXPECT_EQ(a.store.state().view.value.number(), 100U);
  EXPECT_EQ(a.store.state().store_id, before);
}

// Others have seen it go back. The records of before were kept, under the new id.
TEST_F(JobStoreIdentityTest, ANewIdThatAWatchTellsMeansThatAllIsReadAnew) {
  Node a(*this, "a");
  Settle();
  Lead(a);
  ASSERT_TRUE(Write(a, a.leadership.holding(), View(1)).ok());
  const std::string before = a.store.state().store_id;
  StoreRecord record;
  record.set_format(1);
  record.set_min_reader(1);
  record.set_store_id("the id of another one");
  record.mutable_store_id()->resize(before.size());
  Process other(*this);
  InTurn(other, [&] {
    Txn txn;
    txn.then.push_back(DeleteOp{{"unreft/job/view", false}});
    txn.then.push_back(PutOp{"unreft/job/store", record.SerializeAsString(), LeaseId{}});
    other.kv->Commit(std::move(txn), [](auto) {});
  });
  Settle();
  EXPECT_EQ(a.store.state().store_id, record.store_id());
  EXPECT_FALSE(a.store.state().view.exists());
  EXPECT_EQ(sink_.Count("it is another one now"), 1U);
}

}  // namespace
}  // namespace unreft::meta
