// What every Executor does.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/conformance/world.h"

namespace unreft {

class ExecutorConformance : public testing::TestWithParam<WorldMaker<World>> {
 protected:
  std::unique_ptr<World> world_ = GetParam().make();
  Executor& executor_ = world_->executor(0);
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ExecutorConformance);

TEST_P(ExecutorConformance, RunsAPostedTaskInALaterTurn) {
  bool ran = false;
  bool in_turn = false;
  executor_.Post([&] {
    ran = true;
    in_turn = executor_.InTurn();
  });
  EXPECT_FALSE(ran);
  EXPECT_FALSE(executor_.InTurn());
  ASSERT_TRUE(world_->RunUntil([&] { return ran; }));
  EXPECT_TRUE(in_turn);
  EXPECT_FALSE(executor_.InTurn());
}

TEST_P(ExecutorConformance, DoesNotRunATaskInsideTheTurnThatPostsIt) {
  bool posting = false;
  bool inner_ran = false;
  world_->InTurn([&] {
    posting = true;
    executor_.Post([&] {
      EXPECT_FALSE(posting);
      inner_ran = true;
    });
    posting = false;
  });
  EXPECT_TRUE(world_->RunUntil([&] { return inner_ran; }));
}

TEST_P(ExecutorConformance, KeepsTheOrderOfOnePoster) {
  std::vector<int> order;
  std::vector<int> expected;
  for (int i = 0; i < 100; ++i) {
    executor_.Post([&order, i] { order.push_back(i); });
    expected.push_back(i);
  }
  ASSERT_TRUE(world_->RunUntil([&] { return order.size() == 100; }));
  EXPECT_EQ(order, expected);
}

TEST_P(ExecutorConformance, KeepsTheOrderOfATurnsPosts) {
  std::vector<int> order;
  world_->InTurn([&] {
    for (int i = 0; i < 100; ++i) executor_.Post([&order, i] { order.push_back(i); });
  });
  ASSERT_TRUE(world_->RunUntil([&] { return order.size() == 100; }));
  EXPECT_TRUE(std::ranges::is_sorted(order));
}

TEST_P(ExecutorConformance, RunsATimerNoEarlierThanItsDelay) {
  const Duration delay = std::chrono::milliseconds(5);
  bool ran = false;
  world_->InTurn([&] {
    const Time start = executor_.Now();
    executor_.After(delay, [&, start] {
      EXPECT_TRUE(executor_.InTurn());
      EXPECT_GE(executor_.Now() - start, delay);
      ran = true;
    });
    EXPECT_FALSE(ran);
  });
  EXPECT_TRUE(world_->RunUntil([&] { return ran; }));
}

TEST_P(ExecutorConformance, RunsATimerWithoutDelayInTheNextTurns) {
  int ran = 0;
  world_->InTurn([&] {
    executor_.After(Duration::zero(), [&] { ++ran; });
    executor_.After(-std::chrono::hours(1), [&] { ++ran; });
    executor_.After(Duration::min(), [&] { ++ran; });
    EXPECT_EQ(ran, 0);
  });
  EXPECT_TRUE(world_->RunUntil([&] { return ran == 3; }));
}

TEST_P(ExecutorConformance, TakesADelayLongerThanAllTime) {
  world_->InTurn([&] { executor_.After(Duration::max(), [] { ADD_FAILURE(); }); });
  world_->Settle();
}

TEST_P(ExecutorConformance, DoesNotRunACancelledTimer) {
  bool later_ran = false;
  world_->InTurn([&] {
    const TimerId timer = executor_.After(std::chrono::milliseconds(1), [] { ADD_FAILURE(); });
    executor_.Cancel(timer);
    executor_.After(std::chrono::milliseconds(3), [&] { later_ran = true; });
  });
  EXPECT_TRUE(world_->RunUntil([&] { return later_ran; }));
}

// A timer that is due already, but whose turn has not come, can still be cancelled.
TEST_P(ExecutorConformance, DoesNotRunATimerCancelledWhenDue) {
  const Duration delay = std::chrono::milliseconds(1);
  bool done = false;
  world_->InTurn([&] {
    auto timers = std::make_shared<std::vector<TimerId>>();
    auto runs = std::make_shared<int>(0);
    for (int i = 0; i < 10; ++i) {
      timers->push_back(executor_.After(delay, [&, timers, runs] {
        ++*runs;
        EXPECT_EQ(*runs, 1);
        for (const TimerId timer : *timers) executor_.Cancel(timer);  // itself included
      }));
    }
    executor_.After(10 * delay, [&, runs] {
      EXPECT_EQ(*runs, 1);
      done = true;
    });
  });
  EXPECT_TRUE(world_->RunUntil([&] { return done; }));
}

TEST_P(ExecutorConformance, IgnoresCancellingWhatHasRunOrNeverWas) {
  bool ran = false;
  TimerId timer = TimerId::kNone;
  world_->InTurn([&] {
    executor_.Cancel(TimerId::kNone);
    timer = executor_.After(Duration::zero(), [&] { ran = true; });
  });
  ASSERT_TRUE(world_->RunUntil([&] { return ran; }));
  world_->InTurn([&] { executor_.Cancel(timer); });
}

TEST_P(ExecutorConformance, GivesEveryTimerANameOfItsOwn) {
  world_->InTurn([&] {
    const TimerId first = executor_.After(std::chrono::hours(1), [] {});
    const TimerId second = executor_.After(std::chrono::hours(1), [] {});
    EXPECT_NE(first, TimerId::kNone);
    EXPECT_NE(second, TimerId::kNone);
    EXPECT_NE(first, second);
  });
}

TEST_P(ExecutorConformance, DestroysACancelledTaskAtOnce) {
  world_->InTurn([&] {
    auto owned = std::make_shared<int>(0);
    const std::weak_ptr<int> watched = owned;
    const TimerId timer = executor_.After(std::chrono::hours(1), [owned = std::move(owned)] {});
    EXPECT_FALSE(watched.expired());
    executor_.Cancel(timer);
    EXPECT_TRUE(watched.expired());
  });
}

TEST_P(ExecutorConformance, DestroysATaskAfterItRan) {
  auto owned = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = owned;
  executor_.Post([owned = std::move(owned)] {});
  EXPECT_TRUE(world_->RunUntil([&] { return watched.expired(); }));
}

TEST_P(ExecutorConformance, NeverTurnsTimeBack) {
  Time last = executor_.Now();
  int runs = 0;
  for (int i = 0; i < 100; ++i) {
    executor_.Post([&] {
      EXPECT_GE(executor_.Now(), last);
      last = executor_.Now();
      ++runs;
    });
  }
  EXPECT_TRUE(world_->RunUntil([&] { return runs == 100; }));
}

// What is left when the executor goes is destroyed without running, even if it owns what cancels
// and posts.
TEST_P(ExecutorConformance, DropsWhatIsLeftWhenItIsDestroyed) {
  struct Owner {
    ~Owner() {
      executor.Post([] { ADD_FAILURE(); });
      executor.Cancel(timer);
      ++deaths;
    }
    Executor& executor;
    int& deaths;
    TimerId timer = TimerId::kNone;
  };
  int deaths = 0;
  world_->InTurn([&] {
    auto late = std::make_shared<Owner>(executor_, deaths);
    late->timer = executor_.After(std::chrono::hours(1), [] { ADD_FAILURE(); });
    executor_.After(std::chrono::hours(2), [late] { ADD_FAILURE(); });
  });
  executor_.Post([owner = std::make_shared<Owner>(executor_, deaths)] { ADD_FAILURE(); });
  world_.reset();
  EXPECT_EQ(deaths, 2);
}

}  // namespace unreft
