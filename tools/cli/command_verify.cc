#include <fmt/format.h>

#include "tools/cli/admin_client.h"
#include "tools/cli/commands.h"
#include "tools/cli/node_answers.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

// Every byte held is read: give it a second per GiB above the usual time.
constexpr uint64_t kMsPerGib = 1000;

Milliseconds Patience(const Context& context, const Place& place) {
  auto status = AskDaemon(place, "status", nlohmann::json::object(), context.timeout());
  const uint64_t bytes = status.ok() ? status->value("bytes", uint64_t{0}) : 0;
  return context.timeout() + Milliseconds((bytes >> 30) * kMsPerGib);
}

std::string Text(const nlohmann::json& answer) {
  const nlohmann::json bad = answer.value("bad", nlohmann::json::array());
  std::string text =
      fmt::format("{} slots checked, {} read, {} bad\n", Cell(answer, "slots_checked"),
                  BytesCell(answer, "bytes"), bad.size());
  for (const nlohmann::json& slot : bad) {
    const std::string prefix = fmt::format("slot {}: ", Cell(slot, "slot"));
    const std::string problem = Cell(slot, "problem");  // it may name the slot itself
    text += fmt::format("{}{}\n", problem.starts_with(prefix) ? "" : prefix, problem);
  }
  return text;
}

bool IsBad(const nlohmann::json& answer) {
  return !answer.value("bad", nlohmann::json::array()).empty();
}

// A node that does not answer is not verified: that is no success.
int VerifyAll(const Context& context, const Cluster& cluster) {
  const std::vector<NodeAnswer> nodes =
      AskNodes(cluster, "verify", context.timeout(),
               [&](const Place& place) { return Patience(context, place); });
  if (absl::Status status = AnyAnswered(nodes); !status.ok()) return Fail(context, status);
  std::string text;
  bool bad = false;
  for (const NodeAnswer& node : nodes) {
    if (!node.answer.ok()) continue;
    text += fmt::format("node {}: {}", node.node, Text(*node.answer));
    bad |= IsBad(*node.answer);
  }
  Print(context, NodesJson(cluster, nodes), text + SilentNodes(nodes));
  return bad ? kExitCorrupt : ExitCode(AllAnswered(nodes));
}

int Verify(const Context& context) {
  if (const Cluster* cluster = context.all_nodes()) return VerifyAll(context, *cluster);
  auto answer = AskDaemon(context.place, "verify", nlohmann::json::object(),
                          Patience(context, context.place));
  if (!answer.ok()) return Fail(context, answer.status());
  Print(context, *answer, Text(*answer));
  return IsBad(*answer) ? kExitCorrupt : kExitOk;
}

}  // namespace

void AddVerify(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand(
      app, "verify", "read every sealed slot and check its bytes; exit code 5 if one is bad");
  OnChosenForAll(command, context, [&context] { return Verify(context); });
}

}  // namespace unreft::cli
