// unreft: the command line of Unreft. Wires the commands; each is a file command_<name>.cc.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <optional>

#include "base/private_directory.h"
#include "base/run_owner.h"
#include "base/variables.h"
#include "base/version.h"
#include "tools/cli/commands.h"

namespace unreft::cli {
namespace {

constexpr char kFooter[] = R"text(A first run:
  unreft run --up --ranks 4 -- python train.py   daemon, then the job, restarted when a rank dies
  unreft status                                  what is kept
  unreft down                                    stop the daemon, give the memory back

Four nodes on this machine, any two of which may be lost:
  unreft up --nodes 4 --data-chunks 2 --parity-chunks 2
  unreft run --ranks 4 -- python train.py        rank r is of node r

Under torchrun or another launcher:
  eval "$(unreft up --supervise --print-env)"
  TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nproc-per-node 4 --max-restarts 10 train.py

Exit codes: 0 done; 1 failed (status --check: not protected); 2 wrong usage; 3 no unreftd answers;
4 a deadline passed; 5 verify found wrong bytes. `unreft run` has its own: unreft run --help.)text";

void AddCommonOptions(CLI::App& app, Context& context) {
  app.add_option_function<std::string>(
         "--job",
         [&context](const std::string& job) {
           context.place.job = job;
           context.job_given = true;
         },
         "name of the training job; by default that of --run-dir, else \"default\"")
      ->envname("UNREFT_JOB")
      ->take_last();
  app.add_option_function<uint64_t>(
         "--node",
         [&context](const uint64_t& node) {
           context.place.node = node;
           context.node_given = true;
         },
         "node slot; by default that of --run-dir, else 0, or all nodes of `unreft up --nodes`")
      ->envname("UNREFT_NODE")
      ->take_last();
  app.add_option("--run-dir", context.place.run_dir,
                 "socket, log and records; by default ${XDG_RUNTIME_DIR:-/tmp}/unreft-<uid>/<job>")
      ->envname("UNREFT_RUN_DIR")
      ->take_last();
  app.add_flag("--json", context.json, "print JSON (run: an object per line, on standard error)");
  app.add_option("--timeout-ms", context.timeout_ms,
                 "how long unreftd may take to answer, or to stop")
      ->take_last()
      ->capture_default_str();
}

void AddCommands(CLI::App& app, Context& context) {
  AddUp(app, context);
  AddDown(app, context);
  AddRun(app, context);
  AddStatus(app, context);
  AddVersions(app, context);
  AddVerify(app, context);
  AddPin(app, context);
  AddUnpin(app, context);
  AddRewind(app, context);
  AddResize(app, context);
  AddFreshStart(app, context);
  AddForget(app, context);
  AddExport(app, context);
  AddMetrics(app, context);
  AddMemory(app, context);
  AddPlan(app, context);
  AddPlanMemory(app, context);
  AddCerts(app, context);
  AddInject(app, context);
  AddSupervise(app, context);
}

// What is there says what is started and removed: nobody else may have put it there.
absl::Status CheckRunDir(const Place& place) {
  const absl::Status status = CheckPrivateDirectory(place.run_dir);
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

// A run directory knows whose it is: what is not given is taken from it.
absl::Status FollowRunDir(Context& context, const std::string& run_dir) {
  const std::optional<RunOwner> owner = ReadRunOwner(run_dir);
  // The default directory of node 0 does not speak for another node.
  if (!owner || (context.place.run_dir.empty() && context.node_given)) return absl::OkStatus();
  if (!context.job_given && !context.place.run_dir.empty()) context.place.job = owner->job;
  if (!context.node_given) context.place.node = owner->node;
  if (owner->job == context.place.job && owner->node == context.place.node) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format(
      "{} is of job {}, node {} (the number that its unreftd was started with), not of {}: give "
      "that, or another --run-dir",
      run_dir, owner->job, owner->node, context.place.Name()));
}

// Where the files of the node are, or those of all nodes.
absl::Status Locate(Context& context) {
  context.run_dir_is_default = context.place.run_dir.empty();
  Place whole{.job = context.place.job, .run_dir = context.place.run_dir};
  if (absl::Status status = Resolve(whole); !status.ok()) return status;
  if (absl::Status status = CheckRunDir(whole); !status.ok()) return status;
  absl::StatusOr<std::optional<Cluster>> cluster = ReadCluster(whole);
  if (!cluster.ok()) return cluster.status();
  context.cluster = *std::move(cluster);
  if (!context.cluster) {
    if (absl::Status status = FollowRunDir(context, whole.run_dir); !status.ok()) return status;
  }
  if (context.cluster && !context.node_given) {
    context.place = whole;
  } else if (context.cluster) {
    if (context.place.node >= context.cluster->places()) {
      return absl::InvalidArgumentError(fmt::format("job {} has the nodes 0 to {}, not {}",
                                                    whole.job, context.cluster->places() - 1,
                                                    context.place.node));
    }
    context.place = context.cluster->NodePlace(context.place.node);
  }
  if (absl::Status status = Resolve(context.place); !status.ok()) return status;
  return CheckRunDir(context.place);
}

int Main(int argc, char** argv) {
  Context context;
  // What stands after "--" is another program's: it is never looked at here.
  char** const end = argv + argc;
  char** const dashes = std::find(argv, end, std::string_view("--"));
  if (dashes != end) context.after_dashes.assign(dashes + 1, end);

  CLI::App app("Keeps the state of a training job alive in host memory.", "unreft");
  app.set_version_flag("--version", SoftwareVersion());
  app.require_subcommand(1);
  app.footer(kFooter);
  AddCommonOptions(app, context);
  AddCommands(app, context);
  try {
    app.parse(static_cast<int>(dashes - argv), argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  for (const UnknownVariable& unknown : FindUnknownVariables(environ)) {
    if (unknown.is_mistyped) Say(unknown.Text());
  }
  if (absl::Status status = Locate(context); !status.ok()) return Fail(context, status);
  const int code = context.command();
  if (std::ferror(stdout) == 0) return code;
  Say("standard output: not all of it was written");
  return code == kExitOk ? kExitFailed : code;
}

}  // namespace

}  // namespace unreft::cli

// The JSON library throws where a daemon of another release answers in another shape.
int main(int argc, char** argv) {
  try {
    return unreft::cli::Main(argc, argv);
  } catch (const std::exception& error) {
    unreft::cli::Say(error.what());
    return unreft::cli::kExitFailed;
  }
}
