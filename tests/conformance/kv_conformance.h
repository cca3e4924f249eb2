// What every Kv does: one suite, instantiated on the fake, on the engine alone, on the embedded
// server and on etcd. And a second one, of a store that is another process.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meta/kv.h"
#include "tests/conformance/follower.h"
#include "tests/conformance/world.h"

namespace unreft::meta {

class KvWorld {
 public:
  virtual ~KvWorld() = default;
  // Why this world cannot be had on this machine; empty when it can.
  virtual std::string missing() const { return ""; }
  virtual World& world() = 0;
  // A client of the one store of this world, whose calls fail after so long where time is real: a
  // machine that stands still for a second is no failure of the store.
  virtual std::unique_ptr<Kv> NewKv(Duration call_timeout) = 0;
  std::unique_ptr<Kv> NewKv() { return NewKv(std::chrono::seconds(5)); }
  // The store forgets what was changed before that revision.
  virtual void Forget(Revision before) = 0;

  // --- of a store that is another process ---

  // It dies, and lives again on the same data.
  virtual void Stop() { UNREFT_CHECK(false); }
  virtual void Start() { UNREFT_CHECK(false); }
  // While stopped: the data is gone. False when this store has no such fault.
  virtual bool LoseData() { return false; }
};

inline void PrintTo(const KeyValue& kv, std::ostream* out) {
  *out << fmt::format("{}={} (created {}, modified {}, version {}, lease {:x})", kv.key,
                      kv.value.substr(0, 40), kv.create_revision, kv.mod_revision, kv.version,
                      kv.lease.value);
}

// What a watch got, one entry per revision: "put k=v, delete k".
struct Watched {
  std::vector<std::string> revisions;
  std::vector<uint64_t> numbers;
  std::optional<absl::Status> end;
};

class KvConformance : public testing::TestWithParam<WorldMaker<KvWorld>> {
 protected:
  void SetUp() override {
    if (!world_->missing().empty()) GTEST_SKIP() << world_->missing();
    kv_ = world_->NewKv();
  }
  void TearDown() override {
    world().InTurn([&] {
      kv_.reset();
      followers_.clear();
    });
  }

  World& world() { return world_->world(); }
  Kv& kv() { return *kv_; }

  // Starts `ask` with a callback and returns what that got.
  template <typename Result, typename Ask>
  Result Wait(Ask ask) {
    std::optional<Result> result;
    world().InTurn([&] {
      ask([&](Result got) {
        EXPECT_FALSE(result.has_value()) << "called twice";
        EXPECT_TRUE(world().executor().InTurn());
        result = std::move(got);
      });
      EXPECT_FALSE(result.has_value()) << "called inline";
    });
    EXPECT_TRUE(world().RunUntil([&] { return result.has_value(); }));
    return *std::move(result);
  }

  absl::StatusOr<TxnResult> TryCommit(Kv& kv, Txn txn) {
    return Wait<absl::StatusOr<TxnResult>>(
        [&](auto done) { kv.Commit(std::move(txn), std::move(done)); });
  }
  TxnResult Commit(Txn txn) {
    auto result = TryCommit(kv(), std::move(txn));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : TxnResult{};
  }
  Revision Put(const std::string& key, const std::string& value, LeaseId lease = {}) {
    return Commit({.then = {PutOp{key, value, lease}}}).revision;
  }
  std::vector<KeyValue> Read(const std::string& key, bool is_prefix = false) {
    auto kvs = Wait<absl::StatusOr<std::vector<KeyValue>>>(
        [&](auto done) { Get(kv(), {key, is_prefix}, std::move(done)); });
    EXPECT_TRUE(kvs.ok()) << kvs.status();
    return kvs.ok() ? *std::move(kvs) : std::vector<KeyValue>{};
  }
  bool Holds(Compare compare) { return Commit({.compares = {std::move(compare)}}).succeeded; }

