#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "tools/cli/admin_client.h"
#include "tools/cli/commands.h"
#include "tools/cli/daemon_control.h"
#include "tools/cli/launcher.h"

namespace unreft::cli {
namespace {

struct RunOptions {
  uint32_t ranks = 1;
  uint32_t max_restarts = 10;
  uint64_t grace_ms = 500;
  std::optional<uint64_t> first_attempt;
  bool up = false;
  bool prefix_output = false;
};

// One more than any attempt the daemon has seen, so that a new launcher continues the count.
uint64_t NextAttempt(const nlohmann::json& status) {
  uint64_t next = 0;
  for (const nlohmann::json& rank : status.value("ranks", nlohmann::json::array())) {
    next = std::max(next, rank.value("attempt", uint64_t{0}) + 1);
  }
  return next;
}

absl::StatusOr<nlohmann::json> ReachDaemon(const Context& context, bool up) {
  if (!up) {
    return AskDaemon(context.place, "status", nlohmann::json::object(), context.timeout());
  }
  absl::StatusOr<StartResult> started = StartDaemon(context.place, {.supervise = true});
  if (!started.ok()) return started.status();
  return std::move(started->status);
}

void Warn(const Context& context, const std::string& text) {
  if (!context.json) return Say(text);
  const std::string line = nlohmann::json{{"event", "warning"}, {"text", text}}.dump() + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int Run(const Context& context, const RunOptions& options) {
  if (context.after_dashes.empty()) {
    return Fail(context, absl::InvalidArgumentError(
                             "run: no command; write it after --: unreft run -- python train.py"));
  }
  absl::StatusOr<nlohmann::json> status = ReachDaemon(context, options.up);
  if (!status.ok() && options.up) return Fail(context, status.status());
  if (!status.ok()) {
    Warn(context, fmt::format("{}; unless `unreft up` starts one, training is not protected",
                              std::string(status.status().message())));
  }
  const uint64_t daemon_next = status.ok() ? NextAttempt(*status) : 0;
  LaunchOptions launch{.group = {.command = context.after_dashes,
                                 .ranks = options.ranks,
                                 .environment = TrainerEnvironment(context.place),
                                 .grace = Milliseconds(options.grace_ms),
                                 .prefix_output = options.prefix_output},
                       .max_restarts = options.max_restarts,
                       .first_attempt = options.first_attempt.value_or(daemon_next),
                       .json = context.json};
  absl::StatusOr<int> code = Launch(launch);
  if (code.ok()) return *code;
  const int failed = Fail(context, code.status());
  return absl::IsNotFound(code.status()) ? kExitCannotRun : failed;
}

constexpr char kFooter[] =
    R"text(Each rank gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR=127.0.0.1,
MASTER_PORT (a fresh one per attempt), UNREFT_ATTEMPT, UNREFT_SOCKET, UNREFT_JOB, and
OMP_NUM_THREADS=1 unless it is set. When a rank exits with another code than 0 or is
killed, the others are stopped and the next attempt starts.

Exit code: 0 when all ranks of an attempt exited with 0; the failed rank's code, or 128
plus its signal, when the restarts are used up; 130 after Ctrl-C; 127 when the command
cannot be run. The daemon stays up: unreft down. With --up its options come from the
environment (UNREFT_SLOTS_PER_RANK=2 ...), or start it before: unreft up -- OPTIONS.

Under another launcher: eval "$(unreft up --print-env)", then
  torchrun --nproc-per-node 4 --max-restarts 10 train.py
whose RANK, WORLD_SIZE and TORCHELASTIC_RESTART_COUNT the client understands.)text";

}  // namespace

void AddRun(CLI::App& app, Context& context) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = AddCommand(app, "run", "launch a training job: unreft run -- CMD ...");
  command->add_option("--ranks", options->ranks, "training processes to start")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--max-restarts", options->max_restarts, "attempts after the first")
      ->capture_default_str();
  command
      ->add_option("--grace-ms", options->grace_ms,
                   "from SIGTERM to SIGKILL, for the ranks that did not fail")
      ->capture_default_str();
  command->add_option("--first-attempt", options->first_attempt,
                      "number of the first attempt; by default one more than unreftd has seen");
  command->add_flag("--up", options->up, "first do what `unreft up --supervise` does");
  command->add_flag("--prefix-output", options->prefix_output, "begin each line with [RANK]");
  command->footer(kFooter);
  OnChosen(command, context, [&context, options] { return Run(context, *options); });
}

}  // namespace unreft::cli
