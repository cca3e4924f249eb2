#include <fmt/format.h>

#include "tools/cli/admin_client.h"
#include "tools/cli/commands.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

// Every byte held is read: give it a second per GiB above the usual time.
constexpr uint64_t kMsPerGib = 1000;

Milliseconds Patience(const Context& context) {
  auto status = AskDaemon(context.place, "status", nlohmann::json::object(), context.timeout());
  const uint64_t bytes = status.ok() ? status->value("bytes", uint64_t{0}) : 0;
  return context.timeout() + Milliseconds((bytes >> 30) * kMsPerGib);
}

int Verify(const Context& context) {
  auto answer = AskDaemon(context.place, "verify", nlohmann::json::object(), Patience(context));
  if (!answer.ok()) return Fail(context, answer.status());
  const nlohmann::json bad = answer->value("bad", nlohmann::json::array());
  std::string text =
      fmt::format("{} slots checked, {} read, {} bad\n", Cell(*answer, "slots_checked"),
                  BytesCell(*answer, "bytes"), bad.size());
  for (const nlohmann::json& slot : bad) {
    text += fmt::format("slot {}: {}\n", Cell(slot, "slot"), Cell(slot, "problem"));
  }
  Print(context, *answer, text);
  return bad.empty() ? kExitOk : kExitCorrupt;
}

}  // namespace

void AddVerify(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand(
      app, "verify", "read every sealed slot and check its bytes; exit code 5 if one is bad");
  OnChosen(command, context, [&context] { return Verify(context); });
}

}  // namespace unreft::cli
