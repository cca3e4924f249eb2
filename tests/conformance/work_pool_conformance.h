// What every WorkPool does.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "base/work_pool.h"
#include "tests/conformance/world.h"

namespace unreft {

class WorkPoolWorld {
 public:
  virtual ~WorkPoolWorld() = default;
  virtual World& world() = 0;
  virtual std::unique_ptr<WorkPool> NewPool(size_t threads) = 0;
};

class WorkPoolConformance : public testing::TestWithParam<WorldMaker<WorkPoolWorld>> {
 protected:
  World& world() { return world_->world(); }
  Executor& executor() { return world().executor(); }
  bool RunUntil(absl::FunctionRef<bool()> condition) { return world().RunUntil(condition); }

  std::unique_ptr<WorkPoolWorld> world_ = GetParam().make();
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WorkPoolConformance);

TEST_P(WorkPoolConformance, DoesTheWorkAndThenSaysSoInATurn) {
  const auto pool = world_->NewPool(2);
  int result = 0;
  bool done = false;
  world().InTurn([&] {
    pool->Submit(
        [&] {
          EXPECT_FALSE(executor().InTurn());
          result = 42;
        },
        executor(),
        [&] {
          EXPECT_TRUE(executor().InTurn());
          EXPECT_EQ(result, 42);
          done = true;
        });
    EXPECT_FALSE(done);
  });
  EXPECT_TRUE(RunUntil([&] { return done; }));
}

TEST_P(WorkPoolConformance, DoesEverythingExactlyOnce) {
  constexpr int kTasks = 200;
  const auto pool = world_->NewPool(4);
  std::vector<std::atomic<int>> works(kTasks);
  std::vector<int> dones(kTasks);
  int finished = 0;
  for (int i = 0; i < kTasks; ++i) {
    pool->Submit([&works, i] { ++works[i]; }, executor(),
                 [&, i] {
                   ++dones[i];
                   ++finished;
                 });
  }
  ASSERT_TRUE(RunUntil([&] { return finished == kTasks; }));
  for (int i = 0; i < kTasks; ++i) {
    EXPECT_EQ(works[i], 1) << i;
    EXPECT_EQ(dones[i], 1) << i;
  }
}

TEST_P(WorkPoolConformance, StartsInTheOrderOfSubmission) {
  const auto pool = world_->NewPool(1);
  std::vector<int> order;  // one thread, so one writer
  int finished = 0;
  for (int i = 0; i < 50; ++i) {
    pool->Submit([&order, i] { order.push_back(i); }, executor(), [&] { ++finished; });
  }
  ASSERT_TRUE(RunUntil([&] { return finished == 50; }));
  EXPECT_TRUE(std::ranges::is_sorted(order));
  EXPECT_EQ(order.size(), 50U);
}

TEST_P(WorkPoolConformance, CountsWhatIsNotFinished) {
  const auto pool = world_->NewPool(1);
  EXPECT_EQ(pool->pending(), 0U);
  int finished = 0;
  size_t pending_in_work = 0;
  for (int i = 0; i < 3; ++i) {
    pool->Submit([&] { pending_in_work = pool->pending(); }, executor(), [&] { ++finished; });
  }
  EXPECT_LE(pool->pending(), 3U);
  ASSERT_TRUE(RunUntil([&] { return finished == 3; }));
  EXPECT_EQ(pending_in_work, 1U);  // the last one counted itself
  EXPECT_EQ(pool->pending(), 0U);
}

TEST_P(WorkPoolConformance, FinishesWhatItAcceptedWhenDestroyed) {
  constexpr int kTasks = 50;
  auto pool = world_->NewPool(2);
  std::atomic<int> works = 0;
  int dones = 0;
  for (int i = 0; i < kTasks; ++i) {
    pool->Submit([&] { ++works; }, executor(), [&] { ++dones; });
  }
  pool.reset();
  EXPECT_EQ(works, kTasks);
  EXPECT_TRUE(RunUntil([&] { return dones == kTasks; }));
}

TEST_P(WorkPoolConformance, TakesMoreFromItsOwnDone) {
  const auto pool = world_->NewPool(2);
  int rounds = 0;
  std::function<void()> next = [&] {
    if (++rounds < 10) pool->Submit([] {}, executor(), [&] { next(); });
  };
  pool->Submit([] {}, executor(), [&] { next(); });
  EXPECT_TRUE(RunUntil([&] { return rounds == 10; }));
}

TEST_P(WorkPoolConformance, DestroysTheWorkBeforeItsDone) {
  const auto pool = world_->NewPool(1);
  auto owned = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = owned;
  bool done = false;
  pool->Submit([owned = std::move(owned)] {}, executor(),
               [&] {
                 EXPECT_TRUE(watched.expired());
                 done = true;
               });
  EXPECT_TRUE(RunUntil([&] { return done; }));
}

}  // namespace unreft
