#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

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
  std::string text =
      fmt::format("committed {} of {} ranks", VersionCell(*found), Cell(*found, "world"));
  const auto restorable = status.find("restorable");  // of one node
  if (restorable == status.end()) return text;
  if (restorable->is_null()) return text + ", which is not whole any more, nor is an older version";
  if (restorable->value("step", uint64_t{0}) == found->value("step", uint64_t{0}) &&
      restorable->value("timeline", uint64_t{0}) == found->value("timeline", uint64_t{0})) {
    return text;
  }
  return fmt::format("{}, which is not whole any more: {} would be restored", text,
                     VersionCell(*restorable));
}

// Why a daemon of an earlier release does not say.
constexpr char kSaysNothing[] =
    "this unreftd is of an older release, which does not say whether the job is protected";

// "protected", "unprotected", "ended", "not begun" or "unknown".
std::string ProtectionState(const nlohmann::json& status) {
  return status.value("protection", nlohmann::json::object()).value("state", "unknown");
}

std::string WhyNot(const nlohmann::json& status) {
  return status.value("protection", nlohmann::json::object()).value("why", kSaysNothing);
}

// One line.
std::string ProtectionText(const nlohmann::json& status) {
  const std::string state = ProtectionState(status);
  if (state != "protected") return fmt::format("{}: {}", state, WhyNot(status));
  const auto since = status["protection"].find("seconds_since_commit");
  return fmt::format("protected: the newest commit is {:.1f} s old",
                     since->is_number() ? since->get<double>() : 0.0);
}

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

// A daemon that does not count in its job, and not because either is starting.
bool HasProblem(const nlohmann::json& status) {
  return status.is_object() && !status.value("problem", "").empty() &&
         !status.value("starting", false);
}

// A line, of a daemon that does not count in its job.
std::string ProblemText(const nlohmann::json& status) {
  if (!status.is_object()) return "";  // of a node that does not answer
  const std::string why = status.value("problem", "");
  if (why.empty()) return "";
  return fmt::format("{}: {}\n", HasProblem(status) ? "problem" : "starting", why);
}

// A line, of a daemon that talks by TCP without TLS.
std::string InsecureText(const nlohmann::json& status) {
  if (!status.is_object()) return "";  // of a node that does not answer
  const std::string why = status.value("insecure_why", "");
  return why.empty() ? "" : fmt::format("insecure: {}\n", why);
}

std::string Text(const Place& place, const nlohmann::json& status) {
  std::string text = fmt::format(
      "{}: unreftd {} (pid {}), session {}, timeline {}{}\n{}; {} held\n{}\n", place.Name(),
      Cell(status, "version"), Cell(status, "pid"), Cell(status, "session"),
      Cell(status, "timeline"), status.value("closed", false) ? " (closed for a decision)" : "",
      Committed(status), BytesCell(status, "bytes"), ProtectionText(status));
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

// --- whether the job is protected ---

// The exit code of `status --check`.
int Check(const Context& context, const std::vector<std::pair<uint64_t, nlohmann::json>>& nodes) {
  nlohmann::json document{{"protected", false}, {"state", "unknown"}, {"why", ""}};
  std::string text;
  // Of several nodes those speak that have ranks.
  for (const char* state : {"unprotected", "protected", "ended", "not begun", "unknown"}) {
    for (const auto& [node, status] : nodes) {
      if (ProtectionState(status) != state) continue;
      const bool is_first = text.empty();
      if (is_first) {
        document["state"] = state;
        document["protected"] = std::string_view(state) == "protected";
        document["why"] = document["protected"] ? "" : WhyNot(status);
      }
      const std::string who = nodes.size() > 1 ? fmt::format("node {}: ", node) : "";
      if (is_first || std::string_view(state) == "unprotected") {
        text += fmt::format("{}{}\n", who, ProtectionText(status));
      }
    }
    if (!text.empty()) break;
  }
  Print(context, document, text);
  return document["protected"] ? kExitOk : kExitFailed;
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

std::string ProtectionCell(const nlohmann::json& status) {
  const std::string state = ProtectionState(status);
  return state == "unknown" ? "-" : state;
}

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
  Table table({"node", "state", "pid", "session", "address", "ranks", "job", "held", "timeline"});
  for (const nlohmann::json& member : document["members"]) {
    const nlohmann::json status =
        member["status"].is_null() ? nlohmann::json::object() : member["status"];
    std::string ranks;
    for (const nlohmann::json& rank : status.value("ranks", nlohmann::json::array())) {
      ranks += (ranks.empty() ? "" : ",") + Cell(rank, "rank");
    }
    table.Add({Cell(member, "slot"), NodeState(member), Cell(member, "pid"),
               Cell(status, "session"), Cell(member, "address"), ranks.empty() ? "-" : ranks,
               ProtectionCell(status), BytesCell(status, "bytes"), Cell(status, "timeline")});
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

// What stands in the way, by the nodes that have ranks; empty when nothing does.
std::string WhyUnprotected(const nlohmann::json& document) {
  std::string text;
  for (const nlohmann::json& member : document["members"]) {
    if (member["status"].is_null() || ProtectionState(member["status"]) != "unprotected") continue;
    text += fmt::format("node {}: {}\n", Cell(member, "slot"), ProtectionText(member["status"]));
  }
  return text;
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
  text += WhyUnprotected(document);
  for (const nlohmann::json& member : document["members"]) {
    for (const auto& line : {ProblemText(member["status"]), InsecureText(member["status"])}) {
      if (!line.empty()) text += fmt::format("node {}: {}", Cell(member, "slot"), line);
    }
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

int StatusOfAll(const Context& context, const Cluster& cluster, bool check) {
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
  document["insecure"] = std::any_of(
      members.begin(), members.end(),
      [](const nlohmann::json& member) { return !InsecureText(member["status"]).empty(); });
  if (check && running) {
    std::vector<std::pair<uint64_t, nlohmann::json>> nodes;
    for (const nlohmann::json& member : members) {
      if (member["running"]) nodes.emplace_back(member.value("slot", 0), member["status"]);
    }
    return Check(context, nodes);
  }
  Print(context, document, ClusterText(cluster, document));
  if (!running) return kExitNoDaemon;
  const bool any_problem = std::ranges::any_of(
      members, [](const nlohmann::json& member) { return HasProblem(member["status"]); });
  return any_problem ? kExitFailed : kExitOk;
}

int Status(const Context& context, bool check) {
  if (const Cluster* cluster = context.all_nodes()) return StatusOfAll(context, *cluster, check);
  auto status = AskDaemon(context.place, "status", nlohmann::json::object(), context.timeout());
  if (absl::IsUnavailable(status.status())) return Absent(context, status.status());
  if (!status.ok()) return Fail(context, status.status());
  nlohmann::json document = std::move(*status);
  if (check) return Check(context, {{context.place.node, document}});
  document["running"] = true;
  document["run_dir"] = context.place.run_dir;
  Print(context, document, Text(context.place, document));
  return HasProblem(document) ? kExitFailed : kExitOk;
}

}  // namespace

void AddStatus(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand(app, "status", "ranks, slots and what is committed");
  const auto check = std::make_shared<bool>(false);
  command->add_flag("--check", *check,
                    "only say whether the job is protected. Exit code 0: it is; 1: it is not, or "
                    "no job runs; 3: no unreftd answers");
  OnChosenForAll(command, context, [&context, check] { return Status(context, *check); });
}

}  // namespace unreft::cli
