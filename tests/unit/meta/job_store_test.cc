#include "meta/job_store.h"

#include "meta/record_checks.h"
#include "tests/unit/meta/meta_fixture.h"

namespace unreft::meta {
namespace {

using std::chrono::seconds;

class JobStoreTest : public MetaFixture {
 protected:
  // A node with a job store and, if it gets it, the leadership.
  struct Node : Process {
    struct Expected {
      std::string store_id;
      Stamp newest;
    };
    Node(JobStoreTest& test, std::string name, Expected expected = {})
        : Process(test),
          store(*kv, *executor, random, test.log_, "job", [this] { ++changes; }),
          leadership(
              *kv, *executor, test.log_, store.LeaderKey(), seconds(2),
              [](const std::string&) { return false; }, [] {}),
          value(std::move(name)) {
      test.InTurn(*this, [&] {
        store.Expect(expected.store_id, expected.newest);
        store.Start();
      });
    }
    ~Node() { executor->Kill(); }

    int changes = 0;
    JobStore store;
    LeasedKey leadership;
    std::string value;
  };

  void Lead(Node& node) {
    PresenceRecord presence;
    presence.set_address(node.value);
    InTurn(node, [&] { node.leadership.Hold(presence.SerializeAsString()); });
    Settle();
    ASSERT_TRUE(node.leadership.held());
  }

  absl::Status Write(Node& node, const HeldKey& leadership, JobChange change) {
    std::optional<absl::Status> written;
    InTurn(node, [&] {
      node.store.Write(leadership, std::move(change), [&](absl::Status s) { written = s; });
    });
    Settle(seconds(3));
    return written.value_or(absl::InternalError("it was not answered"));
  }

  // As anybody who reaches the store can.
  void Put(Node& node, const std::string& name, const std::string& value) {
    InTurn(node, [&] {
      Txn txn;
      txn.then.push_back(PutOp{"unreft/job/" + name, value, LeaseId{}});
      node.kv->Commit(std::move(txn), [](auto) {});
    });
    Settle(seconds(1));
  }

  static std::string WrongView() {
    ViewRecord view;
    view.set_number(9);
    Group& group = *view.add_groups();
    group.add_slots(0);
    group.set_k(0);
    return view.SerializeAsString();
  }

