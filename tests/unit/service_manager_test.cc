// What a service manager hears, at a socket of the test's, and whose memory a logout takes.
#include "base/service_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "tests/conformance/world.h"

namespace unreft {
namespace {

class ServiceManagerTest : public testing::Test {
 protected:
  ServiceManagerTest() {
    std::filesystem::create_directories(root_);
    socket_ = UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~ServiceManagerTest() override { std::filesystem::remove_all(root_); }

  // What was told since; empty: nothing.
  std::string Heard() {
    char text[4096];
    const ssize_t size = recv(socket_.get(), text, sizeof(text), 0);
    return size < 0 ? "" : std::string(text, static_cast<size_t>(size));
  }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  bool LogoutTakesMemory(uint32_t uid) { return !WhyLogoutTakesMemory(uid, "ann", root_).empty(); }

  const std::string root_ = testing::TempDir() + "unreft_service_" + std::to_string(getpid());
  const std::string path_ = root_ + "/notify";
  UniqueFd socket_;
};

TEST_F(ServiceManagerTest, HearsEachStateAsSystemdHasIt) {
  const ServiceManager manager(path_);
  manager.Ready("node 0 of job j\nREADY=0");
  EXPECT_THAT(Heard(), testing::StartsWith("READY=1\nSTATUS=node 0 of job j"));
  manager.Reloading();
  EXPECT_THAT(Heard(), testing::StartsWith("RELOADING=1\nMONOTONIC_USEC="));
  manager.Status("waits");
  EXPECT_EQ(Heard(), "STATUS=waits");
  manager.Stopping();
  EXPECT_EQ(Heard(), "STOPPING=1");
  EXPECT_EQ(Heard(), "");
}

TEST_F(ServiceManagerTest, AStatusIsOneLine) {
  ServiceManager(path_).Status("a\nREADY=1");
  const std::string heard = Heard();
  EXPECT_EQ(heard.find('\n'), std::string::npos) << heard;
}

TEST_F(ServiceManagerTest, IsTakenOutOfTheEnvironment) {
  setenv("NOTIFY_SOCKET", path_.c_str(), 1);
  setenv("WATCHDOG_USEC", "20000", 1);
  setenv("WATCHDOG_PID", "1", 1);
  const ServiceManager manager = ServiceManager::FromEnvironment();
  for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) {
    EXPECT_EQ(getenv(name), nullptr) << name;
  }
  SimWorld world(1);
  world.InTurn([&] { manager.KeepWatchdog(world.executor(0)); });
  EXPECT_EQ(Heard(), "") << "that watchdog is of another process";
  manager.Stopping();
  EXPECT_EQ(Heard(), "STOPPING=1");
}

TEST_F(ServiceManagerTest, TheWatchdogHearsOfTurnsTwiceInItsInterval) {
  const ServiceManager manager(path_, std::chrono::seconds(10));
  SimWorld world(1);
  world.InTurn([&] { manager.KeepWatchdog(world.executor(0)); });
  EXPECT_EQ(Heard(), "WATCHDOG=1");
  EXPECT_EQ(Heard(), "");
  world.scheduler().RunFor(std::chrono::seconds(21));
  int heard = 0;
  while (Heard() == "WATCHDOG=1") ++heard;
  EXPECT_EQ(heard, 4);
}

TEST_F(ServiceManagerTest, NobodyThereIsNoError) {
  ServiceManager("").Stopping();
  ServiceManager(root_ + "/nobody").Stopping();
  ServiceManager(std::string(200, 'x')).Stopping();
  EXPECT_EQ(Heard(), "");
}

TEST_F(ServiceManagerTest, LogoutTakesTheMemoryOfUsersThatDoNotLinger) {
  EXPECT_FALSE(LogoutTakesMemory(1000)) << "there is no logind";
  Write("/run/systemd/users/1000", "");
  EXPECT_TRUE(LogoutTakesMemory(1000));
  EXPECT_FALSE(LogoutTakesMemory(0));
  EXPECT_FALSE(LogoutTakesMemory(999));
  EXPECT_THAT(WhyLogoutTakesMemory(1000, "ann", root_),
              testing::HasSubstr("loginctl enable-linger ann"));
  Write("/var/lib/systemd/linger/bob", "");
  EXPECT_TRUE(LogoutTakesMemory(1000));
  Write("/var/lib/systemd/linger/ann", "");
  EXPECT_FALSE(LogoutTakesMemory(1000));
}

TEST_F(ServiceManagerTest, LogindIsAskedByItsFiles) {
  Write("/run/systemd/users/1000", "");
  Write("/etc/systemd/logind.conf", "[Login]\n#RemoveIPC=no\n");
  EXPECT_TRUE(LogoutTakesMemory(1000));
  Write("/etc/systemd/logind.conf", "[Login]\nRemoveIPC=no\n");
  EXPECT_FALSE(LogoutTakesMemory(1000));
  Write("/usr/lib/systemd/logind.conf.d/50-a.conf", "[Login]\nRemoveIPC=yes\n");
  EXPECT_TRUE(LogoutTakesMemory(1000));
  Write("/etc/systemd/logind.conf.d/60-b.conf", "[Login]\nRemoveIPC=off\n");
  EXPECT_FALSE(LogoutTakesMemory(1000));
  Write("/etc/systemd/logind.conf.d/70-c.txt", "[Login]\nRemoveIPC=yes\n");
  EXPECT_FALSE(LogoutTakesMemory(1000));
}

}  // namespace
}  // namespace unreft
