#include "tools/cli/supervisor.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <optional>

#include "tools/cli/context.h"
#include "tools/cli/process_handle.h"
#include "tools/cli/spawn.h"

namespace unreft::cli {
namespace {

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  return set;
}

// One life of the daemon.
class Life {
 public:
  static absl::StatusOr<Life> Begin(const std::vector<std::string>& argv) {
    SpawnRequest request;
    request.argv = argv;
    absl::StatusOr<pid_t> pid = Spawn(request);
    if (!pid.ok()) return pid.status();
    return Life(*pid);
  }

  pid_t pid() const { return pid_; }
  Milliseconds length() const {
    return std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now() - begin_);
  }

  // Waits for its end, or for a signal to us: nothing then.
  std::optional<int> WaitEnd() const {
    sigset_t set = StopSignals();
    sigaddset(&set, SIGCHLD);
    while (true) {
      int wait_status = 0;
      if (waitpid(pid_, &wait_status, WNOHANG) == pid_) return wait_status;
      const int signal = sigwaitinfo(&set, nullptr);
      if (signal == SIGHUP) {
        kill(pid_, SIGHUP);  // it reopens its log and looks at its TLS files
      } else if (signal > 0 && signal != SIGCHLD) {
        return std::nullopt;
      }
    }
  }

  absl::Status End(Milliseconds timeout) const {
    absl::StatusOr<ProcessHandle> process = ProcessHandle::Open(pid_);
    if (!process.ok()) return process.status();
    absl::StatusOr<bool> killed = StopProcess(*process, timeout);
    if (killed.ok()) waitpid(pid_, nullptr, 0);
    return killed.status();
  }

 private:
  explicit Life(pid_t pid) : pid_(pid), begin_(std::chrono::steady_clock::now()) {}

  pid_t pid_;
  std::chrono::steady_clock::time_point begin_;
};

// Sleeps; whether a signal asked us to stop meanwhile. A SIGHUP waits for the next daemon.
bool StopAskedWithin(Milliseconds delay) {
  sigset_t set = StopSignals();
  sigdelset(&set, SIGHUP);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(delay);
  const timespec limit{seconds.count(), (delay - seconds).count() * 1000000};
  return sigtimedwait(&set, nullptr, &limit) > 0;
}

}  // namespace

absl::Status Supervise(const SupervisorOptions& options) {
  sigset_t blocked = StopSignals();
  sigaddset(&blocked, SIGCHLD);
  sigprocmask(SIG_BLOCK, &blocked, nullptr);

  RestartPolicy policy(options.restart);
  for (bool first = true;; first = false) {
    absl::StatusOr<Life> life = Life::Begin(options.argv);
    if (!life.ok()) {
      // Its file may be being replaced, or there are too many processes for a moment.
      const std::optional<Milliseconds> delay =
          first ? std::nullopt : policy.NextDelay(Milliseconds{0});
      if (!delay.has_value()) return life.status();
      Say(fmt::format("{}; trying again in {} ms", life.status().ToString(), delay->count()));
      if (StopAskedWithin(*delay)) return absl::OkStatus();
      continue;
    }
    const std::optional<int> end = life->WaitEnd();
    if (!end.has_value()) return life->End(options.stop_timeout);
    if (WIFEXITED(*end) && WEXITSTATUS(*end) == 0) return absl::OkStatus();

    const std::string what =
        fmt::format("unreftd (pid {}) {} after {:.1f} s", life->pid(), DescribeEnd(*end),
                    static_cast<double>(life->length().count()) / 1000);
    // A daemon that cannot start says so by its exit code; it would not start the next time either.
    const bool refused = first && WIFEXITED(*end) && life->length() < options.restart.stable;
    const std::optional<Milliseconds> delay =
        refused ? std::nullopt : policy.NextDelay(life->length());
    if (!delay.has_value()) return absl::AbortedError(what + "; it is not started again");
    Say(fmt::format("{}; starting it again in {} ms", what, delay->count()));
    if (StopAskedWithin(*delay)) return absl::OkStatus();
  }
}

}  // namespace unreft::cli
