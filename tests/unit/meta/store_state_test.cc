// The embedded store's state: what it refuses. What it answers is tested as a Kv (conformance).
#include "meta/store_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unreft/meta_store.pb.h>

#include <string>

#include "meta/store_records.h"

namespace unreft::meta {
namespace {

using ::testing::HasSubstr;

StoreTxn PutOf(const std::string& key, size_t bytes) {
  StoreTxn txn;
  txn.then.push_back(StorePut{key, std::string(bytes, 'v'), {}});
  return txn;
}

StoreTxn DeleteOf(const std::string& key) {
  StoreTxn txn;
  txn.then.push_back(StoreDelete{{key, ""}});
  return txn;
}

absl::Status Apply(StoreState& state, const StoreTxn& txn) {
  auto decided = state.Decide(txn);
  if (decided.ok()) state.Apply(std::move(decided->second));
  return decided.status();
}

TEST(StoreStateTest, AReplyHasALimitHoweverSmallTheQuestion) {
  StoreState state({.reply_bytes_max = 10'000});
  ASSERT_TRUE(Apply(state, PutOf("a", 2000)).ok());
  ASSERT_TRUE(Apply(state, PutOf("b", 2000)).ok());
  StoreTxn reads;
  for (int i = 0; i < 2; ++i) reads.then.push_back(StoreRange{.span = {"a", "c"}});
  EXPECT_TRUE(Apply(state, reads).ok());
  for (int i = 0; i < 60; ++i) reads.then.push_back(StoreRange{.span = {"a", "c"}});
  const absl::Status status = Apply(state, reads);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("more than 10000 bytes"));
  for (StoreOp& op : reads.then) std::get<StoreRange>(op).keys_only = true;
  EXPECT_TRUE(Apply(state, reads).ok());
  for (StoreOp& op : reads.then) std::get<StoreRange>(op).keys_only = false;
  for (StoreOp& op : reads.then) std::get<StoreRange>(op).count_only = true;
  EXPECT_TRUE(Apply(state, reads).ok());
}

TEST(StoreStateTest, WhatAPutReplacesCountsForItsReply) {
  StoreState state({.reply_bytes_max = 1000});
  ASSERT_TRUE(Apply(state, PutOf("a", 2000)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Apply(state, PutOf("a", 1))));
  EXPECT_TRUE(absl::IsResourceExhausted(Apply(state, DeleteOf("a"))));
}

TEST(StoreStateTest, WhatIsStoredHasALimitAndGoesOnWhenThereIsRoom) {
  StoreState state({.stored_bytes_max = 5000});
  ASSERT_TRUE(Apply(state, PutOf("a", 2000)).ok());
  ASSERT_TRUE(Apply(state, PutOf("b", 2000)).ok());
  const absl::Status status = Apply(state, PutOf("c", 2000));
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("etcdserver: mvcc: database space exceeded"));
  EXPECT_EQ(state.keys().size(), 2u);
  EXPECT_TRUE(Apply(state, DeleteOf("a")).ok());
  EXPECT_TRUE(Apply(state, PutOf("c", 2000)).ok());
  EXPECT_TRUE(Apply(state, PutOf("b", 10)).ok());
  EXPECT_TRUE(Apply(state, PutOf("a", 1000)).ok());
}

// --- records ---

template <typename Message>
Record RecordOf(const std::string& key, const Message& message) {
  return {key, message.SerializeAsString()};
}

StoreMeta Head(uint64_t revision, uint64_t first_watchable) {
  StoreMeta head;
  head.set_format(1);
  head.set_min_reader(1);
  head.set_cluster_id(7);
  head.set_revision(revision);
  head.set_first_watchable(first_watchable);
  return head;
}

StoredKey Key(uint64_t created, uint64_t modified) {
  StoredKey key;
  key.set_key("a");
  key.set_create_revision(created);
  key.set_mod_revision(modified);
  return key;
}

absl::Status Load(const std::vector<Record>& records) {
  StoreState state({});
  return LoadRecords(records, state).status();
}

TEST(StoreRecordsTest, NothingIsNewerThanTheHead) {
  const StoredRevision none;
  EXPECT_TRUE(Load({RecordOf("h/0000000000000003", none), RecordOf("k/a", Key(2, 3)),
                    RecordOf("m", Head(3, 1))})
                  .ok());
  const auto expect_lost = [](const std::vector<Record>& records, const std::string& what) {
    const absl::Status status = Load(records);
    EXPECT_TRUE(absl::IsDataLoss(status)) << what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  };
  expect_lost({RecordOf("h/0000000000000004", none), RecordOf("m", Head(3, 1))}, "ends at 4");
  expect_lost({RecordOf("m", Head(3, 9))}, "watchable from 9");
  expect_lost({RecordOf("m", Head(0, 0))}, "at revision 0");
  expect_lost({RecordOf("k/a", Key(2, 4)), RecordOf("m", Head(3, 1))}, "changed at 4");
  expect_lost({RecordOf("k/a", Key(3, 2)), RecordOf("m", Head(3, 1))}, "made at revision 3");
  expect_lost({RecordOf("h/000000000000000A", none), RecordOf("h/000000000000000a", none),
               RecordOf("m", Head(10, 1))},
              "h/000000000000000a");
  expect_lost({RecordOf("k/a", Key(1, 1))}, "'m'");
}

}  // namespace
}  // namespace unreft::meta