  JobChange Seed(const Node& node, uint64_t epoch) {
    JobChange change = View(epoch);
    change.seed.emplace().set_store_id(node.store.state().store_id);
    change.seed->set_epoch(epoch);
    return change;
  }
  static JobChange View(uint64_t number) {
    JobChange change;
    change.view.emplace().set_number(number);
    return change;
  }
};

TEST_F(JobStoreTest, TheFirstMakesTheStoreAndAllReadTheSame) {
  Node a(*this, "a");
  Node b(*this, "b");
  Settle(seconds(1));
  ASSERT_TRUE(a.store.ready());
  ASSERT_TRUE(b.store.ready());
  EXPECT_EQ(a.store.state().store_id.size(), 16U);
  EXPECT_EQ(a.store.state().store_id, b.store.state().store_id);
  EXPECT_GT(a.changes, 0);
}

TEST_F(JobStoreTest, WhatTheLeaderWritesReachesAll) {
  Node a(*this, "a");
  Node b(*this, "b");
  Settle();
  Lead(a);
  EXPECT_TRUE(Write(a, a.leadership.holding(), View(1)).ok());
  EXPECT_EQ(a.store.state().view.value.number(), 1U);
  EXPECT_EQ(b.store.state().view.value.number(), 1U);
  EXPECT_EQ(b.store.state().leader.value.address(), "a");
  EXPECT_EQ(b.store.state().leader_created, a.leadership.holding().created);
}

TEST_F(JobStoreTest, WhatNobodyWouldTakeIsNotWritten) {
  Node a(*this, "a");
  Node b(*this, "b");
  Settle();
  Lead(a);
  JobChange wrong = View(2);
  wrong.commit.emplace().set_world(1);
  wrong.commit->add_holders()->add_ranks(1);
  const absl::Status status = Write(a, a.leadership.holding(), wrong);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_FALSE(a.store.state().view.exists());
  // It would not have been taken, and what is written on it be aborted for ever.
  EXPECT_TRUE(Write(a, a.leadership.holding(), View(3)).ok());
  EXPECT_EQ(b.store.state().view.value.number(), 3U);
}

TEST_F(JobStoreTest, ALeaderThatWasReplacedChangesNothing) {
  Node a(*this, "a");
  Settle();
  Lead(a);
  const HeldKey old = a.leadership.holding();
  Node b(*this, "b");
  store_.CutOff(*a.executor);
  Settle(seconds(5));
  Lead(b);
  store_.Mend(*a.executor);
  ASSERT_TRUE(Write(b, b.leadership.holding(), View(1)).ok());
  Settle(seconds(2));
  EXPECT_FALSE(a.leadership.held());
  EXPECT_TRUE(absl::IsAborted(Write(a, old, View(7))));
  EXPECT_EQ(b.store.state().view.value.number(), 1U);
}

// In a store that went back revisions come again.
TEST_F(JobStoreTest, AKeyOfTheSameRevisionIsAnothersByItsValue) {
  Node a(*this, "a");
  Settle();
  Lead(a);
  const HeldKey before = a.leadership.holding();
  Node b(*this, "b");
  store_.CutOff(*a.executor);
  Settle(seconds(5));
  Lead(b);
  store_.Mend(*a.executor);
  Settle(seconds(2));
  const HeldKey again{b.leadership.holding().created, before.value};
  ASSERT_EQ(a.store.state().leader_created, again.created);
  EXPECT_FALSE(a.store.IsLedBy(again));
  EXPECT_TRUE(absl::IsAborted(Write(a, again, View(7))));
  EXPECT_FALSE(b.store.state().view.exists());
}

TEST_F(JobStoreTest, AWriteOnRecordsThatHaveChangedIsAborted) {
  Node a(*this, "a");
  Settle();
  Lead(a);
  const HeldKey leadership = a.leadership.holding();
  std::vector<absl::Status> written;
  InTurn(a, [&] {
    a.store.Write(leadership, View(1), [&](absl::Status s) { written.push_back(s); });
    a.store.Write(leadership, View(2), [&](absl::Status s) { written.push_back(s); });
  });
  Settle(seconds(1));
  ASSERT_EQ(written.size(), 2U);
  EXPECT_NE(written[0].ok(), written[1].ok());
}

// A daemon that was started otherwise led for a moment, and formed groups that bear no loss.
TEST_F(JobStoreTest, AWriteUnderSettingsThatHaveChangedIsAborted) {
  Node a(*this, "a");
  Settle();
  Lead(a);
  SettingsRecord settings;
  settings.set_format(kSettingsFormat);
  settings.set_min_reader(kSettingsMinReader);
  settings.set_nodes(4);
  std::optional<absl::Status> written;
  const HeldKey leadership = a.leadership.holding();
  InTurn(a, [&] {
    Txn txn;
    txn.then.push_back(PutOp{"unreft/job/settings", settings.SerializeAsString(), LeaseId{}});
    a.kv->Commit(std::move(txn), [](auto) {});
    a.store.Write(leadership, View(1), [&](absl::Status s) { written = s; });
  });
  Settle(seconds(1));
  ASSERT_TRUE(written.has_value());
  const bool came_first = a.store.state().view.exists();
  EXPECT_EQ(written->ok(), came_first);
  EXPECT_TRUE(Write(a, leadership, View(2)).ok()) << "once it has been read";
}

TEST_F(JobStoreTest, AnAnswerThatIsLostIsReadBack) {
  Node a(*this, "a");
  Settle();
  Lead(a);
  store_.set_lose_one_in(2);
  uint64_t number = 0;
  for (int i = 0; i < 30; ++i) {
    const uint64_t before = a.store.state().view.value.number();
    const absl::Status status = Write(a, a.leadership.holding(), View(before + 1));
    if (status.ok()) number = before + 1;
  }
  store_.set_lose_one_in(0);
  Settle(seconds(5));
  Node b(*this, "b");
  Settle(seconds(1));
  EXPECT_GT(number, 0U);
  EXPECT_EQ(a.store.state().view.value.number(), b.store.state().view.value.number());
  EXPECT_GE(b.store.state().view.value.number(), number);
}

TEST_F(JobStoreTest, TheStoreRestartsAndNothingIsMissed) {
  Node a(*this, "a");
  Node b(*this, "b");
  Settle();
  Lead(a);
  ASSERT_TRUE(Write(a, a.leadership.holding(), View(1)).ok());
  store_.Kill();
  Settle(seconds(1));
  store_.Restart();
  Settle(seconds(5));
  ASSERT_TRUE(a.leadership.held());
  ASSERT_TRUE(Write(a, a.leadership.holding(), View(2)).ok());
  EXPECT_EQ(b.store.state().view.value.number(), 2U);
}

TEST_F(JobStoreTest, AnotherStoreIsAnErrorThatIsLogged) {
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

TEST_F(JobStoreTest, AStoreThatWentBackGetsANewId) {
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
TEST_F(JobStoreTest, AStoreThatWentBackAndIsAsFarAgainGetsANewId) {
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
TEST_F(JobStoreTest, AStoreThatWentBackUnseenIsKnownByTheRecordsThatItLacks) {
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
  for (uint64_t i = 0; i < 50; ++i) {
    InTurn(other, [&] {
      Txn txn;
      txn.then.push_back(PutOp{"elsewhere", "value", LeaseId{}});
      other.kv->Commit(std::move(txn), [](auto) {});
    });
    Settle(std::chrono::milliseconds(5));
  }
  store_.Mend(*a.executor);
  Settle(seconds(15));
  EXPECT_GT(a.store.state().revision, seen);
  EXPECT_NE(a.store.state().store_id, before);
  EXPECT_GE(sink_.Count("it went back and is at revision"), 1U);
}

TEST_F(JobStoreTest, ItIsSeededOnceARecordNamesItsId) {
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
TEST_F(JobStoreTest, AStoreThatHasLessThanWasKeptOfItGetsANewId) {
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

TEST_F(JobStoreTest, AStoreOfAnEarlierEpochThanWasKeptGetsANewId) {
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

// The reading was made before the write, and its answer came after: it lacks what was written.
TEST_F(JobStoreTest, AWriteThatIsAnsweredDuringAReadingIsNoSignOfAStoreThatWentBack) {
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
TEST_F(JobStoreTest, ANewIdThatAWatchTellsMeansThatAllIsReadAnew) {
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

TEST_F(JobStoreTest, WhoIsPresentIsNotWrittenAsAbsent) {
  Node a(*this, "a");
  Settle();
  Lead(a);
  PresenceRecord presence;
  presence.set_slot(3);
  LeasedKey present(
      *a.kv, *a.executor, log_, a.store.PresenceKey(NodeSlot{3}), seconds(2),
      [](const std::string&) { return false; }, [] {});
  InTurn(a, [&] { present.Hold(presence.SerializeAsString()); });
  Settle();
  JobChange change = View(1);
  change.absent = {NodeSlot{2}, NodeSlot{3}};
  EXPECT_TRUE(absl::IsAborted(Write(a, a.leadership.holding(), change)));
  change.absent = {NodeSlot{2}};
  EXPECT_TRUE(Write(a, a.leadership.holding(), change).ok());
  a.executor->Kill();
}

// --- records that somebody else has written ---

TEST_F(JobStoreTest, AWrongRecordChangesNothingAndTheNextOneTakesItsPlace) {
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

TEST_F(JobStoreTest, AWrongRecordIsNotTakenForNoneByWhoNeverSawAGoodOne) {
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

TEST_F(JobStoreTest, AWrongRecordThatWasWrittenUnseenStandsForNothing) {
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

TEST_F(JobStoreTest, AWrongPresenceIsAsGoodAsNone) {
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

TEST_F(JobStoreTest, WhoIsLeavingIsNotPresent) {
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