  LeaseId Grant(Duration ttl) {
    auto lease =
        Wait<absl::StatusOr<LeaseId>>([&](auto done) { kv().GrantLease(ttl, std::move(done)); });
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.ok() ? *lease : LeaseId{};
  }
  absl::Status KeepAlive(LeaseId lease) {
    return Wait<absl::Status>([&](auto done) { kv().KeepAlive(lease, std::move(done)); });
  }
  absl::Status Revoke(LeaseId lease) {
    return Wait<absl::Status>([&](auto done) { kv().RevokeLease(lease, std::move(done)); });
  }

  WatchId Watch(Kv& kv, KeyRange range, Revision start, Watched& watched) {
    WatchId id = WatchId::kNone;
    world().InTurn([&] {
      id = kv.Watch(
          std::move(range), start,
          [&watched](std::vector<WatchEvent> events) {
            std::string text;
            for (const WatchEvent& event : events) {
              EXPECT_EQ(event.kv.mod_revision, events.front().kv.mod_revision);
              if (!text.empty()) text += ", ";
              text += event.kind == WatchEvent::Kind::kDelete
                          ? "delete " + event.kv.key
                          : fmt::format("put {}={}", event.kv.key, event.kv.value);
            }
            watched.revisions.push_back(text);
            watched.numbers.push_back(events.front().kv.mod_revision.value);
          },
          [&watched](absl::Status status) {
            EXPECT_FALSE(watched.end.has_value()) << "ended twice";
            watched.end = std::move(status);
          });
      EXPECT_TRUE(watched.revisions.empty() && !watched.end) << "called inline";
    });
    return id;
  }
  // Lives until the Kv is gone: a watch may have something to say until then.
  Watched& NewWatched() { return watched_.emplace_back(); }
  Follower& NewFollower(Revision start) {
    Follower& follower = followers_.emplace_back(kv(), world().executor());
    world().InTurn([&] { follower.Start(start); });
    return follower;
  }
  bool Reached(const Watched& watched, size_t revisions) {
    return world().RunUntil([&] { return watched.revisions.size() >= revisions || watched.end; });
  }

