#include "tools/cli/job_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "tools/cli/job_answers.h"
#include "tools/cli/meta_control.h"
#include "tools/cli/resize_wish.h"

namespace unreft::cli {
namespace {

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

}  // namespace

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

std::string CommittedText(const nlohmann::json& status) {
  const auto found = status.find("committed");
  if (found == status.end() || !found->is_object()) return "nothing committed";
  std::string text =
      fmt::format("committed {} of {} ranks", VersionCell(*found), Cell(*found, "world"));
  const auto restorable = status.find("restorable");
  if (restorable == status.end() || !status.value("restorable_known", true)) return text;
  if (restorable->is_null()) return text + ", which is not whole any more, nor is an older version";
  if (restorable->value("step", uint64_t{0}) == found->value("step", uint64_t{0}) &&
      restorable->value("timeline", uint64_t{0}) == found->value("timeline", uint64_t{0})) {
    return text;
  }
  return fmt::format("{}, which is not whole any more: {} would be restored", text,
                     VersionCell(*restorable));
}

std::string ProtectionText(const nlohmann::json& status) {
  const std::string state = ProtectionState(status);
  if (state != "protected") return fmt::format("{}: {}", state, WhyNot(status));
  const auto since = status["protection"].find("seconds_since_commit");
  return fmt::format("protected: the newest commit is {:.1f} s old",
                     since->is_number() ? since->get<double>() : 0.0);
}

std::string DurableText(const nlohmann::json& status) {
  const auto durable = status.find("durable");
  if (durable == status.end() || !durable->is_object() || !durable->value("leads", false))
    return "";
  const auto newest = durable->find("newest");
  std::string text = "durable copy: none yet";
  if (newest != durable->end() && newest->is_object()) {
    text = fmt::format("durable copy: version {}, {:.0f} s old (one every {:.0f} s)",
                       VersionCell(*newest), durable->value("age_s", 0.0),
                       durable->value("every_s", 0.0));
  }
  text += fmt::format(" in {}", Cell(*durable, "dir"));
  const std::string error = durable->value("error", "");
  return text + (error.empty() ? "" : fmt::format("; the last one failed: {}", error)) + "\n";
}

bool HasProblem(const nlohmann::json& status) {
  return status.is_object() && !status.value("problem", "").empty() &&
         !status.value("starting", false);
}

std::string ProblemText(const nlohmann::json& status) {
  if (!status.is_object()) return "";  // of a node that does not answer
  const std::string why = status.value("problem", "");
  if (why.empty()) return "";
  return fmt::format("{}: {}\n", HasProblem(status) ? "problem" : "starting", why);
}

std::string InsecureText(const nlohmann::json& status) {
  if (!status.is_object()) return "";  // of a node that does not answer
  const std::string why = status.value("insecure_why", "");
  return why.empty() ? "" : fmt::format("insecure: {}\n", why);
}

int CheckProtection(const Context& context,
                    const std::vector<std::pair<uint64_t, nlohmann::json>>& nodes) {
  nlohmann::json document{
      {"protected", false}, {"state", "unknown"}, {"why", ""}, {"exposure", ""}};
  bool bears_no_loss = false;
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
        document["exposure"] = status.value("exposure", "");
        bears_no_loss = status.value("bears_no_loss", false);
      }
      const std::string who = nodes.size() > 1 ? fmt::format("node {}: ", node) : "";
      if (is_first || std::string_view(state) == "unprotected") {
        text += fmt::format("{}{}\n", who, ProtectionText(status));
      }
    }
    if (!text.empty()) break;
  }
  if (const std::string why = document["exposure"]; !why.empty()) text += why + "\n";
  Print(context, document, text);
  return document["protected"] && !bears_no_loss ? kExitOk : kExitFailed;
}

// --- the whole job ---

