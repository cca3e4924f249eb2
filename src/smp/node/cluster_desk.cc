#include "smp/node/cluster_desk.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "smp/node/cluster_status.h"
#include "smp/node/json_text.h"

namespace unreft::smp {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kVerbs = {"status", "versions", "verify", "plan"};
constexpr int kDepthMax = 8;
constexpr size_t kAnswerBytesMax = 8 << 20;
constexpr std::chrono::hours kTimeoutMax(1);

bool IsAsked(std::string_view verb) { return std::ranges::find(kVerbs, verb) != kVerbs.end(); }

void Clean(Json& json) {
  if (json.is_string()) json = CleanText(json.get<std::string>(), kTextBytesMax);
  if (!json.is_structured()) return;
  for (Json& entry : json) Clean(entry);
}

// What another node has answered; what is deeper than any answer is left out.
absl::StatusOr<Json> ParseAnswer(const std::string& text) {
  if (text.size() > kAnswerBytesMax) {
    return absl::InvalidArgumentError(
        fmt::format("its answer has {} bytes, the most are {}", text.size(), kAnswerBytesMax));
  }
  const auto is_shallow = [](int depth, Json::parse_event_t, Json&) { return depth <= kDepthMax; };
  Json json = Json::parse(text, is_shallow, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        fmt::format("its answer of {} bytes is no JSON object", text.size()));
  }
  Clean(json);
  return json;
}

std::string StringOf(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

bool IsTrue(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_boolean() && found->get<bool>();
}

// Of a daemon that was asked for its status.
std::string OwnProblem(const Json& entry) {
  const auto status = entry.find("status");
  if (status == entry.end() || !status->is_object() || IsTrue(*status, "starting")) return "";
  return StringOf(*status, "problem");
}

bool HasRanks(const Json& entry) {
  const auto status = entry.find("status");
  if (status == entry.end() || !status->is_object()) return false;
  const auto ranks = status->find("ranks");
  return ranks != status->end() && ranks->is_array() && !ranks->empty();
}

// Whoever leads writes the job's durable copies, and looks for them.
void AddMissingCopies(const Json& members, Json& problems) {
  std::vector<uint64_t> without;
  std::optional<uint64_t> with;
  for (const Json& member : members) {
    const auto status = member.find("status");
    if (status == member.end() || !status->is_object() || !status->contains("durable")) continue;
    const uint64_t slot = member.at("slot").get<uint64_t>();
    if (status->at("durable").is_null()) {
      without.push_back(slot);
    } else if (!with) {
      with = slot;
    }
  }
  if (!with || without.empty()) return;
  problems.push_back(fmt::format(
      "node {} was started without the --export-dir that node {} has: while it leads, no durable "
      "copy is written, and none is restored; start it again with that option",
      fmt::join(without, ", "), *with));
}

// What stands in the job's way, for people; each names what to do.
Json Problems(const Json& json) {
  Json problems = Json::array();
  const Json& store = json.at("store");
  const std::string away = StringOf(store, "problem");
  if (!away.empty()) {
    problems.push_back(fmt::format(
        "the meta store does not answer, and nothing is committed until it does: {}", away));
  } else if (IsTrue(store, "ready") && json.at("leader").is_null()) {
    problems.push_back("no node leads, and nothing is committed until one does");
  } else if (const std::string why = StringOf(json, "problem"); !why.empty()) {
    problems.push_back("the leader does not answer: " + why);
  }
  const bool has_view = json.at("view") != 0;
  for (const Json& member : json.at("members")) {
    const std::string node = fmt::format("node {}", member.at("slot").get<uint64_t>());
    const bool is_left_out = IsTrue(member, "left_out");
    if (is_left_out && HasRanks(member)) {
      problems.push_back(node +
                         " has ranks and is left out of the protection groups: nothing is "
                         "committed until the job restarts");
    } else if (is_left_out) {
      // The job goes on without it.
    } else if (IsTrue(member, "lost")) {
      problems.push_back(node +
                         " is lost: its group bears one loss less, and nothing is committed until "
                         "a daemon takes its slot or the job restarts without it");
    } else if (!IsTrue(member, "present") && has_view) {
      problems.push_back(node + " is absent: nothing is committed until it is back");
    }
    if (const std::string error = StringOf(member, "error"); !error.empty() && !is_left_out) {
      problems.push_back(fmt::format("{} does not answer: {}", node, error));
    }
    if (const std::string own = OwnProblem(member); !own.empty()) {
      problems.push_back(fmt::format("{}: {}", node, own));
    }
  }
  for (const Json& waiting : json.at("waiting")) {
    const std::string own = OwnProblem(waiting);
    if (own.empty()) continue;
    problems.push_back(fmt::format("the daemon of place {} at {}: {}",
                                   waiting.at("place").get<uint64_t>(),
                                   StringOf(waiting, "address"), own));
  }
  for (const Json& refused : json.at("refused")) {
    problems.push_back(fmt::format("the daemon at {} was refused: {}", StringOf(refused, "address"),
                                   StringOf(refused, "why")));
  }
  AddMissingCopies(json.at("members"), problems);
  const Json& committed = json.at("committed");
  if (!committed.is_null() && json.at("restorable").is_null() && IsTrue(json, "restorable_known")) {
    problems.push_back("what is committed is not whole any more, nor is an older version");
  }
  return problems;
}

}  // namespace