  std::unique_ptr<KvWorld> world_ = GetParam().make();
  std::deque<Watched> watched_;
  std::deque<Follower> followers_;
  std::unique_ptr<Kv> kv_;
};

TEST_P(KvConformance, CreatesAKeyOnceAndTakesTheOtherBranchThen) {
  const Txn create{.compares = {Compare::Absent("k")},
                   .then = {PutOp{"k", "1", {}}},
                   .otherwise = {GetOp{{"k"}}}};
  const TxnResult first = Commit(create);
  EXPECT_TRUE(first.succeeded);
  EXPECT_TRUE(first.gets.empty());
  const TxnResult second = Commit(create);
  EXPECT_FALSE(second.succeeded);
  EXPECT_EQ(second.revision, first.revision) << "nothing has changed";
  ASSERT_EQ(second.gets.size(), 1u);
  EXPECT_EQ(second.gets[0],
            (std::vector<KeyValue>{{"k", "1", first.revision, first.revision, 1, LeaseId{}}}));
}

TEST_P(KvConformance, RevisionsAndVersionsCount) {
  const Revision created = Put("k", "1");
  const Revision other = Put("other", "x");
  const Revision modified = Put("k", "2");
  EXPECT_EQ(other.value, created.value + 1);
  EXPECT_EQ(modified.value, created.value + 2);
  EXPECT_EQ(Read("k"), (std::vector<KeyValue>{{"k", "2", created, modified, 2, LeaseId{}}}));
  EXPECT_EQ(Commit({.then = {DeleteOp{{"k"}}}}).revision.value, modified.value + 1);
  EXPECT_EQ(Commit({.then = {DeleteOp{{"k"}}}}).revision.value, modified.value + 1)
      << "deleting nothing changes nothing";
  const Revision again = Put("k", "3");
  EXPECT_EQ(Read("k"), (std::vector<KeyValue>{{"k", "3", again, again, 1, LeaseId{}}}));
}

TEST_P(KvConformance, ComparesEachField) {
  const Revision created = Put("k", "1");
  const Revision modified = Put("k", "2");
  EXPECT_TRUE(Holds(Compare::Created("k", created)));
  EXPECT_FALSE(Holds(Compare::Created("k", modified)));
  EXPECT_TRUE(Holds(Compare::Modified("k", modified)));
  EXPECT_FALSE(Holds(Compare::Modified("k", created)));
  EXPECT_TRUE(Holds({"k", Compare::Field::kVersion, 2, ""}));
  EXPECT_FALSE(Holds({"k", Compare::Field::kVersion, 1, ""}));
  EXPECT_TRUE(Holds(Compare::Equals("k", "2")));
  EXPECT_FALSE(Holds(Compare::Equals("k", "1")));
  EXPECT_FALSE(Holds(Compare::Absent("k")));
  EXPECT_TRUE(Holds(Compare::Absent("none")));
  EXPECT_TRUE(Holds({"none", Compare::Field::kVersion, 0, ""}));
  EXPECT_TRUE(Holds(Compare::Modified("none", Revision{0})));
  EXPECT_FALSE(Holds(Compare::Equals("none", ""))) << "what is not there equals no value";
  EXPECT_FALSE(Commit({.compares = {Compare::Equals("k", "2"), Compare::Absent("k")}}).succeeded)
      << "all must hold";
}

TEST_P(KvConformance, RangesAreByPrefixAndSorted) {
  Commit({.then = {PutOp{"a/2", "2", {}}, PutOp{"a/10", "10", {}}, PutOp{"a", "0", {}},
                   PutOp{"b", "b", {}}, PutOp{"\xff\xff", "f", {}}}});
  const auto keys = [&](const std::string& prefix) {
    std::vector<std::string> found;
    for (const KeyValue& kv : Read(prefix, true)) found.push_back(kv.key);
    return found;
  };
  EXPECT_EQ(keys("a/"), (std::vector<std::string>{"a/10", "a/2"}));
  EXPECT_EQ(keys("a"), (std::vector<std::string>{"a", "a/10", "a/2"}));
  EXPECT_EQ(keys("\xff"), (std::vector<std::string>{"\xff\xff"}));
  EXPECT_EQ(keys(""), (std::vector<std::string>{"a", "a/10", "a/2", "b", "\xff\xff"}));
  EXPECT_TRUE(keys("c").empty());
  const TxnResult result = Commit({.then = {DeleteOp{{"a/", true}}, GetOp{{"a", true}},
                                            PutOp{"c", "new", {}}, GetOp{{"c"}}, GetOp{{"none"}}}});
  ASSERT_EQ(result.gets.size(), 3u);
  ASSERT_EQ(result.gets[0].size(), 1u) << "a get sees what the Txn did before it";
  EXPECT_EQ(result.gets[0][0].key, "a");
  ASSERT_EQ(result.gets[1].size(), 1u);
  EXPECT_EQ(result.gets[1][0].mod_revision, result.revision);
  EXPECT_TRUE(result.gets[2].empty());
}

TEST_P(KvConformance, RefusesAKeyWrittenTwiceAndAnEmptyOne) {
  const auto code = [&](std::vector<Op> ops) {
    return TryCommit(kv(), {.then = std::move(ops)}).status().code();
  };
  constexpr auto kRefused = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code({PutOp{"k", "1", {}}, PutOp{"k", "2", {}}}), kRefused);
  EXPECT_EQ(code({PutOp{"k/1", "1", {}}, DeleteOp{{"k/", true}}}), kRefused);
  EXPECT_EQ(code({DeleteOp{{"k"}}, PutOp{"k", "1", {}}}), kRefused);
  EXPECT_EQ(code({PutOp{"", "1", {}}}), kRefused);
  EXPECT_EQ(code({GetOp{{""}}}), kRefused);
  EXPECT_EQ(code({DeleteOp{{""}}}), kRefused);
  EXPECT_TRUE(Read("", true).empty()) << "nothing was applied";
}

