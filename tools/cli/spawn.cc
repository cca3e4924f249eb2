#include "tools/cli/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "tools/cli/owned_fd.h"

namespace unreft::cli {
namespace {

struct Pipe {
  OwnedFd read;
  OwnedFd write;
};

absl::StatusOr<Pipe> MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "make a pipe");
  return Pipe{OwnedFd(fds[0]), OwnedFd(fds[1])};
}

void ResetSignals() {
  for (int signal = 1; signal < NSIG; ++signal) {
    if (signal != SIGKILL && signal != SIGSTOP) std::signal(signal, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// dup2 onto itself would keep close-on-exec.
void Redirect(int fd, int target) {
  if (fd < 0) return;
  if (fd == target) {
    fcntl(fd, F_SETFD, 0);
  } else {
    dup2(fd, target);
  }
}

// In the child: becomes the program, or writes errno to `report` and exits.
[[noreturn]] void Become(const SpawnRequest& request, pid_t parent, int report) {
  if (request.death_signal != 0) prctl(PR_SET_PDEATHSIG, request.death_signal);
  if (request.death_signal != 0 && getppid() != parent) _exit(1);  // it died before prctl
  if (request.new_group) setpgid(0, 0);
  ResetSignals();
  Redirect(request.stdin_fd, STDIN_FILENO);
  Redirect(request.stdout_fd, STDOUT_FILENO);
  Redirect(request.stderr_fd, STDERR_FILENO);
  syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);

  for (const auto& [name, value] : request.environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> argv;
  argv.reserve(request.argv.size() + 1);
  for (const std::string& word : request.argv) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());

  const int error = errno;
  [[maybe_unused]] const ssize_t n = write(report, &error, sizeof(error));
  _exit(127);
}

// In the process between: starts the program and sends its pid, or 0 and the error's text.
[[noreturn]] void StartAndReport(const SpawnRequest& request, int report) {
  setsid();
  absl::StatusOr<pid_t> pid = Spawn(request);
  const pid_t number = pid.ok() ? *pid : 0;
  [[maybe_unused]] ssize_t n = write(report, &number, sizeof(number));
  const std::string text(pid.status().message());
  if (!pid.ok()) n = write(report, text.data(), text.size());
  _exit(0);
}

absl::StatusOr<pid_t> ReadReport(int report) {
  pid_t pid = 0;
  if (read(report, &pid, sizeof(pid)) != sizeof(pid)) {
    return absl::InternalError("the process that starts the daemon died");
  }
  if (pid != 0) return pid;
  char text[512];
  const ssize_t n = read(report, text, sizeof(text));
  return absl::NotFoundError(std::string(text, n > 0 ? static_cast<size_t>(n) : 0));
}

}  // namespace

absl::StatusOr<pid_t> Spawn(const SpawnRequest& request) {
  absl::StatusOr<Pipe> report = MakePipe();
  if (!report.ok()) return report.status();
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, "fork for " + request.argv[0]);
  if (pid == 0) Become(request, parent, report->write.get());

  report->write.reset();
  int error = 0;
  // Nothing comes when the program runs: exec closed the other end.
  if (read(report->read.get(), &error, sizeof(error)) != sizeof(error)) return pid;
  waitpid(pid, nullptr, 0);
  return absl::ErrnoToStatus(error, fmt::format("run {}", request.argv[0]));
}

absl::StatusOr<pid_t> SpawnDetached(SpawnRequest request, const std::string& log_path) {
  OwnedFd log(open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!log.valid()) return absl::ErrnoToStatus(errno, "open " + log_path);
  OwnedFd nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  request.stdin_fd = nothing.get();
  request.stdout_fd = log.get();
  request.stderr_fd = log.get();

  absl::StatusOr<Pipe> report = MakePipe();
  if (!report.ok()) return report.status();
  const pid_t between = fork();
  if (between < 0) return absl::ErrnoToStatus(errno, "fork for " + request.argv[0]);
  if (between == 0) StartAndReport(request, report->write.get());
  report->write.reset();
  absl::StatusOr<pid_t> pid = ReadReport(report->read.get());
  waitpid(between, nullptr, 0);
  return pid;
}

}  // namespace unreft::cli
