#include "tests/fakes/child_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/check.h"

namespace unreft {
namespace {

pid_t ForkAndRun(absl::FunctionRef<void()> body) {
  const pid_t pid = fork();
  UNREFT_CHECK(pid >= 0, "fork: errno {}", errno);
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  body();
  while (true) pause();
}

}  // namespace

ChildProcess::ChildProcess(absl::FunctionRef<void()> body) : pid_(ForkAndRun(body)) {}

ChildProcess::~ChildProcess() { Reap(); }

void ChildProcess::Kill() {
  if (reaped_) return;
  kill(pid_, SIGKILL);
  siginfo_t info{};
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
}

void ChildProcess::Reap() {
  if (reaped_) return;
  Kill();
  waitpid(pid_, nullptr, 0);
  reaped_ = true;
}

}  // namespace unreft