TEST_P(KvConformance, ValuesAreAnyBytesUpToAMebibyte) {
  const std::string binary("\0a\xff\0", 4);
  Put(binary, binary);
  Put("large", std::string(1 << 20, '\0'));
  EXPECT_EQ(Read(binary).at(0).value, binary);
  EXPECT_EQ(Read("large").at(0).value, std::string(1 << 20, '\0'));
  Put("empty", "");
  EXPECT_EQ(Read("empty").at(0).value, "");
  EXPECT_TRUE(Holds(Compare::Equals("empty", "")));
}

TEST_P(KvConformance, ManyKeys) {
  constexpr int kTxns = 20;
  for (int i = 0; i < kTxns; ++i) {
    Txn txn;
    for (int j = 0; j < 100; ++j) txn.then.push_back(PutOp{fmt::format("k/{}/{}", i, j), "v", {}});
    Commit(std::move(txn));
  }
  EXPECT_EQ(Read("k/", true).size(), 100u * kTxns);
  EXPECT_EQ(Read("k/7/", true).size(), 100u);
  Commit({.then = {DeleteOp{{"k/", true}}}});
  EXPECT_TRUE(Read("k/", true).empty());
}

TEST_P(KvConformance, OfTwoClientsOneWins) {
  auto other = world_->NewKv();
  int won = 0;
  int lost = 0;
  world().InTurn([&] {
    for (int i = 0; i < 20; ++i) {
      for (Kv* client : {kv_.get(), other.get()}) {
        client->Commit({.compares = {Compare::Absent(fmt::format("k{}", i))},
                        .then = {PutOp{fmt::format("k{}", i), "mine", {}}}},
                       [&](absl::StatusOr<TxnResult> result) {
                         ASSERT_TRUE(result.ok()) << result.status();
                         ++(result->succeeded ? won : lost);
                       });
      }
    }
  });
  EXPECT_TRUE(world().RunUntil([&] { return won + lost == 40; }));
  EXPECT_EQ(won, 20);
  world().InTurn([&] { other.reset(); });
}