// The answers to one question.
struct ClusterDesk::Gathering {
  std::string verb;
  Json json;
  std::map<std::string, absl::StatusOr<Json>> answers;  // by address
  size_t waiting = 0;
  Reply reply;

  void AddTo(Json& entry) const {
    const auto found = answers.find(StringOf(entry, "address"));
    entry[verb] = nullptr;
    entry["error"] = nullptr;
    if (found == answers.end()) return;
    if (found->second.ok()) {
      entry[verb] = *found->second;
    } else {
      entry["error"] = CleanText(std::string(found->second.status().message()), kTextBytesMax);
    }
  }

  void EndOne() {
    if (--waiting > 0) return;
    if (!json.is_object()) return;  // the reply was a refusal
    for (Json& member : json["members"]) AddTo(member);
    for (Json& other : json["waiting"]) AddTo(other);
    json["problems"] = Problems(json);
    reply(AdminReply{absl::OkStatus(), JsonText(json)});
  }
};

ClusterDesk::ClusterDesk(NodeState& state, Member& member, Own own)
    : state_(state), member_(member), own_(std::move(own)) {
  member_.peers().Answer<QuestionRequest, QuestionReply>(
      "question", [this](NodeSlot, QuestionRequest request, auto done) {
        OnQuestion(request, std::move(done));
      });
}

void ClusterDesk::OnQuestion(const QuestionRequest& request,
                             absl::AnyInvocable<void(absl::StatusOr<QuestionReply>)> done) {
  if (!IsAsked(request.verb())) {
    return done(absl::InvalidArgumentError(fmt::format(
        "'{}' is none of: {}", CleanText(request.verb(), kTextBytesMax), fmt::join(kVerbs, ", "))));
  }
  own_(AdminRequest{request.verb(), "{}"}, [done = std::move(done)](AdminReply answer) mutable {
    const absl::Status status = answer.status.ToStatus();
    if (!status.ok()) return done(status);
    QuestionReply reply;
    reply.set_json(std::move(answer.result));
    done(std::move(reply));
  });
}

void ClusterDesk::Answer(const AdminRequest& request, Reply reply) {
  const auto arguments = nlohmann::json::parse(request.arguments, nullptr,
                                               /*allow_exceptions=*/false);
  std::string verb;
  Duration timeout = state_.options.call_timeout;
  if (arguments.is_object()) {
    const auto of = arguments.find("of");
    if (of != arguments.end() && of->is_string()) verb = of->get<std::string>();
    const auto given = arguments.find("timeout_ms");
    if (given != arguments.end() && given->is_number_unsigned()) {
      timeout = std::chrono::milliseconds(std::min<uint64_t>(
          given->get<uint64_t>(), std::chrono::milliseconds(kTimeoutMax).count()));
    }
  }
  if (verb.empty()) return AnswerCluster(state_, member_, std::move(reply));
  if (!IsAsked(verb)) {
    return reply(AdminReply{absl::InvalidArgumentError(fmt::format(
                                "cluster of '{}': needed one of: {}",
                                CleanText(verb, kTextBytesMax), fmt::join(kVerbs, ", "))),
                            ""});
  }
  std::set<std::string> addresses;
  for (const auto& [slot, presence] : member_.job().present) addresses.insert(presence.address());
  for (const auto& [place, waiting] : member_.job().waiting) {
    addresses.insert(waiting.value.presence().address());
  }
  auto gathering = std::make_shared<Gathering>();
  gathering->verb = verb;
  gathering->reply = std::move(reply);
  gathering->waiting = addresses.size() + 1;
  for (const std::string& address : addresses) Ask(address, timeout, gathering);
  AnswerCluster(state_, member_, [gathering](AdminReply answer) {
    gathering->json = Json::parse(answer.result, nullptr, /*allow_exceptions=*/false);
    if (!gathering->json.is_object()) gathering->reply(std::move(answer));
    gathering->EndOne();
  });
}

void ClusterDesk::Ask(const std::string& address, Duration timeout,
                      const std::shared_ptr<Gathering>& gathering) {
  QuestionRequest request;
  request.set_verb(gathering->verb);
  member_.peers().CallAt(address, "question", request.SerializeAsString(), timeout,
                         [address, gathering](const absl::StatusOr<std::string>& bytes) {
                           QuestionReply reply;
                           absl::StatusOr<Json> answer = absl::UnknownError("");
                           if (!bytes.ok()) answer = bytes.status();
                           if (bytes.ok()) {
                             answer = reply.ParseFromString(*bytes)
                                          ? ParseAnswer(reply.json())
                                          : absl::InvalidArgumentError("its answer does not parse");
                           }
                           gathering->answers.insert_or_assign(address, std::move(answer));
                           gathering->EndOne();
                         });
}

}  // namespace unreft::smp
