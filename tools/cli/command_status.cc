#include <fmt/format.h>

#include <algorithm>

#include "tools/cli/admin_client.h"
#include "tools/cli/commands.h"
#include "tools/cli/daemon_control.h"
#include "tools/cli/meta_control.h"
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

// --- several nodes on this machine ---

constexpr Milliseconds kNodeAnswerTimeout(3000);

std::string NodeState(const nlohmann::json& member) {
  if (member.value("lost", false)) return "lost";
  return member.value("present", false) ? "present" : "absent";
}

// The members, each with what its daemon says of itself.
nlohmann::json Members(const Cluster& cluster, const nlohmann::json& answer) {
  nlohmann::json members = answer.value("members", nlohmann::json::array());
  for (uint64_t node = members.size(); node < cluster.nodes; ++node) {
    members.push_back({{"slot", node}, {"present", nullptr}, {"lost", nullptr}});
  }
  for (nlohmann::json& member : members) {
    const Place place = cluster.NodePlace(member.value("place", member.at("slot").get<uint64_t>()));
    auto status = AskDaemon(place, "status", nlohmann::json::object(), kNodeAnswerTimeout);
    member["running"] = status.ok();
    member["run_dir"] = place.run_dir;
    member["pid"] = nullptr;
    member["status"] = nullptr;
    if (!status.ok()) continue;
    member["pid"] = status->value("pid", 0);
    member["status"] = *std::move(status);
  }
  return members;
}

Table MemberTable(const nlohmann::json& document) {
  Table table({"node", "state", "pid", "session", "address", "ranks", "held", "timeline"});
  for (const nlohmann::json& member : document["members"]) {
    const nlohmann::json status =
        member["status"].is_null() ? nlohmann::json::object() : member["status"];
    std::string ranks;
    for (const nlohmann::json& rank : status.value("ranks", nlohmann::json::array())) {
      ranks += (ranks.empty() ? "" : ",") + Cell(rank, "rank");
    }
    table.Add({Cell(member, "slot"), NodeState(member), Cell(member, "pid"),
               Cell(status, "session"), Cell(member, "address"), ranks.empty() ? "-" : ranks,
               BytesCell(status, "bytes"), Cell(status, "timeline")});
  }
  return table;
}

Table GroupTable(const nlohmann::json& document) {
  Table table({"group", "nodes", "data", "parity", "stands"});
  const nlohmann::json groups = document.value("groups", nlohmann::json::array());
  for (size_t i = 0; i < groups.size(); ++i) {
    std::string slots;
    for (const nlohmann::json& slot : groups[i]["slots"]) {
      slots += (slots.empty() ? "" : ",") + slot.dump();
    }
    const auto stands = groups[i].find("stands");
    const bool known = stands != groups[i].end() && stands->is_number();
    table.Add({std::to_string(i), slots, Cell(groups[i], "k"), Cell(groups[i], "m"),
               known ? stands->dump() + (*stands == 1 ? " loss" : " losses") : "-"});
  }
  return table;
}

std::string ClusterText(const Cluster& cluster, const nlohmann::json& document) {
  std::string text = fmt::format(
      "job {}: {} nodes, view {}, leader {}, timeline {}{}\n{}; meta store {}\n", cluster.place.job,
      cluster.nodes, Cell(document, "view"), Cell(document, "leader"), Cell(document, "timeline"),
      document.value("closed", false) ? " (closed for a decision)" : "", Committed(document),
      document["meta"]["pid"].is_null()
          ? "is not up"
          : fmt::format("pid {} at {}", Cell(document["meta"], "pid"), cluster.meta_address));
  for (const char* key : {"exposure", "problem"}) {
    if (const std::string why = Cell(document, key); why != "-") text += why + "\n";
  }
  text += "\n" + MemberTable(document).Text();
  const Table spares = RecordTable(document, "spares",
                                   {{"spare", "place"},
                                    {"address", "address"},
                                    {"domain", "failure_domain"},
                                    {"memory bytes", "memory_bytes"}});
  if (!spares.empty()) text += "\n" + spares.Text();
  const Table groups = GroupTable(document);
  if (!groups.empty()) text += "\n" + groups.Text();
  return text;
}

int StatusOfAll(const Context& context, const Cluster& cluster) {
  auto answer = AskCluster(cluster, context.timeout());
  nlohmann::json document =
      answer.ok() ? *answer : nlohmann::json{{"problem", std::string(answer.status().message())}};
  document["job"] = cluster.place.job;
  document["run_dir"] = cluster.place.run_dir;
  document["nodes"] = cluster.nodes;
  document["members"] = Members(cluster, document);
  FoundProcess meta = FindMeta(cluster.place);
  const bool meta_is_up = meta.ok() && meta->has_value();
  document["meta"] = {{"address", cluster.meta_address}, {"pid", nullptr}};
  if (meta_is_up) document["meta"]["pid"] = (*meta)->pid();
  const nlohmann::json& members = document["members"];
  const bool running =
      std::any_of(members.begin(), members.end(),
                  [](const nlohmann::json& member) { return member["running"].get<bool>(); });
  document["running"] = running;
  Print(context, document, ClusterText(cluster, document));
  return running ? kExitOk : kExitNoDaemon;
}

int Status(const Context& context) {
  if (const Cluster* cluster = context.all_nodes()) return StatusOfAll(context, *cluster);
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
  OnChosenForAll(command, context, [&context] { return Status(context); });
}

}  // namespace unreft::cli
