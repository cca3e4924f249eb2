// What every ProcessWatcher does.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "base/process_watcher.h"
#include "tests/conformance/world.h"

namespace unreft {

class ProcessWorld {
 public:
  virtual ~ProcessWorld() = default;
  virtual World& world() = 0;
  virtual std::unique_ptr<ProcessWatcher> NewWatcher() = 0;
  // A new process, alive, and the pid of it.
  virtual int64_t StartProcess() = 0;
  // Its sudden end; where there are zombies it stays one.
  virtual void KillProcess(int64_t pid) = 0;
  // Nothing of it is left after this.
  virtual void ReapProcess(int64_t pid) = 0;
};

class ProcessWatcherConformance : public testing::TestWithParam<WorldMaker<ProcessWorld>> {
 protected:
  ProcessWatcherConformance() {
    world().InTurn([this] { watcher_ = world_->NewWatcher(); });
  }
  ~ProcessWatcherConformance() override {
    world().InTurn([this] { watcher_.reset(); });
  }

  World& world() { return world_->world(); }
  bool RunUntil(absl::FunctionRef<bool()> condition) { return world().RunUntil(condition); }

  absl::StatusOr<ProcessLife> Identify(int64_t pid) {
    absl::StatusOr<ProcessLife> life;
    world().InTurn([&] { life = watcher_->Identify(pid); });
    return life;
  }

  // Counts the end in `ends`.
  WatchId Watch(ProcessLife life, int& ends) {
    WatchId watch = WatchId::kNone;
    world().InTurn([&] {
      const int before = ends;
      watch = watcher_->Watch(life, [this, &ends] {
        EXPECT_TRUE(world().executor().InTurn());
        ++ends;
      });
      EXPECT_EQ(ends, before);  // never inline
    });
    EXPECT_NE(watch, WatchId::kNone);
    return watch;
  }

  std::unique_ptr<ProcessWorld> world_ = GetParam().make();
  std::unique_ptr<ProcessWatcher> watcher_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ProcessWatcherConformance);

TEST_P(ProcessWatcherConformance, IdentifiesALife) {
  const int64_t pid = world_->StartProcess();
  const auto life = Identify(pid);
  ASSERT_TRUE(life.ok()) << life.status();
  EXPECT_EQ(life->pid, pid);
  EXPECT_EQ(*Identify(pid), *life);
}

TEST_P(ProcessWatcherConformance, IdentifiesAPeer) {
  const int64_t pid = world_->StartProcess();
  absl::StatusOr<PeerLife> peer = absl::UnknownError("not asked");
  world().InTurn([&] { peer = watcher_->IdentifyPeer({.pid = pid}); });
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->life, *Identify(pid));
  EXPECT_EQ(peer->own_pid, pid);
  world_->KillProcess(pid);
  world_->ReapProcess(pid);
  world().InTurn([&] { peer = watcher_->IdentifyPeer({.pid = pid}); });
  EXPECT_EQ(peer.status().code(), absl::StatusCode::kNotFound);
}

TEST_P(ProcessWatcherConformance, DoesNotFindWhatEnded) {
  const int64_t pid = world_->StartProcess();
  world_->KillProcess(pid);
  world_->ReapProcess(pid);
  EXPECT_EQ(Identify(pid).status().code(), absl::StatusCode::kNotFound);
}

TEST_P(ProcessWatcherConformance, DoesNotFindWhatNeverWas) {
  for (const int64_t pid : {int64_t{-1}, int64_t{0}, int64_t{1} << 40}) {
    EXPECT_EQ(Identify(pid).status().code(), absl::StatusCode::kNotFound) << pid;
  }
}

TEST_P(ProcessWatcherConformance, KnowsItself) {
  world().InTurn([&] {
    const ProcessLife self = watcher_->Self();
    const auto found = watcher_->Identify(self.pid);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, self);
  });
}

TEST_P(ProcessWatcherConformance, TellsTheEndOnce) {
  const int64_t pid = world_->StartProcess();
  int ends = 0;
  Watch(*Identify(pid), ends);
  world().Settle();
  EXPECT_EQ(ends, 0);
  world_->KillProcess(pid);
  EXPECT_TRUE(RunUntil([&] { return ends == 1; }));
  world_->ReapProcess(pid);
  world().Settle();
  EXPECT_EQ(ends, 1);
}

TEST_P(ProcessWatcherConformance, TellsAnEndThatIsOver) {
  const int64_t pid = world_->StartProcess();
  const ProcessLife life = *Identify(pid);
  world_->KillProcess(pid);
  world_->ReapProcess(pid);
  int ends = 0;
  Watch(life, ends);
  EXPECT_TRUE(RunUntil([&] { return ends == 1; }));
}

TEST_P(ProcessWatcherConformance, TellsTheEndOfALifeWhosePidIsAnothers) {
  ProcessLife earlier = *Identify(world_->StartProcess());
  ++earlier.start_time;
  int ends = 0;
  Watch(earlier, ends);
  EXPECT_TRUE(RunUntil([&] { return ends == 1; }));
}

TEST_P(ProcessWatcherConformance, TellsTheEndOfALifeThatNeverWas) {
  int ends = 0;
  Watch({.pid = -1, .start_time = 1}, ends);
  Watch({.pid = 0, .start_time = 0}, ends);
  Watch({.pid = int64_t{1} << 40, .start_time = 1}, ends);
  EXPECT_TRUE(RunUntil([&] { return ends == 3; }));
}

TEST_P(ProcessWatcherConformance, IsSilentAfterUnwatch) {
  const int64_t pid = world_->StartProcess();
  int unwatched_ends = 0;
  int ends = 0;
  const WatchId watch = Watch(*Identify(pid), unwatched_ends);
  Watch(*Identify(pid), ends);
  world().InTurn([&] {
    watcher_->Unwatch(watch);
    watcher_->Unwatch(watch);
    watcher_->Unwatch(WatchId::kNone);
  });
  world_->KillProcess(pid);
  ASSERT_TRUE(RunUntil([&] { return ends == 1; }));
  world().Settle();
  EXPECT_EQ(unwatched_ends, 0);
}

// Even when the end is known and only its turn has not come.
TEST_P(ProcessWatcherConformance, IsSilentAfterALateUnwatch) {
  const int64_t pid = world_->StartProcess();
  const ProcessLife life = *Identify(pid);
  world_->KillProcess(pid);
  world_->ReapProcess(pid);
  world().InTurn([&] {
    const WatchId watch = watcher_->Watch(life, [] { ADD_FAILURE(); });
    watcher_->Unwatch(watch);
  });
  world().Settle();
}

TEST_P(ProcessWatcherConformance, TellsEveryWatchOfALife) {
  const int64_t pid = world_->StartProcess();
  const ProcessLife life = *Identify(pid);
  int ends = 0;
  for (int i = 0; i < 5; ++i) Watch(life, ends);
  world_->KillProcess(pid);
  EXPECT_TRUE(RunUntil([&] { return ends == 5; }));
}

TEST_P(ProcessWatcherConformance, MayBeDestroyedByAnEnd) {
  const int64_t pid = world_->StartProcess();
  const ProcessLife life = *Identify(pid);
  int ends = 0;
  world().InTurn([&] {
    for (int i = 0; i < 3; ++i) {
      watcher_->Watch(life, [&] {
        ++ends;
        watcher_.reset();
      });
    }
  });
  world_->KillProcess(pid);
  ASSERT_TRUE(RunUntil([&] { return ends == 1; }));
  world().Settle();
  EXPECT_EQ(ends, 1);
}

}  // namespace unreft
