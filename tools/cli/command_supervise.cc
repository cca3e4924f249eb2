#include <memory>

#include "base/lock_file.h"
#include "tools/cli/commands.h"
#include "tools/cli/daemon_control.h"
#include "tools/cli/meta_control.h"
#include "tools/cli/supervisor.h"

namespace unreft::cli {
namespace {

absl::Status SuperviseHere(const Context& context, const StartRequest& request) {
  absl::StatusOr<LockFile> lock = LockFile::Acquire(context.place.run_dir, kSupervisorLock);
  if (!lock.ok()) return lock.status();
  return Supervise({.argv = DaemonArgv(context.place, request)});
}

}  // namespace

void AddSupervise(CLI::App& app, Context& context) {
  auto daemon_path = std::make_shared<std::string>();
  auto meta_address = std::make_shared<std::string>();
  CLI::App* command = AddCommand(app, "supervise", "keep unreftd running, in the foreground");
  command->group("");  // not in the help: `up --supervise` is how it is started
  command->add_option("--daemon", *daemon_path);
  command->add_option("--meta", *meta_address);  // the meta store at that address instead
  OnChosenForAll(command, context, [&context, daemon_path, meta_address] {
    const StartRequest request{.daemon_path = *daemon_path, .daemon_words = context.after_dashes};
    const absl::Status status = meta_address->empty()
                                    ? SuperviseHere(context, request)
                                    : SuperviseMeta(context.place, *meta_address, request);
    return status.ok() ? kExitOk : Fail(context, status);
  });
}

}  // namespace unreft::cli
