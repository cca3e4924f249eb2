#include "base/service_manager.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "base/text.h"
#include "base/unique_fd.h"

namespace unreft {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kSystemUidMax = 999;  // logind leaves system users alone

std::string TakeVariable(const char* name) {
  const char* const value = std::getenv(name);
  std::string text = value == nullptr ? "" : value;
  unsetenv(name);
  return text;
}

// What logind does at the end of a user's last session, by its files, the last that says it.
bool RemovesIpc(const std::string& root) {
  std::vector<std::pair<std::string, fs::path>> drop_ins;  // by name, wherever they lie
  for (const char* directory : {"/usr/lib", "/run", "/etc"}) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(
             fmt::format("{}{}/systemd/logind.conf.d", root, directory), error)) {
      if (entry.path().extension() == ".conf") {
        drop_ins.emplace_back(entry.path().filename(), entry.path());
      }
    }
  }
  std::stable_sort(drop_ins.begin(), drop_ins.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  drop_ins.insert(drop_ins.begin(), {"", root + "/etc/systemd/logind.conf"});
  bool removes = true;  // systemd's own default
  for (const auto& [name, path] : drop_ins) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      const std::string text(absl::StripAsciiWhitespace(line));
      if (!text.starts_with("RemoveIPC=")) continue;
      bool value = true;
      if (absl::SimpleAtob(text.substr(text.find('=') + 1), &value)) removes = value;
      if (text.ends_with("=off")) removes = false;
    }
  }
  return removes;
}

}  // namespace

ServiceManager ServiceManager::FromEnvironment() {
  const std::string socket = TakeVariable("NOTIFY_SOCKET");
  const std::string watchdog = TakeVariable("WATCHDOG_USEC");
  const std::string pid = TakeVariable("WATCHDOG_PID");
  int64_t us = 0;
  const bool is_mine = pid.empty() || pid == std::to_string(getpid());
  if (!is_mine || !absl::SimpleAtoi(watchdog, &us) || us <= 0) return ServiceManager(socket);
  return ServiceManager(socket, std::chrono::microseconds(us));
}

ServiceManager::ServiceManager(std::string socket, std::optional<Duration> watchdog)
    : socket_(std::move(socket)), watchdog_(watchdog) {}

void ServiceManager::Ready(std::string_view status) const {
  Tell(fmt::format("READY=1\nSTATUS={}", CleanText(std::string(status))));
}

void ServiceManager::Reloading() const {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  Tell(fmt::format("RELOADING=1\nMONOTONIC_USEC={}",
                   int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000));
}

void ServiceManager::Status(std::string_view status) const {
  Tell(fmt::format("STATUS={}", CleanText(std::string(status))));
}

void ServiceManager::Stopping() const { Tell("STOPPING=1"); }

void ServiceManager::KeepWatchdog(Executor& executor) const {
  if (!watchdog_) return;
  Tell("WATCHDOG=1");
  executor.After(*watchdog_ / 2, [this, &executor] { KeepWatchdog(executor); });
}

void ServiceManager::Tell(const std::string& lines) const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_.empty() || socket_.size() >= sizeof(address.sun_path)) return;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  if (socket_.front() == '@') address.sun_path[0] = '\0';
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  (void)sendto(fd.get(), lines.data(), lines.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
               reinterpret_cast<const sockaddr*>(&address), size);
}

std::string WhyLogoutTakesMemory(uint32_t uid, const std::string& user, const std::string& root) {
  std::error_code error;
  if (uid <= kSystemUidMax || !fs::exists(root + "/run/systemd/users", error)) return "";
  if (fs::exists(fmt::format("{}/var/lib/systemd/linger/{}", root, user), error)) return "";
  if (!RemovesIpc(root)) return "";
  return fmt::format(
      "when user {} (uid {}) logs out, systemd-logind removes the user's shared memory, that of "
      "this job too (RemoveIPC=yes): let the user linger (loginctl enable-linger {}), or run the "
      "job as a system user, or set RemoveIPC=no in /etc/systemd/logind.conf",
      user, uid, user);
}

std::string WhyLogoutTakesMemory() {
  const uid_t uid = geteuid();
  passwd entry{};
  passwd* found = nullptr;
  std::vector<char> text(16384);
  const bool is_known = getpwuid_r(uid, &entry, text.data(), text.size(), &found) == 0 && found;
  return WhyLogoutTakesMemory(uid, is_known ? entry.pw_name : std::to_string(uid));
}

}  // namespace unreft
