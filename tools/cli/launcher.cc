#include "tools/cli/launcher.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "tools/cli/context.h"

namespace unreft::cli {
namespace {

// A port for rank 0 to listen on. As long as `holder` is bound nobody else gets it: not by asking
// for any free one, and not as the near end of a connection. Who binds it by number does, if both
// allow the address to be reused, as torch's TCPStore does.
struct ReservedPort {
  uint16_t number = 0;
  OwnedFd holder;
};

absl::StatusOr<ReservedPort> ReservePort() {
  OwnedFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (!fd.valid() || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(fd.get(), any, length) != 0 || getsockname(fd.get(), any, &length) != 0) {
    return absl::ErrnoToStatus(errno, "find a free port");
  }
  return ReservedPort{ntohs(address.sin_port), std::move(fd)};
}

// Those that it was not started to ignore, as by nohup: one that is blocked would come all the
// same.
OwnedFd BlockedSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction inherited{};
    sigaction(signal, nullptr, &inherited);
    if (inherited.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  sigprocmask(SIG_BLOCK, &set, nullptr);
  return OwnedFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

int ReadSignal(int signals) {
  signalfd_siginfo info{};
  const ssize_t bytes = read(signals, &info, sizeof(info));
  return bytes == sizeof(info) ? static_cast<int>(info.ssi_signo) : SIGTERM;
}

double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

int CodeOf(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

// One attempt's numbers, for its lines.
struct Attempt {
  uint64_t number = 0;
  uint16_t port = 0;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
};

void Emit(const LaunchOptions& options, const nlohmann::json& event, const std::string& line) {
  if (!options.json) return Say(line);
  const std::string out = event.dump() + "\n";
  std::fwrite(out.data(), 1, out.size(), stderr);
}

void SayStart(const LaunchOptions& options, const Attempt& attempt, const RankGroup& group) {
  Emit(options,
       {{"event", "attempt-start"},
        {"attempt", attempt.number},
        {"ranks", options.group.ranks},
        {"port", attempt.port},
        {"pids", group.pids()},
        {"unix_s", UnixSeconds()}},
       fmt::format("attempt {}: {} ranks started, port {}", attempt.number, options.group.ranks,
                   attempt.port));
}

nlohmann::json EndEvent(const Attempt& attempt, const AttemptEnd& end) {
  nlohmann::json event{{"event", "attempt-end"},
                       {"attempt", attempt.number},
                       {"why", end.signal    ? "stopped"
                               : end.moved   ? "moved"
                               : end.failure ? "failed"
                                             : "done"},
                       {"rank", nullptr},
                       {"pid", nullptr},
                       {"signal", nullptr},
                       {"exit_code", nullptr},
                       {"seconds", attempt.seconds()},
                       {"unix_s", UnixSeconds()}};
  if (end.signal) {
    event["signal"] = *end.signal;
  } else if (end.failure) {
    const int status = end.failure->wait_status;
    event["rank"] = end.failure->rank;
    event["pid"] = end.failure->pid;
    event[WIFSIGNALED(status) ? "signal" : "exit_code"] =
        WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
  }
  return event;
}

// `next` is what follows a failure.
void SayEnd(const LaunchOptions& options, const Attempt& attempt, const AttemptEnd& end,
            const std::string& next) {
  std::string what = fmt::format("all {} ranks exited with code 0", options.group.ranks);
  if (end.signal) {
    what = fmt::format("stopped by signal {} ({})", *end.signal, strsignal(*end.signal));
  } else if (end.moved) {
    what = "ended";
  } else if (end.failure) {
    what = fmt::format("rank {} (pid {}) {}", end.failure->rank, end.failure->pid,
                       DescribeEnd(end.failure->wait_status));
  }
  Emit(options, EndEvent(attempt, end),
       fmt::format("attempt {}: {} after {:.1f} s{}", attempt.number, what, attempt.seconds(),
                   next));
}

RankGroupOptions OfAttempt(const LaunchOptions& options, const Attempt& attempt) {
  RankGroupOptions group = options.group;
  const std::string ranks = std::to_string(group.ranks);
  group.environment.insert(group.environment.end(),
                           {{"WORLD_SIZE", ranks},
                            {"LOCAL_WORLD_SIZE", ranks},
                            {"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", std::to_string(attempt.port)},
                            {"UNREFT_ATTEMPT", std::to_string(attempt.number)}});
  if (std::getenv("OMP_NUM_THREADS") == nullptr)
    group.environment.emplace_back("OMP_NUM_THREADS", "1");
  return group;
}

}  // namespace

absl::StatusOr<int> Launch(const LaunchOptions& options) {
  signal(SIGPIPE, SIG_IGN);  // whoever read its lines may be gone; training goes on
  const OwnedFd signals = BlockedSignals();
  if (!signals.valid()) return absl::ErrnoToStatus(errno, "receive signals");
  uint32_t restarts = 0;
  ReservedPort port;
  for (uint64_t number = options.first_attempt;; ++number) {
    absl::StatusOr<ReservedPort> next_port = ReservePort();
    if (!next_port.ok()) return next_port.status();
    port = *std::move(next_port);  // and not that of the attempt before
    const Attempt attempt{.number = number, .port = port.number};
    const RankGroupOptions group_options = OfAttempt(options, attempt);
    RankGroup group(group_options);
    if (absl::Status status = group.Start(); !status.ok()) return status;
    SayStart(options, attempt, group);

    absl::StatusOr<AttemptEnd> end = group.Run(signals.get());
    if (!end.ok()) return end.status();
    const bool last = restarts >= options.max_restarts;
    SayEnd(options, attempt, *end,
           end->signal     ? ""
           : end->moved    ? ": " + *end->moved
           : !end->failure ? ""
           : last          ? fmt::format("; all {} restarts are used up", options.max_restarts)
                           : fmt::format("; restart {} of {}", restarts + 1, options.max_restarts));
    if (end->signal) return 128 + *end->signal;
    if (!end->moved) {
      if (!end->failure) return 0;
      if (last) return CodeOf(end->failure->wait_status);
      ++restarts;
    }
    if (options.before_restart) {
      absl::Status status = options.before_restart(signals.get());
      if (absl::IsCancelled(status)) return 128 + ReadSignal(signals.get());
      if (!status.ok()) return status;
    }
  }
}

}  // namespace unreft::cli