TEST_P(KvConformance, ALeaseEndsAndTakesItsKeysAlong) {
  const LeaseId kept = Grant(std::chrono::seconds(60));
  const LeaseId revoked = Grant(std::chrono::seconds(60));
  EXPECT_NE(kept, revoked);
  Commit({.then = {PutOp{"a", "1", revoked}, PutOp{"b", "2", revoked}, PutOp{"c", "3", kept}}});
  EXPECT_EQ(Read("a").at(0).lease, revoked);
  const Revision put = Put("b", "moved", kept);
  Watched& watched = NewWatched();
  Watch(kv(), {"", true}, Revision{put.value + 1}, watched);
  EXPECT_TRUE(KeepAlive(revoked).ok());
  EXPECT_TRUE(Revoke(revoked).ok());
  EXPECT_TRUE(Read("a").empty());
  EXPECT_EQ(Read("", true).size(), 2u);
  ASSERT_TRUE(Reached(watched, 1));
  EXPECT_EQ(watched.revisions, (std::vector<std::string>{"delete a"}));
  EXPECT_EQ(KeepAlive(revoked).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Revoke(revoked).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(TryCommit(kv(), {.then = {PutOp{"d", "", revoked}}}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_TRUE(Read("d").empty());
}

TEST_P(KvConformance, AWatchGetsEveryRevisionInOrder) {
  const Revision first = Put("a/1", "1");
  Put("b", "-");
  Commit({.then = {PutOp{"a/2", "2", {}}, PutOp{"b", "-", {}}, PutOp{"a/3", "3", {}}}});
  Watched& past = NewWatched();
  Watched& one = NewWatched();
  Watch(kv(), {"a/", true}, first, past);
  Watch(kv(), {"a/2"}, first, one);
  ASSERT_TRUE(Reached(past, 2));
  Commit({.then = {DeleteOp{{"a/1"}}, PutOp{"a/2", "4", {}}}});
  Put("b", "-");
  Put("a/1", "5");
  ASSERT_TRUE(Reached(past, 4) && Reached(one, 2));
  EXPECT_EQ(past.revisions, (std::vector<std::string>{"put a/1=1", "put a/2=2, put a/3=3",
                                                      "delete a/1, put a/2=4", "put a/1=5"}));
  EXPECT_EQ(past.numbers, (std::vector<uint64_t>{first.value, first.value + 2, first.value + 3,
                                                 first.value + 5}));
  EXPECT_EQ(one.revisions, (std::vector<std::string>{"put a/2=2", "put a/2=4"}));
}

TEST_P(KvConformance, AWatchFromNowOnGetsNothingOld) {
  Put("k", "old");
  Watched& watched = NewWatched();
  Watch(kv(), {"k"}, Revision{0}, watched);
  // When it begins is not said: whatever comes first, then nothing is left out.
  int count = 0;
  while (watched.revisions.size() < 3 && count < 1000) Put("k", std::to_string(++count));
  ASSERT_TRUE(Reached(watched, 3));
  for (size_t i = 1; i < watched.numbers.size(); ++i) {
    EXPECT_EQ(watched.numbers[i], watched.numbers[i - 1] + 1);
  }
  EXPECT_NE(watched.revisions[0], "put k=old");
}

TEST_P(KvConformance, ACancelledWatchIsSilent) {
  const Revision put = Put("k", "0");
  Watched& cancelled = NewWatched();
  Watched& other = NewWatched();
  const WatchId id = Watch(kv(), {"k"}, Revision{put.value + 1}, cancelled);
  Watch(kv(), {"k"}, Revision{put.value + 1}, other);
  Put("k", "1");
  ASSERT_TRUE(Reached(cancelled, 1) && Reached(other, 1));
  world().InTurn([&] { kv().CancelWatch(id); });
  Put("k", "2");
  ASSERT_TRUE(Reached(other, 2));
  world().Settle();
  EXPECT_EQ(cancelled.revisions.size(), 1u);
  EXPECT_FALSE(cancelled.end.has_value());
}

TEST_P(KvConformance, AWatchOfWhatIsForgottenEnds) {
  const Revision first = Put("k", "1");
  Put("k", "2");
  const Revision last = Put("k", "3");
  world_->Forget(last);
  Watched& watched = NewWatched();
  Watch(kv(), {"k"}, first, watched);
  ASSERT_TRUE(Reached(watched, 1));
  ASSERT_TRUE(watched.end.has_value());
  EXPECT_EQ(watched.end->code(), absl::StatusCode::kOutOfRange) << *watched.end;
  EXPECT_EQ(Read("k").at(0).value, "3");
}

TEST_P(KvConformance, NoCallbackAfterTheDestructor) {
  bool called = false;
  world().InTurn([&] {
    const auto set = [&](const auto&) { called = true; };
    kv().Commit({.then = {PutOp{"k", "1", {}}}}, set);
    kv().Commit({.then = {GetOp{{"k"}}}}, set);
    kv().GrantLease(std::chrono::seconds(5), set);
    kv().KeepAlive(LeaseId{1}, set);
    kv().RevokeLease(LeaseId{1}, set);
    kv().Watch({"", true}, Revision{1}, set, set);
    kv_.reset();
  });
  world().Settle();
  EXPECT_FALSE(called);
}

// A store of its own process, which may die, and whose leases end when nobody keeps them alive.
class KvProcessConformance : public KvConformance {};

TEST_P(KvProcessConformance, ALeaseThatIsNotKeptAliveExpires) {
  LeaseId lease;
  absl::StatusOr<TxnResult> put;
  do {  // on a machine that stood still it has expired at once
    lease = Grant(std::chrono::seconds(1));
    put = TryCommit(kv(), {.then = {PutOp{"a", "", lease}, PutOp{"b", "", lease}}});
  } while (absl::IsNotFound(put.status()));
  ASSERT_TRUE(put.ok()) << put.status();
  Watched& watched = NewWatched();
  Watch(kv(), {"", true}, Revision{put->revision.value + 1}, watched);
  ASSERT_TRUE(Reached(watched, 1));
  EXPECT_EQ(watched.revisions, (std::vector<std::string>{"delete a, delete b"}));
  EXPECT_TRUE(Read("", true).empty());
  EXPECT_EQ(KeepAlive(lease).code(), absl::StatusCode::kNotFound);
}

TEST_P(KvProcessConformance, ARestartEndsWatchesAndLosesNoDataAndNoEvent) {
  const LeaseId lease = Grant(std::chrono::seconds(60));
  const Revision put = Put("leased", "x", lease);
  Follower& follower = NewFollower(Revision{put.value + 1});
  Put("k", "1");
  ASSERT_TRUE(world().RunUntil([&] { return follower.values().size() == 1; }));
  EXPECT_EQ(follower.ends(), 0u);
  auto other = world_->NewKv();
  world_->Stop();
  world_->Start();
  for (int i = 2; i <= 4; ++i) {
    const std::string value = std::to_string(i);
    // The connection may not be back yet; a Txn that compares is safe to repeat.
    const Txn txn{.compares = {Compare::Equals("k", std::to_string(i - 1))},
                  .then = {PutOp{"k", value, {}}}};
    for (int tries = 0; tries < 20; ++tries) {
      if (TryCommit(*other, txn).ok()) break;
    }
  }
  ASSERT_TRUE(world().RunUntil([&] { return follower.end() || follower.values().size() >= 4; }));
  EXPECT_EQ(follower.values(), (std::vector<std::string>{"1", "2", "3", "4"}));
  EXPECT_FALSE(follower.end().has_value()) << *follower.end();
  EXPECT_GT(follower.ends(), 0u);
  EXPECT_EQ(Read("leased").at(0).lease, lease);
  EXPECT_TRUE(KeepAlive(lease).ok());
  world().InTurn([&] { other.reset(); });
}

TEST_P(KvProcessConformance, WithoutAStoreTheOutcomeIsUnknownInTime) {
  Put("k", "1");
  world().InTurn([&] { kv_ = world_->NewKv(std::chrono::milliseconds(200)); });
  world_->Stop();
  for (const Txn& txn : {Txn{.then = {PutOp{"k", "2", {}}}}, Txn{.then = {GetOp{{"k"}}}}}) {
    const absl::Status status = TryCommit(kv(), txn).status();
    EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("meta store"));
  }
  const absl::Status kept = KeepAlive(LeaseId{1});
  EXPECT_TRUE(absl::IsUnavailable(kept) || absl::IsDeadlineExceeded(kept)) << kept;
}

TEST_P(KvProcessConformance, AWatchNoticesAnotherStore) {
  Put("k", "1");
  const Revision put = Put("k", "2");
  Follower& follower = NewFollower(put);
  ASSERT_TRUE(world().RunUntil([&] { return follower.values().size() == 1; }));
  world_->Stop();
  if (!world_->LoseData()) GTEST_SKIP() << "this store has no such fault";
  world_->Start();
  ASSERT_TRUE(world().RunUntil([&] { return follower.end().has_value(); }));
  EXPECT_EQ(follower.end()->code(), absl::StatusCode::kDataLoss) << *follower.end();
  EXPECT_THAT(std::string(follower.end()->message()), testing::HasSubstr(fmt::format("{}", put)));
  EXPECT_EQ(follower.values(), std::vector<std::string>{"2"});
}

}  // namespace unreft::meta
