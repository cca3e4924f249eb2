#include "base/asio_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <future>
#include <memory>
#include <new>
#include <thread>
#include <vector>

namespace unreft {
namespace {

TEST(AsioExecutorTest, KeepsTheOrderOfEachThread) {
  constexpr int kThreads = 4;
  constexpr int kTasks = 1000;
  std::vector<std::vector<int>> order(kThreads);
  std::promise<void> all;
  int finished = 0;
  ExecutorThread executor("test");
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTasks; ++i) {
        executor.executor().Post([&, t, i] {
          order[t].push_back(i);
          if (++finished == kThreads * kTasks) all.set_value();
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  all.get_future().wait();
  for (const auto& of_thread : order) EXPECT_TRUE(std::ranges::is_sorted(of_thread));
}

TEST(AsioExecutorTest, IsInTurnOnItsOwnThreadOnly) {
  ExecutorThread executor("test");
  std::promise<bool> in_turn;
  executor.executor().Post([&] {
    EXPECT_FALSE(
        std::async(std::launch::async, [&] { return executor.executor().InTurn(); }).get());
    in_turn.set_value(executor.executor().InTurn());
  });
  EXPECT_TRUE(in_turn.get_future().get());
  EXPECT_FALSE(executor.executor().InTurn());
}

TEST(AsioExecutorTest, CountsTheHandlersOfItsContextAsTurns) {
  AsioExecutor executor;
  bool in_turn = false;
  boost::asio::post(executor.context(), [&] { in_turn = executor.InTurn(); });
  EXPECT_TRUE(executor.RunOneFor(std::chrono::seconds(30)));
  EXPECT_TRUE(in_turn);
}

TEST(AsioExecutorTest, RunsNothingWhenThereIsNothing) {
  AsioExecutor executor;
  EXPECT_FALSE(executor.RunOneFor(Duration::zero()));
}

TEST(AsioExecutorTest, RunReturnsAfterTheTurnThatStops) {
  AsioExecutor executor;
  auto owned = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = owned;
  executor.Post([&, owned = std::move(owned)] {
    executor.Stop();
    executor.Post([owned] { ADD_FAILURE(); });  // destroyed at once
    EXPECT_EQ(owned.use_count(), 1);
  });
  executor.Post([] { ADD_FAILURE(); });
  executor.Run();
  EXPECT_TRUE(watched.expired());
}

TEST(AsioExecutorTest, StopsFromAnotherThread) {
  AsioExecutor executor;
  std::thread thread([&] { executor.Run(); });
  executor.Stop();
  thread.join();
}

TEST(AsioExecutorTest, JoinsItsThreadOnceOrTwice) {
  ExecutorThread executor("a name far longer than the kernel takes");
  executor.Join();
  executor.Join();
  executor.executor().Post([] { ADD_FAILURE(); });
}

TEST(AsioExecutorTest, AThreadOutlivesATurnWithoutMemory) {
  ExecutorThread executor("test");
  std::promise<void> done;
  executor.executor().Post([] { throw std::bad_alloc(); });
  executor.executor().Post([&] { done.set_value(); });
  done.get_future().get();
}

TEST(AsioExecutorTest, WhatATurnThrowsIsToldAndTheNextTurnRuns) {
  std::vector<std::string> told;
  AsioExecutor executor([&](const char* what) { told.emplace_back(what); });
  int turns = 0;
  executor.Post([] { throw std::runtime_error("first"); });
  executor.Post([&] {
    ++turns;
    executor.After(std::chrono::milliseconds(1), [] { throw std::length_error("second"); });
    executor.After(std::chrono::milliseconds(2), [&] {
      ++turns;
      executor.Stop();
    });
  });
  executor.Run();
  EXPECT_EQ(turns, 2);
  EXPECT_EQ(told, (std::vector<std::string>{"first", "second"}));
}

TEST(AsioExecutorTest, WithoutSomebodyToTellRunThrows) {
  AsioExecutor executor;
  executor.Post([] { throw std::runtime_error("first"); });
  EXPECT_THROW(executor.Run(), std::runtime_error);
}

}  // namespace
}  // namespace unreft
