// unreftd: the daemon of a node, or the embedded meta store.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/log.h"
#include "base/log_sinks.h"
#include "base/lost_pages.h"
#include "base/service_manager.h"
#include "base/version.h"
#include "meta/meta_daemon.h"
#include "meta/run_forget.h"
#include "smp/node/daemon.h"
#include "smp/node/daemon_options.h"
#include "smp/node/drain_role.h"
#include "transport/grpc_transport.h"

namespace {

using unreft::smp::DaemonOptions;

absl::StatusOr<std::unique_ptr<unreft::LogSink>> OpenSink(const unreft::CommonOptions& options) {
  if (options.log_file.empty()) return unreft::StderrLogSink();
  return unreft::FileLogSink(options.log_file, options.log_file_bytes_max);
}

// At the begin of each line: logs of several nodes and jobs are read together.
std::string NameInLog(const DaemonOptions& options) {
  if (options.role == "meta") return "meta store";
  return fmt::format("job {}, {} {}", options.common.job, options.spare ? "spare" : "node",
                     options.common.node);
}

// Each peer takes some, and so does each segment. The lower limit is there for programs that use
// select().
void TakeAllDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

// What it has removed, a line each.
absl::Status Forget(const DaemonOptions& options) {
  const absl::StatusOr<std::vector<std::string>> removed =
      unreft::meta::RunForget(options.kv, options.common.job, options.forget_present);
  if (!removed.ok()) return removed.status();
  for (const std::string& key : *removed) fmt::print("{}\n", key);
  return absl::OkStatus();
}

absl::Status Run(int argc, char** argv, const unreft::ServiceManager& manager) {
  CLI::App app("unreftd: keeps the snapshots of a training job in the memory of this node");
  app.set_version_flag("--version", fmt::format("unreftd {}", unreft::SoftwareVersion()));
  DaemonOptions options;
  AddDaemonOptions(app, options);
  absl::StatusOr<std::string> help = unreft::ParseOptions(app, argc, argv);
  if (!help.ok()) return help.status();
  if (!help->empty()) {
    fmt::print("{}", *help);
    return absl::OkStatus();
  }
  const absl::StatusOr<std::vector<std::string>> strangers = unreft::CheckVariables(app, environ);
  if (!strangers.ok()) return strangers.status();
  NoteSources(app, argc, argv, options);
  options.node.started_s = static_cast<uint64_t>(time(nullptr));
  if (absl::Status status = FinishDaemonOptions(options); !status.ok()) return status;
  absl::StatusOr<unreft::LogLevel> level = unreft::ParseLogLevel(options.common.log_level);
  if (!level.ok()) return level.status();
  absl::StatusOr<std::unique_ptr<unreft::LogSink>> sink = OpenSink(options.common);
  if (!sink.ok()) return sink.status();
  unreft::Log log(**sink, *level, NameInLog(options));
  for (const std::string& line : *strangers) log.Warn("{}", line);
  TakeAllDescriptors();
  unreft::SilenceGrpcLog();
  if (options.role == "forget") return Forget(options);
  if (options.role == "drain") {
    return RunDrain(options.drain, options.common.job, options.common.node);
  }
  const bool uses_grpc = options.role == "meta" || !options.kv.endpoints.empty();
  if (uses_grpc) (void)unreft::KeepReceiveMemory();
  if (options.role == "meta") return unreft::meta::RunMetaDaemon(options.meta, log, manager);
  if (const std::string why = unreft::WhyLogoutTakesMemory(); !why.empty()) log.Warn("{}", why);
  if (absl::Status status = unreft::SurviveLostPages(); !status.ok()) return status;
  return unreft::smp::RunDaemon(options, log, manager);
}

}  // namespace

int main(int argc, char** argv) {
  umask(0077);  // of logs, records and whatever else is made
  const unreft::ServiceManager manager = unreft::ServiceManager::FromEnvironment();
  const absl::Status status = Run(argc, argv, manager);
  if (status.ok()) return 0;
  fmt::print(stderr, "unreftd: {}\n", status.message());
  return 1;
}
