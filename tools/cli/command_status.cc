#include <fmt/format.h>

#include <memory>
#include <utility>

#include "tools/cli/admin_client.h"
#include "tools/cli/commands.h"
#include "tools/cli/daemon_control.h"
#include "tools/cli/job_status.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

// "1/4 of 12 tensors": what the rank captures of those that other ranks have, too.
std::string ReplicasCell(const nlohmann::json& rank) {
  const uint64_t tensors = rank.value("replicated_tensors", uint64_t{0});
  if (tensors == 0) return "-";
  const uint64_t parts = rank.value("replica_parts", uint64_t{0});
  return fmt::format("{} of {}", parts > 1 ? fmt::format("1/{}", parts) : "all",
                     Count(tensors, "tensor"));
}

// What each rank that has registered captures.
Table CaptureTable(const nlohmann::json& status) {
  Table table({"rank", "tensors", "held", "captured", "of replicas", "extras", "last captured"});
  for (const nlohmann::json& rank : status.value("ranks", nlohmann::json::array())) {
    if (!rank.value("registered", false)) continue;
    table.Add({Cell(rank, "rank"), Cell(rank, "tensors"), BytesCell(rank, "bytes"),
               BytesCell(rank, "captured_bytes"), ReplicasCell(rank),
               BytesCell(rank, "extras_bytes"), Cell(rank, "last_captured_step")});
  }
  return table;
}

std::string Text(const Place& place, const nlohmann::json& status) {
  std::string text = fmt::format(
      "{}: unreftd {} (pid {}), session {}, timeline {}{}\n{}; {} held\n{}\n", place.Name(),
      Cell(status, "version"), Cell(status, "pid"), Cell(status, "session"),
      Cell(status, "timeline"), status.value("closed", false) ? " (closed for a decision)" : "",
      CommittedText(status), BytesCell(status, "bytes"), ProtectionText(status));
  text += DurableText(status);
  text += ProblemText(status);
  text += InsecureText(status);
  const Table ranks = RecordTable(status, "ranks",
                                  {{"rank", "rank"},
                                   {"pid", "pid"},
                                   {"connected", "connected"},
                                   {"attempt", "attempt"},
                                   {"timeline", "timeline"},
                                   {"newest", "newest_step"},
                                   {"captured", "captured"},
                                   {"skipped", "skipped"},
                                   {"given up", "given_up"},
                                   {"last skip", "last_skip"},
                                   {"last given up", "last_given_up"},
                                   {"problem", "problem"}});
  if (!ranks.empty()) text += "\n" + ranks.Text();
  const Table captures = CaptureTable(status);
  if (!captures.empty()) text += "\n" + captures.Text();
  const Table slots = RecordTable(status, "slots",
                                  {{"slot", "slot"},
                                   {"rank", "rank"},
                                   {"phase", "phase"},
                                   {"generation", "generation"},
                                   {"timeline", "timeline"},
                                   {"step", "step"},
                                   {"bytes", "bytes"},
                                   {"segment", "segment"},
                                   {"problem", "problem"}});
  if (!slots.empty()) text += "\n" + slots.Text();
  return text;
}

// No daemon: what it left.
int Absent(const Context& context, const absl::Status& why) {
  nlohmann::json document{{"running", false},
                          {"job", context.place.job},
                          {"node", context.place.node},
                          {"run_dir", context.place.run_dir},
                          {"error", std::string(why.message())}};
  std::string text = std::string(why.message()) + "\n";
  if (auto segments = ListMemory(context.place); segments.ok()) {
    document["segments"] = segments->size();
    document["bytes"] = TotalBytes(*segments);
    text += fmt::format("its memory: {} ({})\n", Count(segments->size(), "segment"),
                        HumanBytes(TotalBytes(*segments)));
  }
  Print(context, document, text);
  return kExitNoDaemon;
}

// A daemon that waits for the slot of a lost node.
int SpareStatus(const Context& context, const nlohmann::json& status) {
  Print(context, status,
        fmt::format("job {}: spare {}: unreftd {} (pid {}) waits for the slot of a lost node{}\n",
                    context.place.job, Cell(status, "place"), Cell(status, "version"),
                    Cell(status, "pid"),
                    status.value("registered", false) ? "" : ", and is not registered yet"));
  return kExitOk;
}

absl::Status SpareKnowsNothing(const nlohmann::json& status) {
  return absl::UnavailableError(
      fmt::format("the daemon here is spare {}, which waits for the slot of a lost node and does "
                  "not know whether the job is protected: ask one that has a slot",
                  Cell(status, "place")));
}

int Status(const Context& context, bool check, bool own) {
  if (context.all_nodes() != nullptr && !own) return JobStatus(context, nullptr, check);
  auto status = AskDaemon(context.place, "status", nlohmann::json::object(), context.timeout());
  if (absl::IsUnavailable(status.status())) return Absent(context, status.status());
  if (!status.ok()) return Fail(context, status.status());
  nlohmann::json document = std::move(*status);
  document["running"] = true;
  document["run_dir"] = context.place.run_dir;
  if (document.value("spare", false)) {
    return check ? Fail(context, SpareKnowsNothing(document)) : SpareStatus(context, document);
  }
  const bool several = document.value("nodes", uint64_t{1}) > 1 && !context.cluster;
  if (several && !own) return JobStatus(context, &document, check);
  if (check) return CheckProtection(context, {{context.place.node, document}});
  Print(context, document, Text(context.place, document));
  return HasProblem(document) ? kExitFailed : kExitOk;
}

}  // namespace

void AddStatus(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand(app, "status", "members, ranks, slots and what is committed");
  const auto check = std::make_shared<bool>(false);
  command->add_flag("--check", *check,
                    "only say whether the job is protected. Exit code 0: it is; 1: it is not, or "
                    "no job runs; 3: no unreftd answers, or it is a spare that waits");
  const std::shared_ptr<bool> own = AddOwn(command);
  command->footer(
      "Of a job of several nodes it shows all of them, whichever is asked; exit code 1 when "
      "something stands in the job's way (\"problem\").");
  OnChosenForAll(command, context,
                 [&context, check, own] { return Status(context, *check, *own); });
}

}  // namespace unreft::cli
