// What the tests of the C ABI share: a client over a real socket and real shared memory, and the
// scripted daemon at its other end.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/asio_executor.h"
#include "base/pidfd_watcher.h"
#include "base/shm_segment_store.h"
#include "base/unix_listener.h"
#include "tests/unit/snapshot/scripted_daemon.h"
#include "tests/unit/snapshot/turns.h"
#include "unreft/unreft.h"

namespace unreft::snapshot {

// A ScriptedDaemon on a thread, at a real socket.
class RealScriptedDaemon {
 public:
  RealScriptedDaemon() : socket_("/tmp/unreft_c_api_test." + std::to_string(getpid())) {
    InTurn([&] {
      const ProcessLife self = PidfdWatcher(thread_.executor()).Self();
      daemon_ = std::make_unique<ScriptedDaemon>(
          [this] {
            auto listener =
                UnixListener::Create(thread_.executor(), socket_, {}, [](PeerIdentity) {});
            return *std::move(listener);
          },
          segments_, self, "capi" + std::to_string(getpid()));
      daemon_->MakeSlots(2, 64 * 1024);
      daemon_->Listen();
    });
  }
  ~RealScriptedDaemon() {
    InTurn([&] { daemon_.reset(); });
    thread_.Join();
  }

  template <typename Body>
  void InTurn(Body body) {
    RunInTurn(thread_.executor(), std::move(body));
  }
  template <typename Condition>
  bool Await(Condition condition) {
    for (int i = 0; i < 2000; ++i) {
      bool holds = false;
      InTurn([&] { holds = condition(); });
      if (holds) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  ScriptedDaemon& daemon() { return *daemon_; }
  const std::string& socket() const { return socket_; }

 private:
  const std::string socket_;
  ShmSegmentStore segments_;
  ExecutorThread thread_{"daemon"};
  std::unique_ptr<ScriptedDaemon> daemon_;
};

// So that a shell's environment does not reach the tests.
class CApiTest : public testing::Test {
 protected:
  CApiTest() {
    for (const char* name : {"UNREFT_SOCKET", "UNREFT_JOB", "RANK", "WORLD_SIZE", "UNREFT_ATTEMPT",
                             "TORCHELASTIC_RESTART_COUNT", "UNREFT_DEVICE_CHECKSUM", "SLURM_JOB_ID",
                             "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}) {
      unsetenv(name);
    }
    unreft_open_options_init(&options_);
    options_.socket = "/tmp/unreft_nobody_listens_here";
    options_.connect_timeout_ms = 50;
  }
  void ExpectOpenFails(int code, const std::string& message) {
    unreft_client* client = nullptr;
    EXPECT_EQ(unreft_open(&options_, &client), code) << unreft_error();
    EXPECT_NE(std::string(unreft_error()).find(message), std::string::npos) << unreft_error();
    EXPECT_EQ(client, nullptr);
  }

  unreft_open_options options_;
};

class CApiLifeTest : public CApiTest {
 protected:
  CApiLifeTest() {
    auto client = unreft::Client::Open({.socket = daemon_.socket()});
    EXPECT_TRUE(client.ok()) << client.error().message;
    client_.emplace(*std::move(client));
    tensor_.name = "w";
    tensor_.global_shape = {100, 10};
    tensor_.data = weights_.data();
  }

  RealScriptedDaemon daemon_;
  std::vector<float> weights_ = std::vector<float>(1000, 1.5F);
  std::optional<unreft::Client> client_;  // which may be copying them until it is closed
  unreft::Tensor tensor_;
};

}  // namespace unreft::snapshot
