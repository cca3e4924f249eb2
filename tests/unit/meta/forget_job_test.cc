#include "meta/forget_job.h"

#include <gmock/gmock.h>

#include "tests/unit/meta/meta_fixture.h"

namespace unreft::meta {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ForgetJobTest : public MetaFixture {
 protected:
  using Keys = std::vector<std::string>;

  absl::StatusOr<Keys> Forget(const std::string& job, bool although_present = false) {
    std::optional<absl::StatusOr<Keys>> result;
    InTurn(own_, [&] {
      ForgetJob(*own_.kv, job, although_present,
                [&](absl::StatusOr<Keys> removed) { result = std::move(removed); });
    });
    UNREFT_CHECK(scheduler_.RunUntil([&] { return result.has_value(); }, 100000));
    return *result;
  }

  void Put(const std::string& key, LeaseId lease = LeaseId{0}) {
    std::optional<bool> written;
    InTurn(own_, [&] {
      own_.kv->Commit(Txn{.then = {PutOp{key, "value", lease}}},
                      [&](auto result) { written = result.ok(); });
    });
    UNREFT_CHECK(scheduler_.RunUntil([&] { return written.has_value(); }, 100000) && *written);
  }

  LeaseId Grant() {
    std::optional<LeaseId> lease;
    InTurn(own_, [&] { own_.kv->GrantLease(seconds(2), [&](auto made) { lease = *made; }); });
    UNREFT_CHECK(scheduler_.RunUntil([&] { return lease.has_value(); }, 100000));
    return *lease;
  }

  Keys Stored() {
    std::optional<Keys> keys;
    InTurn(own_, [&] {
      Get(*own_.kv, {"unreft/", /*is_prefix=*/true}, [&](auto found) {
        keys.emplace();
        for (const KeyValue& kept : *found) keys->push_back(kept.key);
      });
    });
    UNREFT_CHECK(scheduler_.RunUntil([&] { return keys.has_value(); }, 100000));
    return *keys;
  }

  Process own_{*this};
};

TEST_F(ForgetJobTest, RemovesWhatTheJobHasAndNothingOfAnother) {
  for (const char* key : {"unreft/a/store", "unreft/a/view", "unreft/ab/view"}) Put(key);
  const absl::StatusOr<Keys> removed = Forget("a");
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_THAT(*removed, ElementsAre("store", "view"));
  EXPECT_THAT(Stored(), ElementsAre("unreft/ab/view"));
  EXPECT_THAT(*Forget("a"), IsEmpty());
}

TEST_F(ForgetJobTest, RefusesWhileADaemonIsPresent) {
  Put("unreft/a/view");
  Put("unreft/a/node/3", Grant());
  const absl::Status refused = Forget("a").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("job a has not ended: node/3 in the"));
  EXPECT_THAT(Stored(), ElementsAre("unreft/a/node/3", "unreft/a/view"));
  EXPECT_THAT(*Forget("a", /*although_present=*/true), ElementsAre("node/3", "view"));
  EXPECT_THAT(Stored(), IsEmpty());
}

// Where all were started with other settings nobody else could give the job up.
TEST_F(ForgetJobTest, WhoWasRefusedIsNotPresent) {
  Put("unreft/a/view");
  Put("unreft/a/refused/3", Grant());
  EXPECT_THAT(*Forget("a"), ElementsAre("refused/3", "view"));
  EXPECT_THAT(Stored(), IsEmpty());
}

TEST_F(ForgetJobTest, TakesADaemonForGoneWhenItsLeaseHasEnded) {
  Put("unreft/a/view");
  Put("unreft/a/node/3", Grant());
  Settle(seconds(4));
  EXPECT_THAT(*Forget("a"), ElementsAre("view"));
}

TEST_F(ForgetJobTest, RemovesNothingWhenTheRecordsChangeMeanwhile) {
  Put("unreft/a/view");
  std::optional<absl::StatusOr<Keys>> result;
  InTurn(own_, [&] {
    ForgetJob(*own_.kv, "a", false,
              [&](absl::StatusOr<Keys> removed) { result = std::move(removed); });
    // Between its read and its write.
    own_.kv->Commit(Txn{.then = {PutOp{"unreft/a/leader", "me"}}}, [](auto) {});
  });
  UNREFT_CHECK(scheduler_.RunUntil([&] { return result.has_value(); }, 100000));
  EXPECT_EQ(result->status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(Stored(), ElementsAre("unreft/a/leader", "unreft/a/view"));
}

}  // namespace
}  // namespace unreft::meta
