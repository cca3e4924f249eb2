// ChildProcess: a real child of the test, which never outlives it.
#pragma once

#include <absl/functional/function_ref.h>
#include <sys/types.h>

namespace unreft {

class ChildProcess {
 public:
  // Runs `body` in a fork of this process, then waits there until it is killed. `body` allocates
  // nothing and locks nothing: only the forking thread lives on in the child.
  explicit ChildProcess(absl::FunctionRef<void()> body);
  // Kills and reaps it.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }

  // SIGKILL; returns when it is dead, a zombie. Idempotent.
  void Kill();
  // Kills it and leaves nothing of it. Idempotent.
  void Reap();

 private:
  const pid_t pid_;
  bool reaped_ = false;
};

}  // namespace unreft