namespace {

std::string ProtectionCell(const nlohmann::json& status) {
  const std::string state = ProtectionState(status);
  return state == "unknown" ? "-" : state;
}

std::string NodeState(const nlohmann::json& member) {
  const auto is = [&](const char* key) {
    const auto found = member.find(key);  // null where nobody says
    return found != member.end() && found->is_boolean() && found->get<bool>();
  };
  const std::string left_out = is("left_out") ? ", left out" : "";
  if (is("to_come")) return "not come" + left_out;
  if (is("lost")) return "lost" + left_out;
  return (is("present") ? "present" : "absent") + left_out;
}

// What each daemon says of itself, where the members are.
void DescribeMembers(const Context& context, nlohmann::json& document) {
  for (const char* key : {"members", "waiting"}) {
    for (nlohmann::json& member : document[key]) {
      const auto status = member.find("status");
      const bool is_running = status != member.end() && status->is_object();
      if (!is_running) member["status"] = nullptr;
      member["running"] = is_running;
      member["pid"] = nullptr;
      if (is_running) member["pid"] = member["status"].value("pid", 0);
      if (!context.cluster) continue;
      const uint64_t place = member.value("place", member.value("slot", uint64_t{0}));
      member["run_dir"] = context.cluster->NodePlace(place).run_dir;
    }
  }
}

// Before any node has said anything: those that there are to be.
nlohmann::json Unknown(const Context& context, const absl::Status& why) {
  nlohmann::json document{{"problem", std::string(why.message())},
                          {"problems", {std::string(why.message())}},
                          {"members", nlohmann::json::array()},
                          {"waiting", nlohmann::json::array()}};
  for (uint64_t node = 0; context.cluster && node < context.cluster->nodes; ++node) {
    document["members"].push_back({{"slot", node}, {"present", nullptr}, {"lost", nullptr}});
  }
  return document;
}

std::optional<double> SinceCommit(const nlohmann::json& document) {
  std::optional<double> least;
  for (const nlohmann::json& member : document["members"]) {
    if (!member["status"].is_object()) continue;
    const auto protection = member["status"].value("protection", nlohmann::json::object());
    const auto since = protection.find("seconds_since_commit");
    if (since == protection.end() || !since->is_number()) continue;
    least = std::min(least.value_or(since->get<double>()), since->get<double>());
  }
  return least;
}

Table MemberTable(const nlohmann::json& document) {
  Table table({"node", "state", "pid", "session", "address", "ranks", "job", "held", "timeline"});
  const auto add = [&](const nlohmann::json& member, const std::string& state) {
    const nlohmann::json status =
        member["status"].is_null() ? nlohmann::json::object() : member["status"];
    std::string ranks;
    for (const nlohmann::json& rank : status.value("ranks", nlohmann::json::array())) {
      ranks += (ranks.empty() ? "" : ",") + Cell(rank, "rank");
    }
    table.Add({Cell(member, "slot"), state, Cell(member, "pid"), Cell(status, "session"),
               Cell(member, "address"), ranks.empty() ? "-" : ranks, ProtectionCell(status),
               BytesCell(status, "bytes"), Cell(status, "timeline")});
  };
  for (const nlohmann::json& member : document["members"]) add(member, NodeState(member));
  for (const nlohmann::json& waiting : document["waiting"]) {
    const bool is_out = waiting["status"].is_object() && waiting["status"].value("out", false);
    add(waiting, is_out ? "out" : "waiting");
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

std::string StoreText(const Context& context, const nlohmann::json& document) {
  const auto store = document.value("store", nlohmann::json::object());
  std::string text = store.value("ready", false) && store.value("problem", "").empty()
                         ? "meta store answers"
                         : "meta store does not answer";
  if (const std::string wire = Cell(document, "store_wire"); wire != "-") text += ", by " + wire;
  if (!context.cluster) return text;
  return text + (document["meta"]["pid"].is_null()
                     ? "; it is not up"
                     : fmt::format("; pid {} at {}", Cell(document["meta"], "pid"),
                                   context.cluster->meta_address));
}

// Whom the job goes on without, and until when.
std::string LeftOutText(const nlohmann::json& document) {
  std::string text;
  for (const nlohmann::json& member : document["members"]) {
    const auto left_out = member.find("left_out");
    if (left_out == member.end() || *left_out != true) continue;
    text += fmt::format("node {} is left out: {}\n", Cell(member, "slot"),
                        member.value("to_come", false)
                            ? "it has not come yet, and the job has begun without it"
                        : member.value("lost", false)
                            ? "it was lost, and the job goes on without it"
                            : "it is there, and in a group once the job restarts with it");
  }
  return text;
}

// What an operator has ordered by `unreft resize`.
std::string WishText(const nlohmann::json& document) {
  const auto resize = document.find("resize");
  if (resize == document.end()) return "";
  const std::optional<ResizeWish> wish = ParseResize({{"order", *resize}}).wish;
  return wish ? fmt::format("wished by 'unreft resize': {}\n", wish->Text()) : "";
}

std::string JobText(const Context& context, const nlohmann::json& document) {
  std::string text = fmt::format(
      "job {}: {} nodes, groups of {} + {}, {} pins; view {}, leader {}, timeline {}{}\n",
      context.place.job, Cell(document, "nodes"), Cell(document, "data_chunks"),
      Cell(document, "parity_chunks"), Cell(document, "pins"), Cell(document, "view"),
      Cell(document, "leader"), Cell(document, "timeline"),
      document.value("closed", false) ? " (closed for a decision)" : "");
  text += CommittedText(document);
  if (const auto since = SinceCommit(document)) text += fmt::format(", {:.1f} s ago", *since);
  text += fmt::format("\n{}; peers by {}\n", StoreText(context, document),
                      Cell(document, "peers_wire"));
  if (const std::string why = Cell(document, "exposure"); why != "-") text += why + "\n";
  text += WishText(document) + LeftOutText(document);
  for (const nlohmann::json& problem : document.value("problems", nlohmann::json::array())) {
    text += fmt::format("problem: {}\n", problem.get<std::string>());
  }
  text += WhyUnprotected(document);
  for (const nlohmann::json& member : document["members"]) {
    if (member["status"].is_object()) text += DurableText(member["status"]);
  }
  for (const char* key : {"members", "waiting"}) {
    for (const nlohmann::json& member : document[key]) {
      const bool is_starting =
          member["status"].is_object() && member["status"].value("starting", false);
      const std::string starting = is_starting ? ProblemText(member["status"]) : "";
      for (const auto& line : {starting, InsecureText(member["status"])}) {
        if (!line.empty()) text += fmt::format("node {}: {}", Cell(member, "slot"), line);
      }
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

// The meta store of a job whose nodes are all on this machine.
nlohmann::json MetaJson(const Cluster& cluster) {
  nlohmann::json json{{"address", cluster.meta_address}, {"pid", nullptr}};
  const FoundProcess meta = FindMeta(cluster.place);
  if (meta.ok() && meta->has_value()) json["pid"] = (*meta)->pid();
  return json;
}

bool IsRunning(const nlohmann::json& member) { return member["running"].get<bool>(); }

}  // namespace

int JobStatus(const Context& context, const nlohmann::json* asked, bool check) {
  auto answer = AskJob(context, "status", context.timeout());
  if (!answer.ok() && !context.cluster) return Fail(context, answer.status());
  nlohmann::json document = answer.ok() ? *std::move(answer) : Unknown(context, answer.status());
  document["job"] = context.place.job;
  document["run_dir"] = context.place.run_dir;
  if (context.cluster) document["nodes"] = context.cluster->nodes;
  if (context.cluster) document["meta"] = MetaJson(*context.cluster);
  // It may know that it is out while the records do not tell of it.
  if (asked != nullptr && HasProblem(*asked)) {
    document["problems"].push_back(fmt::format("the unreftd that was asked, node {}: {}",
                                               Cell(*asked, "node"), Cell(*asked, "problem")));
  }
  DescribeMembers(context, document);
  const nlohmann::json& members = document["members"];
  document["running"] = std::ranges::any_of(members, IsRunning) || asked != nullptr;
  document["insecure"] = std::ranges::any_of(members, [](const nlohmann::json& member) {
    return !InsecureText(member["status"]).empty();
  });
  if (check && document["running"]) {
    std::vector<std::pair<uint64_t, nlohmann::json>> nodes;
    for (const nlohmann::json& member : members) {
      if (IsRunning(member)) nodes.emplace_back(member.value("slot", 0), member["status"]);
    }
    if (nodes.empty() && asked != nullptr) nodes.emplace_back(asked->value("node", 0), *asked);
    return CheckProtection(context, nodes);
  }
  if (check && !answer.ok()) {
    document["protected"] = false;
    document["state"] = "unknown";
    document["why"] = std::string(answer.status().message());
    document["exposure"] = "";
  }
  Print(context, document, JobText(context, document));
  if (!document["running"]) return answer.ok() ? kExitNoDaemon : ExitCode(answer.status());
  return document["problems"].empty() ? kExitOk : kExitFailed;
}

}  // namespace unreft::cli
