#include <fmt/format.h>

#include <algorithm>

#include "tools/cli/admin_client.h"
#include "tools/cli/commands.h"
#include "tools/cli/job_answers.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

// Every byte held is read: give it a second per GiB above the usual time.
constexpr uint64_t kMsPerGib = 1000;

uint64_t BytesHeld(const absl::StatusOr<nlohmann::json>& status) {
  return status.ok() ? status->value("bytes", uint64_t{0}) : 0;
}

Milliseconds Patience(const Context& context, uint64_t bytes) {
  return context.timeout() + Milliseconds((bytes >> 30) * kMsPerGib);
}

std::string Text(const nlohmann::json& answer) {
  const nlohmann::json bad = answer.value("bad", nlohmann::json::array());
  std::string text = fmt::format("{} slots and {} guards checked, {} of slots read, {} bad\n",
                                 Cell(answer, "slots_checked"), Cell(answer, "guards_checked"),
                                 BytesCell(answer, "bytes"), bad.size());
  for (const nlohmann::json& slot : bad) {
    const bool is_guard = slot.value("slot", nlohmann::json()).is_null();
    const std::string prefix = is_guard ? "" : fmt::format("slot {}: ", Cell(slot, "slot"));
    const std::string problem = Cell(slot, "problem");  // it may name the slot itself
    text += fmt::format("{}{}\n", problem.starts_with(prefix) ? "" : prefix, problem);
  }
  return text;
}

bool IsBad(const nlohmann::json& answer) {
  return !answer.value("bad", nlohmann::json::array()).empty();
}

// A node that does not answer is not verified: that is no success.
int VerifyAll(const Context& context) {
  auto status = AskJob(context, "status", context.timeout());
  if (!status.ok()) return Fail(context, status.status());
  uint64_t most = 0;  // of all nodes, which read at the same time
  for (const JobNode& node : NodesOf(*status, "status")) {
    most = std::max(most, BytesHeld(node.answer));
  }
  auto answer = AskJob(context, "verify", Patience(context, most));
  if (!answer.ok()) return Fail(context, answer.status());
  const std::vector<JobNode> nodes = NodesOf(*answer, "verify");
  std::string text;
  bool bad = false;
  for (const JobNode& node : nodes) {
    if (!node.answer.ok()) continue;
    text += fmt::format("node {}: {}", node.node, Text(*node.answer));
    bad |= IsBad(*node.answer);
  }
  Print(context, NodesJson(context, nodes), text + SilentNodes(nodes));
  return bad ? kExitCorrupt : ExitCode(AllAnswered(nodes));
}

int Verify(const Context& context, bool own) {
  const absl::StatusOr<bool> several = own ? false : IsOfSeveralNodes(context);
  if (!several.ok()) return Fail(context, several.status());
  if (*several) return VerifyAll(context);
  const auto status =
      AskDaemon(context.place, "status", nlohmann::json::object(), context.timeout());
  auto answer = AskDaemon(context.place, "verify", nlohmann::json::object(),
                          Patience(context, BytesHeld(status)));
  if (!answer.ok()) return Fail(context, answer.status());
  Print(context, *answer, Text(*answer));
  return IsBad(*answer) ? kExitCorrupt : kExitOk;
}

}  // namespace

void AddVerify(CLI::App& app, Context& context) {
  CLI::App* command =
      AddCommand(app, "verify",
                 "read every sealed slot and guard and check its bytes; exit code 5 if one is bad");
  const std::shared_ptr<bool> own = AddOwn(command);
  OnChosenForAll(command, context, [&context, own] { return Verify(context, *own); });
}

}  // namespace unreft::cli
