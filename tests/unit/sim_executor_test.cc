// The fakes of the simulations: what a crash, a stall and a seed mean in them.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/fake_process_watcher.h"
#include "tests/fakes/sim_channel.h"
#include "tests/fakes/sim_executor.h"
#include "tests/fakes/sim_work_pool.h"

namespace unreft {
namespace {

constexpr size_t kEventsMax = 100'000;

// Three processes that post to one another; who ran, in order.
std::string Chatter(uint64_t seed, uint64_t* digest = nullptr) {
  SimScheduler scheduler(seed);
  std::vector<std::unique_ptr<SimExecutor>> processes;
  std::string order;
  for (int i = 0; i < 3; ++i) processes.push_back(scheduler.NewExecutor(std::to_string(i)));
  for (int i = 0; i < 3; ++i) {
    processes[i]->Post([&, i] {
      for (int j = 0; j < 10; ++j) {
        processes[(i + j) % 3]->Post([&, i, j] { order += std::to_string((i + j) % 3); });
      }
    });
  }
  while (scheduler.RunOne()) {
  }
  if (digest != nullptr) *digest = scheduler.digest();
  return order;
}

TEST(SimSchedulerTest, OneSeedIsOneRun) {
  uint64_t first_digest = 0;
  uint64_t second_digest = 0;
  EXPECT_EQ(Chatter(5, &first_digest), Chatter(5, &second_digest));
  EXPECT_EQ(first_digest, second_digest);
}

TEST(SimSchedulerTest, SeedsDiffer) {
  uint64_t first_digest = 0;
  uint64_t second_digest = 0;
  EXPECT_NE(Chatter(5, &first_digest), Chatter(6, &second_digest));
  EXPECT_NE(first_digest, second_digest);
}

TEST(SimSchedulerTest, RunForEndsAtItsTime) {
  SimScheduler scheduler(1, {.timer_lateness_max = Duration(0)});
  const auto process = scheduler.NewExecutor("a");
  int runs = 0;
  process->Post([&] {
    process->After(std::chrono::seconds(1), [&] { ++runs; });
    process->After(std::chrono::seconds(3), [&] { ++runs; });
  });
  scheduler.RunFor(std::chrono::seconds(2));
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(scheduler.now(), std::chrono::seconds(2));
  scheduler.RunFor(std::chrono::seconds(2));
  EXPECT_EQ(runs, 2);
}

TEST(SimSchedulerTest, RunUntilGivesUp) {
  SimScheduler scheduler(1);
  const auto process = scheduler.NewExecutor("a");
  EXPECT_FALSE(scheduler.RunUntil([] { return false; }, kEventsMax));  // nothing is left
  std::function<void()> forever = [&] { process->Post([&] { forever(); }); };
  forever();
  EXPECT_FALSE(scheduler.RunUntil([] { return false; }, 100));
  EXPECT_EQ(scheduler.events_run(), 100U);
}

TEST(SimSchedulerTest, ALoopOfPostsDoesNotStopTheClock) {
  SimScheduler scheduler(1, {.post_delay_max = Duration(0)});
  const auto process = scheduler.NewExecutor("a");
  std::function<void()> forever = [&] { process->Post([&] { forever(); }); };
  forever();
  scheduler.RunFor(std::chrono::microseconds(10));
  EXPECT_GE(scheduler.events_run(), 1000U);
}

TEST(SimSchedulerTest, ClocksOfProcessesAreNotCompared) {
  SimScheduler scheduler(1);
  const auto a = scheduler.NewExecutor("a");
  const auto b = scheduler.NewExecutor("b");
  EXPECT_NE(a->Now(), b->Now());
}

TEST(SimSchedulerTest, AKilledProcessRunsNothingMore) {
  SimScheduler scheduler(1);
  const auto process = scheduler.NewExecutor("a");
  SimWorkPool pool(*process);
  process->Post([&] {
    process->After(std::chrono::seconds(1), [] { ADD_FAILURE(); });
    pool.Submit([] { ADD_FAILURE(); }, *process, [] { ADD_FAILURE(); });
  });
  ASSERT_TRUE(scheduler.RunOne());
  process->Post([] { ADD_FAILURE(); });
  int deaths = 0;
  process->AtKill([&] { ++deaths; });
  process->Kill();
  process->Kill();
  process->Post([] { ADD_FAILURE(); });
  process->Deliver(Duration(0), [] { ADD_FAILURE(); });
  EXPECT_EQ(deaths, 1);
  EXPECT_FALSE(scheduler.RunOne());
}

TEST(SimSchedulerTest, AProcessMayKillItselfInItsTurn) {
  SimScheduler scheduler(1);
  const auto process = scheduler.NewExecutor("a");
  bool went_on = false;
  process->Post([&] {
    process->Kill();
    process->Post([] { ADD_FAILURE(); });
    process->After(Duration(0), [] { ADD_FAILURE(); });
    went_on = true;
  });
  EXPECT_TRUE(scheduler.RunOne());
  EXPECT_TRUE(went_on);
  EXPECT_FALSE(scheduler.RunOne());
}

TEST(SimSchedulerTest, ASuspendedProcessCatchesUpInOrder) {
  SimScheduler scheduler(1);
  const auto stopped = scheduler.NewExecutor("stopped");
  const auto other = scheduler.NewExecutor("other");
  std::vector<int> order;
  bool other_ran = false;
  stopped->Suspend();
  for (int i = 0; i < 10; ++i) stopped->Post([&order, i] { order.push_back(i); });
  other->Post([&] { other_ran = true; });
  scheduler.RunFor(std::chrono::seconds(1));
  EXPECT_TRUE(other_ran);
  EXPECT_TRUE(order.empty());
  stopped->Resume();
  stopped->Post([&] { order.push_back(10); });
  ASSERT_TRUE(scheduler.RunUntil([&] { return order.size() == 11; }, kEventsMax));
  EXPECT_TRUE(std::ranges::is_sorted(order));
  EXPECT_GE(scheduler.now(), std::chrono::seconds(1));
}

class SimChannelTest : public testing::TestWithParam<uint64_t> {
 protected:
  SimChannelTest() {
    server_->Post([this] {
      listener_ = *network_.Listen(*server_, "path");
      listener_->Start([this](std::unique_ptr<Channel> channel, PeerIdentity) {
        accepted_ = std::move(channel);
        accepted_->Start([this](Frame frame) { frames_.push_back(frame.type); },
                         [this](absl::Status status) { accepted_close_ = std::move(status); });
      });
    });
    RunUntil([this] { return listener_ != nullptr; });
    client_->Post([this] {
      connector_ = network_.NewConnector(*client_, "path");
      connector_->Connect([this](absl::StatusOr<std::unique_ptr<Channel>> channel) {
        connected_ = std::move(*channel);
        connected_->Start([](Frame) {},
                          [this](absl::Status status) { connected_close_ = std::move(status); });
      });
    });
    RunUntil([this] { return accepted_ && connected_; });
  }

