#include "meta/leased_key.h"

#include "tests/unit/meta/meta_fixture.h"

namespace unreft::meta {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class LeasedKeyTest : public MetaFixture {
 protected:
  struct Holder : Process {
    Holder(LeasedKeyTest& test, std::string value_to_replace = "")
        : Process(test),
          key(
              *kv, *executor, test.log_, "key", seconds(2),
              [value_to_replace](const std::string& value) { return value == value_to_replace; },
              [this] { ++changes; }) {}
    ~Holder() { executor->Kill(); }

    int changes = 0;
    LeasedKey key;
  };

  void Hold(Holder& holder, std::string value) {
    InTurn(holder, [&] { holder.key.Hold(std::move(value)); });
  }

  // What the store has, by a process of its own.
  std::vector<KeyValue> Stored() {
    Process reader(*this);
    std::optional<std::vector<KeyValue>> read;
    InTurn(reader, [&] {
      Get(*reader.kv, {"key"}, [&](auto found) { read = found.value_or(std::vector<KeyValue>{}); });
    });
    UNREFT_CHECK(scheduler_.RunUntil([&] { return read.has_value(); }, 100000));
    return *read;
  }
};

TEST_F(LeasedKeyTest, IsHeldWhileItsOwnerLivesAndGoesAfterItsDeath) {
  auto a = std::make_unique<Holder>(*this);
  Hold(*a, "a");
  Settle(seconds(20));
  ASSERT_TRUE(a->key.held());
  ASSERT_EQ(Stored().size(), 1U);
  EXPECT_EQ(Stored()[0].value, "a");
  EXPECT_EQ(Stored()[0].create_revision, a->key.holding().created);
  EXPECT_EQ(a->changes, 1);
  a.reset();
  Settle(seconds(4));
  EXPECT_TRUE(Stored().empty());
}

TEST_F(LeasedKeyTest, OnlyOneHoldsIt) {
  Holder a(*this);
  Holder b(*this);
  Hold(a, "a");
  Hold(b, "b");
  for (int i = 0; i < 100; ++i) {
    Settle(milliseconds(100));
    EXPECT_FALSE(a.key.held() && b.key.held());
  }
  EXPECT_NE(a.key.held(), b.key.held());
}

TEST_F(LeasedKeyTest, TheNextHolderComesWhenTheFirstIsDead) {
  auto a = std::make_unique<Holder>(*this);
  Hold(*a, "a");
  Settle();
  Holder b(*this);
  Hold(b, "b");
  Settle(seconds(5));
  EXPECT_FALSE(b.key.held());
  const Revision first = a->key.holding().created;
  a.reset();
  Settle(seconds(6));
  EXPECT_TRUE(b.key.held());
  EXPECT_GT(b.key.holding().created, first);
}

// Another who waits for the key does not get in between.
TEST_F(LeasedKeyTest, AnEarlierLifesKeyIsTakenOverAtOnceAndNeverAway) {
  auto a = std::make_unique<Holder>(*this);
  Hold(*a, "life 1");
  Settle();
  const Revision first = a->key.holding().created;
  a.reset();
  Holder again(*this, "life 1");
  Hold(again, "life 2");
  Settle(milliseconds(200));
  EXPECT_TRUE(again.key.held());
  EXPECT_EQ(again.key.holding(), (HeldKey{first, "life 2"}));
  ASSERT_EQ(Stored().size(), 1U);
  EXPECT_EQ(Stored()[0].create_revision, first) << "it was away";
  EXPECT_EQ(Stored()[0].value, "life 2");
  // By a lease of its own: that of the first ends.
  Settle(seconds(10));
  EXPECT_TRUE(again.key.held());
  EXPECT_EQ(Stored().size(), 1U);
}

TEST_F(LeasedKeyTest, ANewValueKeepsTheCreateRevision) {
  Holder a(*this);
  Hold(a, "one");
  Settle();
  const Revision created = a.key.holding().created;
  Hold(a, "two");
  Settle();
  EXPECT_EQ(Stored()[0].value, "two");
  EXPECT_EQ(Stored()[0].create_revision, created);
  EXPECT_EQ(a.key.holding().created, created);
}

TEST_F(LeasedKeyTest, WhoIsCutOffLosesItAndComesBack) {
  Holder a(*this);
  Hold(a, "a");
  Settle();
  store_.CutOff(*a.executor);
  Settle(seconds(6));
  EXPECT_FALSE(a.key.held());
  EXPECT_TRUE(Stored().empty());
  store_.Mend(*a.executor);
  Settle(seconds(4));
  EXPECT_TRUE(a.key.held());
  EXPECT_EQ(Stored().size(), 1U);
}

TEST_F(LeasedKeyTest, WhatIsReleasedIsGoneAndLeftAloneUntilItIsWantedAgain) {
  Holder a(*this);
  Hold(a, "a");
  Settle();
  ASSERT_TRUE(a.key.held());
  InTurn(a, [&] { a.key.Release(); });
  Settle(milliseconds(200));
  EXPECT_FALSE(a.key.held());
  EXPECT_EQ(a.changes, 2);
  EXPECT_TRUE(Stored().empty()) << "it does not wait for the lease's end";
  InTurn(a, [&] { a.key.Look(); });
  Settle(seconds(10));
  EXPECT_TRUE(Stored().empty());
  Hold(a, "b");
  Settle();
  EXPECT_TRUE(a.key.held());
  EXPECT_EQ(Stored().at(0).value, "b");
}

TEST_F(LeasedKeyTest, WhatIsReleasedBeforeItIsHeldStaysAway) {
  for (int delay = 0; delay < 20; ++delay) {
    Holder a(*this);
    Hold(a, "a");
    Settle(std::chrono::microseconds(50 * delay));
    InTurn(a, [&] { a.key.Release(); });
    Settle(seconds(6));
    EXPECT_FALSE(a.key.held());
    EXPECT_TRUE(Stored().empty()) << "after " << delay;
  }
}

// What it believes must become what the store has, whatever was lost on the way: a write that is
// answered after its lease was lost once made a key count as held that nobody keeps alive.
TEST_F(LeasedKeyTest, WhatIsHeldIsThereOnceMessagesArriveAgain) {
  for (int round = 0; round < 20; ++round) {
    Holder a(*this);
    Holder b(*this);
    store_.set_lose_one_in(2);
    Hold(a, "a");
    Hold(b, "b");
    Settle(seconds(8));
    store_.set_lose_one_in(0);
    Settle(seconds(8));
    ASSERT_EQ(Stored().size(), 1U);
    EXPECT_NE(a.key.held(), b.key.held()) << "round " << round;
    EXPECT_EQ(Stored()[0].value, a.key.held() ? "a" : "b");
    EXPECT_EQ(Stored()[0].create_revision,
              a.key.held() ? a.key.holding().created : b.key.holding().created);
  }
}

// Who counts on it is to know at once; another of its owner's life has its lease's time to come.
TEST_F(LeasedKeyTest, ItsLastWordIsThereAtOnceAndGoesWithTheLease) {
  auto a = std::make_unique<Holder>(*this);
  Hold(*a, "a");
  Settle();
  bool left = false;
  InTurn(*a, [&] { a->key.Leave("last", [&] { left = true; }); });
  Settle(milliseconds(100));
  EXPECT_TRUE(left);
  ASSERT_EQ(Stored().size(), 1U);
  EXPECT_EQ(Stored()[0].value, "last");
  Settle(milliseconds(1000));
  EXPECT_EQ(Stored().size(), 1U);
  Settle(seconds(3));
  EXPECT_TRUE(Stored().empty()) << "nobody keeps it alive";
}

TEST_F(LeasedKeyTest, TheLastWordOfOneThatIsNotHeldIsNotWritten) {
  Holder a(*this);
  Holder b(*this);
  Hold(a, "a");
  Settle();
  Hold(b, "b");
  Settle();
  bool left = false;
  InTurn(b, [&] { b.key.Leave("last", [&] { left = true; }); });
  Settle();
  EXPECT_TRUE(left);
  ASSERT_EQ(Stored().size(), 1U);
  EXPECT_EQ(Stored()[0].value, "a");
  InTurn(a, [&] { a.key.Release([&] { left = false; }); });
  Settle(milliseconds(100));
  EXPECT_FALSE(left) << "it was not said that it is released";
  EXPECT_TRUE(Stored().empty());
}

}  // namespace
}  // namespace unreft::meta
