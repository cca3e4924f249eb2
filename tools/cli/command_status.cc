#include <fmt/format.h>

#include "tools/cli/admin_client.h"
#include "tools/cli/commands.h"
#include "tools/cli/daemon_control.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

// Of `record[key]`, an array of objects: one row each.
Table RecordTable(const nlohmann::json& document, const char* key,
                  const std::vector<std::pair<const char*, const char*>>& columns) {
  std::vector<std::string> head;
  head.reserve(columns.size());
  for (const auto& [title, field] : columns) head.emplace_back(title);
  Table table(std::move(head));
  for (const nlohmann::json& record : document.value(key, nlohmann::json::array())) {
    std::vector<std::string> row;
    row.reserve(columns.size());
    for (const auto& [title, field] : columns) {
      row.push_back(std::string_view(field) == "bytes" ? BytesCell(record, field)
                                                       : Cell(record, field));
    }
    table.Add(std::move(row));
  }
  return table;
}

std::string Committed(const nlohmann::json& status) {
  const auto found = status.find("committed");
  if (found == status.end() || !found->is_object()) return "nothing committed";
  return fmt::format("committed {} of {} ranks", VersionCell(*found), Cell(*found, "world"));
}

std::string Text(const Place& place, const nlohmann::json& status) {
  std::string text = fmt::format(
      "{}: unreftd {} (pid {}), session {}, timeline {}{}\n{}; {} held\n", place.Name(),
      Cell(status, "version"), Cell(status, "pid"), Cell(status, "session"),
      Cell(status, "timeline"), status.value("closed", false) ? " (closed for a decision)" : "",
      Committed(status), BytesCell(status, "bytes"));
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
                                   {"problem", "problem"}});
  if (!ranks.empty()) text += "\n" + ranks.Text();
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

int Status(const Context& context) {
  auto status = AskDaemon(context.place, "status", nlohmann::json::object(), context.timeout());
  if (absl::IsUnavailable(status.status())) return Absent(context, status.status());
  if (!status.ok()) return Fail(context, status.status());
  nlohmann::json document = std::move(*status);
  document["running"] = true;
  document["run_dir"] = context.place.run_dir;
  Print(context, document, Text(context.place, document));
  return kExitOk;
}

}  // namespace

void AddStatus(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand(app, "status", "ranks, slots and what is committed");
  OnChosen(command, context, [&context] { return Status(context); });
}

}  // namespace unreft::cli
