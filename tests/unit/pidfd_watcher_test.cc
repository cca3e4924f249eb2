// What is peculiar to real processes: zombies, names, and descriptors that run out.
#include "base/pidfd_watcher.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "tests/conformance/world.h"
#include "tests/fakes/child_process.h"
#include "tests/fakes/no_descriptors.h"

namespace unreft {
namespace {

class PidfdWatcherTest : public testing::Test {
 protected:
  // By /proc, as in "Z (zombie)".
  static bool IsInState(pid_t pid, char state) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("State:")) return line.find(state) != std::string::npos;
    }
    return false;
  }

  AsioWorld world_;
  PidfdWatcher watcher_{world_.asio()};
};

TEST_F(PidfdWatcherTest, DoesNotFindAZombieWithoutMemory) {
  ChildProcess child([] {});
  child.Kill();
  ASSERT_TRUE(IsInState(child.pid(), 'Z'));
  EXPECT_EQ(watcher_.Identify(child.pid()).status().code(), absl::StatusCode::kNotFound);
}

// Its memory is mapped, and may be written, as long as any thread runs.
TEST_F(PidfdWatcherTest, AZombieWhoseThreadsRunIsAlive) {
  ChildProcess child([] {
    pthread_t thread;
    pthread_create(
        &thread, nullptr,
        [](void*) -> void* {
          while (true) pause();
        },
        nullptr);
    syscall(SYS_exit, 0);  // this thread only
  });
  ASSERT_TRUE(world_.RunUntil([&] {
    world_.asio().Post([] {});
    return IsInState(child.pid(), 'Z');
  }));
  const auto life = watcher_.Identify(child.pid());
  ASSERT_TRUE(life.ok()) << life.status();
  bool ended = false;
  world_.InTurn([&] { watcher_.Watch(*life, [&] { ended = true; }); });
  world_.Settle();
  EXPECT_FALSE(ended);
  child.Kill();
  EXPECT_TRUE(world_.RunUntil([&] { return ended; }));
}

TEST_F(PidfdWatcherTest, IsNotFooledByTheNameOfTheProgram) {
  ChildProcess child([] { prctl(PR_SET_NAME, "a) Z 1 (2"); });
  const auto life = watcher_.Identify(child.pid());
  ASSERT_TRUE(life.ok()) << life.status();
  EXPECT_GE(life->start_time, watcher_.Self().start_time);
}

// Its pid is another's by now.
TEST_F(PidfdWatcherTest, GoesByTheConnectionNotByItsPid) {
  ChildProcess connected([] {});
  ChildProcess other([] {});
  PeerIdentity peer{.pid = connected.pid()};
  EXPECT_EQ(watcher_.IdentifyPeer(peer)->own_pid, connected.pid());
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, connected.pid(), 0));
  ASSERT_GE(pidfd, 0);
  peer.pidfd = std::make_shared<const UniqueFd>(pidfd);
  EXPECT_EQ(watcher_.IdentifyPeer(peer)->life, *watcher_.Identify(connected.pid()));
  connected.Kill();
  peer.pid = other.pid();
  EXPECT_EQ(watcher_.IdentifyPeer(peer).status().code(), absl::StatusCode::kNotFound);
  peer.pidfd = nullptr;
  EXPECT_EQ(watcher_.IdentifyPeer(peer)->life.pid, other.pid());
}

TEST_F(PidfdWatcherTest, DoesNotTakeAThreadForAProcess) {
  std::thread([&] {
    EXPECT_EQ(watcher_.Identify(gettid()).status().code(), absl::StatusCode::kNotFound);
  }).join();
}

TEST_F(PidfdWatcherTest, TakesNoErrorForAnEnd) {
  ChildProcess child([] {});
  const ProcessLife life = *watcher_.Identify(child.pid());
  bool ended = false;
  {
    NoDescriptors none;
    EXPECT_TRUE(absl::IsResourceExhausted(watcher_.Identify(child.pid()).status()));
    world_.InTurn([&] { watcher_.Watch(life, [&] { ended = true; }); });
    world_.Settle();
    EXPECT_FALSE(ended);
  }
  child.Kill();
  EXPECT_TRUE(world_.RunUntil([&] { return ended; }));
}

}  // namespace
}  // namespace unreft