  void RunUntil(absl::FunctionRef<bool()> condition) {
    ASSERT_TRUE(scheduler_.RunUntil(condition, kEventsMax));
  }
  void Send(int frames) {
    for (int i = 0; i < frames; ++i) connected_->Send({.type = static_cast<uint16_t>(i)});
  }

  SimScheduler scheduler_{GetParam()};
  SimLocalNetwork network_{scheduler_};
  std::unique_ptr<SimExecutor> server_ = scheduler_.NewExecutor("server");
  std::unique_ptr<SimExecutor> client_ = scheduler_.NewExecutor("client");
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Connector> connector_;
  std::unique_ptr<Channel> accepted_;
  std::unique_ptr<Channel> connected_;
  std::vector<int> frames_;
  absl::Status accepted_close_;
  absl::Status connected_close_;
};

TEST_P(SimChannelTest, AKilledProcessIsHeardOfAfterSomeOfItsFrames) {
  Send(10);
  client_->Kill();
  RunUntil([&] { return !accepted_close_.ok(); });
  EXPECT_TRUE(absl::IsUnavailable(accepted_close_));
  EXPECT_LE(frames_.size(), 10U);
  for (size_t i = 0; i < frames_.size(); ++i) EXPECT_EQ(frames_[i], static_cast<int>(i));
  EXPECT_TRUE(connected_close_.ok());  // the dead hear nothing
  connected_->Send({});
}

TEST_P(SimChannelTest, ItsListenerIsGoneWithAProcess) {
  server_->Kill();
  RunUntil([&] { return !connected_close_.ok(); });
  EXPECT_TRUE(absl::IsUnavailable(connected_close_));
  absl::Status again;
  client_->Post([&] {
    connector_->Connect(
        [&](absl::StatusOr<std::unique_ptr<Channel>> channel) { again = channel.status(); });
  });
  RunUntil([&] { return !again.ok(); });
  EXPECT_TRUE(absl::IsUnavailable(again));
  // The next process may listen there, although the dead one's listener is still in memory.
  const auto next = scheduler_.NewExecutor("next");
  auto listener = network_.Listen(*next, "path");
  EXPECT_TRUE(listener.ok());
  listener_.reset();
  EXPECT_TRUE(absl::IsAlreadyExists(network_.Listen(*client_, "path").status()));
}

TEST_P(SimChannelTest, ACutIsHeardOfAtBothEnds) {
  Send(10);
  network_.Cut(*server_);
  RunUntil([&] { return !accepted_close_.ok() && !connected_close_.ok(); });
  EXPECT_TRUE(absl::IsUnavailable(accepted_close_));
  EXPECT_TRUE(absl::IsUnavailable(connected_close_));
}

INSTANTIATE_TEST_SUITE_P(Seeds, SimChannelTest, testing::Range<uint64_t>(1, 11));

TEST(FakeProcessTableTest, TellsLivesWithOnePidApart) {
  SimScheduler scheduler(1);
  const auto process = scheduler.NewExecutor("a");
  FakeProcessTable table;
  FakeProcessWatcher watcher(table, *process, table.Start());
  const ProcessLife first = table.Start();
  table.End(first);
  const ProcessLife second = table.StartAs(first.pid);
  EXPECT_FALSE(table.alive(first));
  EXPECT_TRUE(table.alive(second));
  table.End(first);  // over already
  EXPECT_TRUE(table.alive(second));
  bool first_ended = false;
  process->Post([&] {
    EXPECT_EQ(*watcher.Identify(first.pid), second);
    watcher.Watch(first, [&] { first_ended = true; });
    watcher.Watch(second, [] { ADD_FAILURE(); });
  });
  EXPECT_TRUE(scheduler.RunUntil([&] { return first_ended; }, kEventsMax));
}

}  // namespace
}  // namespace unreft
