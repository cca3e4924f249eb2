#include "smp/node/spawned_drain.h"

#include <absl/status/statusor.h>
#include <absl/strings/escaping.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/unique_fd.h"

extern char** environ;

namespace unreft::smp {
namespace {

// The same program, also where its file was replaced meanwhile: the child's own, before it is
// another's.
constexpr char kThisProgram[] = "/proc/self/exe";
constexpr std::chrono::milliseconds kReapEvery(20);
constexpr size_t kLineBytesMax = 1 << 20;

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

absl::StatusOr<Pipe> MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "drain: make a pipe");
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// With signals at their defaults, an empty standard input, and no descriptor of the daemon's but
// its log.
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& arguments, int output) {
  std::vector<char*> argv;
  for (const std::string& word : arguments) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t all;
  sigset_t none;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, kThisProgram, &files, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) return absl::ErrnoToStatus(error, "drain: start the process");
  return pid;
}

}  // namespace

struct SpawnedDrain::Child {
  Child(AsioExecutor& executor, pid_t process, UniqueFd pipe)
      : executor(executor), pid(process), output(executor.context(), pipe.Release()) {}

  // Once it has ended: a child that is not waited for stays in the kernel's table.
  void Reap(const std::shared_ptr<Child>& self) {
    if (waitpid(pid, nullptr, WNOHANG) == 0) {
      executor.After(kReapEvery, [self] { self->Reap(self); });
      return;
    }
    is_reaped = true;
    if (auto ended = std::exchange(on_end, nullptr)) ended();
  }

  AsioExecutor& executor;
  const pid_t pid;
  boost::asio::posix::stream_descriptor output;
  bool is_reaped = false;
  std::array<char, 4096> buffer{};
  std::string line;
  absl::AnyInvocable<void(const std::string&)> on_line;
  absl::AnyInvocable<void()> on_end;
};

SpawnedDrain::SpawnedDrain(AsioExecutor& executor, std::vector<std::string> arguments)
    : executor_(executor), arguments_(std::move(arguments)) {}

SpawnedDrain::~SpawnedDrain() {
  if (child_ == nullptr) return;
  Stop();
  child_->on_line = nullptr;
  child_->on_end = nullptr;
}

absl::Status SpawnedDrain::Start(const std::string& order,
                                 absl::AnyInvocable<void(const std::string& line)> on_line,
                                 absl::AnyInvocable<void()> on_end) {
  if (child_ != nullptr) {
    return absl::FailedPreconditionError(
        fmt::format("drain: process {} of this node is at work on a copy, or about to end: try "
                    "again once it has",
                    child_->pid));
  }
  std::vector<std::string> arguments = arguments_;
  arguments.push_back("--drain-order");
  arguments.push_back(absl::BytesToHexString(order));
  absl::StatusOr<Pipe> pipe = MakePipe();
  if (!pipe.ok()) return pipe.status();
  const absl::StatusOr<pid_t> pid = Spawn(arguments, pipe->write.get());
  if (!pid.ok()) return pid.status();
  child_ = std::make_shared<Child>(executor_, *pid, std::move(pipe->read));
  child_->on_line = std::move(on_line);
  child_->on_end = [this, ended = std::move(on_end)]() mutable {
    child_ = nullptr;
    ended();
  };
  ReadOn();
  return absl::OkStatus();
}

void SpawnedDrain::Stop() {
  if (child_ != nullptr && !child_->is_reaped) kill(child_->pid, SIGTERM);
}

void SpawnedDrain::ReadOn() {
  const std::shared_ptr<Child> child = child_;
  child->output.async_read_some(
      boost::asio::buffer(child->buffer),
      [this, child](boost::system::error_code error, size_t bytes) {
        if (error) return child->Reap(child);
        for (const char letter : std::string_view(child->buffer.data(), bytes)) {
          if (letter != '\n') {
            if (child->line.size() < kLineBytesMax) child->line += letter;
            continue;
          }
          const std::string line = std::exchange(child->line, "");
          if (child->on_line) child->on_line(line);
        }
        // Null once nobody listens: then it ends for want of a reader.
        if (child->on_end) ReadOn();
      });
}

}  // namespace unreft::smp
