#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <sstream>

#include "tools/cli/commands.h"
#include "tools/cli/owned_fd.h"
#include "tools/cli/spawn.h"

namespace unreft::cli {
namespace {

struct Ended {
  int status = 0;      // of waitpid
  std::string output;  // its standard output
};

absl::StatusOr<Ended> RunToEnd(const std::vector<std::string>& argv) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "make a pipe");
  OwnedFd read_end(fds[0]);
  OwnedFd write_end(fds[1]);
  absl::StatusOr<pid_t> pid = Spawn({.argv = argv, .stdout_fd = write_end.get()});
  if (!pid.ok()) return pid.status();
  write_end.reset();
  Ended ended;
  char part[4096];
  ssize_t n = 0;
  while ((n = read(read_end.get(), part, sizeof(part))) > 0 || (n < 0 && errno == EINTR)) {
    if (n > 0) ended.output.append(part, static_cast<size_t>(n));
  }
  while (waitpid(*pid, &ended.status, 0) < 0 && errno == EINTR) {
  }
  return ended;
}

// unreftd does it: it has the options by which the job's daemons reach the store.
int Forget(const Context& context, bool force) {
  std::vector<std::string> argv = {SiblingPath("unreftd"), "--role", "forget", "--job",
                                   context.place.job};
  if (force) argv.emplace_back("--forget-present");
  argv.insert(argv.end(), context.after_dashes.begin(), context.after_dashes.end());
  absl::StatusOr<Ended> ended = RunToEnd(argv);
  if (!ended.ok()) return Fail(context, ended.status());
  // What is wrong was said on standard error.
  if (!WIFEXITED(ended->status) || WEXITSTATUS(ended->status) != 0) return kExitFailed;
  std::vector<std::string> removed;
  std::istringstream lines(ended->output);
  for (std::string line; std::getline(lines, line);) removed.push_back(line);
  Print(context, {{"job", context.place.job}, {"removed", removed}},
        removed.empty()
            ? fmt::format("job {}: the meta store has no record of it\n", context.place.job)
            : fmt::format("job {}: removed from the meta store: {}\n", context.place.job,
                          fmt::join(removed, ", ")));
  return kExitOk;
}

}  // namespace

void AddForget(CLI::App& app, Context& context) {
  auto force = std::make_shared<bool>(false);
  CLI::App* command =
      AddCommand(app, "forget", "remove the records of a job that has ended from the meta store");
  command->add_flag("--force", *force,
                    "also while daemons of the job are present: what is committed is lost to them");
  command->footer(
      "Where the meta store is and by which TLS files, is said as to unreftd: by --config, by "
      "variables, or by words after --, as in unreft forget -- --config /etc/unreft/job.toml");
  OnChosenForAll(command, context, [&context, force] { return Forget(context, *force); });
}

}  // namespace unreft::cli
