// Of what a store answers nothing is believed that does not fit what was asked.

#include "meta/etcd_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace unreft::meta {
namespace {

namespace pb = etcdserverpb;
using ::testing::HasSubstr;

// A put, then a read of all keys that begin with "job/".
pb::TxnRequest Asked() {
  Txn txn;
  txn.then.push_back(PutOp{"job/a", "value", {}});
  txn.then.push_back(GetOp{{"job/", true}});
  return ToWire(std::move(txn));
}

pb::TxnResponse Answered(const std::string& key) {
  pb::TxnResponse response;
  response.set_succeeded(true);
  response.add_responses()->mutable_response_put();
  response.add_responses()->mutable_response_range()->add_kvs()->set_key(key);
  return response;
}

void ExpectMisfit(pb::TxnResponse response, const std::string& why) {
  const absl::Status status = FromWire(Asked(), std::move(response)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(why));
}

TEST(EtcdWireTest, AnAnswerToEveryReadIsTaken) {
  const auto result = FromWire(Asked(), Answered("job/a"));
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->gets.size(), 1U);
  EXPECT_EQ(result->gets[0].at(0).key, "job/a");
}

// Who had asked took the first of no answers.
TEST(EtcdWireTest, AnAnswerThatLacksOneToAReadIsRefused) {
  pb::TxnResponse none;
  none.set_succeeded(true);
  ExpectMisfit(none, "0 answers to 2 ops");
  pb::TxnResponse other = Answered("job/a");
  other.mutable_responses(1)->mutable_response_put();
  ExpectMisfit(other, "none to the read of op 1");
}

// A key shorter than the prefix of those that were asked for ended the daemon.
TEST(EtcdWireTest, KeysThatWereNotAskedForAreRefused) {
  ExpectMisfit(Answered("j"), "not asked for");
  pb::WatchResponse watched;
  watched.add_events()->mutable_kv()->set_key("j");
  EXPECT_TRUE(
      absl::IsUnavailable(FromWire(KeySpan::Of({"job/", true}), std::move(watched)).status()));
}

TEST(EtcdWireTest, RevisionsThatGoBackAreRefused) {
  pb::WatchResponse watched;
  for (const int64_t revision : {5, 5, 4}) {
    mvccpb::KeyValue& kv = *watched.add_events()->mutable_kv();
    kv.set_key("job/a");
    kv.set_mod_revision(revision);
  }
  pb::WatchResponse ascending = watched;
  ascending.mutable_events()->RemoveLast();
  const KeySpan span = KeySpan::Of({"job/", true});
  EXPECT_EQ(FromWire(span, std::move(ascending))->size(), 2U);
  EXPECT_THAT(std::string(FromWire(span, std::move(watched)).status().message()),
              HasSubstr("revision 4"));
}

}  // namespace
}  // namespace unreft::meta
