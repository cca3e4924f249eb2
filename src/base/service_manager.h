// ServiceManager: what systemd, or whoever else started this process so, is told of it, by the
// datagrams of sd_notify; and what systemd may take away from it.
//
// Constant after it was made: thread-safe. Without a service manager nothing is told.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/executor.h"

namespace unreft {

class ServiceManager {
 public:
  // By NOTIFY_SOCKET and WATCHDOG_USEC, which are taken out of the environment: children are not
  // this process. For main(), before there are threads.
  static ServiceManager FromEnvironment();
  // At that socket: a path, or "@" and an abstract name; empty: nobody is there.
  explicit ServiceManager(std::string socket, std::optional<Duration> watchdog = std::nullopt);

  void Ready(std::string_view status) const;  // started, or has done what SIGHUP asked
  void Reloading() const;
  void Status(std::string_view status) const;
  void Stopping() const;

  // From now on `executor` says that its turns go on, twice in each interval of the watchdog, if
  // there is one. In a turn; this outlives the executor's tasks.
  void KeepWatchdog(Executor& executor) const;

 private:
  // Never blocks. A datagram that is lost is lost.
  void Tell(const std::string& lines) const;

  const std::string socket_;
  const std::optional<Duration> watchdog_;
};

// Why the memory of this user may go when the user logs out, as a line for the log: systemd-logind
// then removes it (RemoveIPC), unless that is a system user or lingers. Empty: it does not. `root`
// is put before /etc, /run and /var, for tests.
std::string WhyLogoutTakesMemory(uint32_t uid, const std::string& user,
                                 const std::string& root = "");
// Of the user of this process.
std::string WhyLogoutTakesMemory();

}  // namespace unreft
