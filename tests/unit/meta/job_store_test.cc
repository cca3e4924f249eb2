#include "meta/job_store.h"

#include "meta/record_checks.h"
#include "tests/unit/meta/job_store_fixture.h"

namespace unreft::meta {
namespace {

using std::chrono::seconds;

class JobStoreTest : public JobStoreFixture {};

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
  // It is told in the very turn, before the watch has told the store of it.
  InTurn(a, [&] {
    Txn txn;
    txn.then.push_back(PutOp{"unreft/job/settings", settings.SerializeAsString(), LeaseId{}});
    a.kv->Commit(std::move(txn), [&](const auto& result) {
      UNREFT_CHECK(result.ok());
      const bool is_read = a.store.state().settings.exists();
      a.store.Write(leadership, View(1), [&, is_read](absl::Status s) {
        if (!is_read) written = s;
      });
    });
  });
  Settle(seconds(1));
  ASSERT_TRUE(written.has_value()) << "the settings were read too soon";
  EXPECT_TRUE(absl::IsAborted(*written)) << *written;
  EXPECT_FALSE(a.store.state().view.exists());
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

}  // namespace
}  // namespace unreft::meta
