#include "tools/cli/cluster.h"

#include <fmt/format.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string_view>

#include "tools/cli/admin_client.h"
#include "tools/cli/meta_control.h"

namespace unreft::cli {
namespace {

constexpr Milliseconds kPollInterval(50);

std::string FilePath(const Place& place) { return place.run_dir + "/cluster.json"; }

// The options by which a process shows the other side, "meta" or "transport", who it is.
void AddTlsWords(std::string_view side, const std::string& directory, const std::string& who,
                 std::vector<std::string>& words) {
  words.push_back(fmt::format("--{}-tls-ca={}/ca.pem", side, directory));
  words.push_back(fmt::format("--{}-tls-cert={}/{}.pem", side, directory, who));
  words.push_back(fmt::format("--{}-tls-key={}/{}.key", side, directory, who));
}

// Empty where the answer does not say.
nlohmann::json MemberOf(const nlohmann::json& answer, uint64_t node) {
  if (!answer.is_object()) return nlohmann::json::object();
  for (const nlohmann::json& member : answer.value("members", nlohmann::json::array())) {
    if (member.value("slot", UINT64_MAX) == node) return member;
  }
  return nlohmann::json::object();
}

bool HasJoined(const nlohmann::json& answer, uint64_t nodes) {
  const auto members = answer.value("members", nlohmann::json::array());
  return answer.value("view", 0) > 0 && !answer["leader"].is_null() &&
         std::all_of(members.begin(), members.end(), [&](const nlohmann::json& member) {
           return member.value("slot", uint64_t{0}) >= nodes ||
                  (member.value("present", false) && !member.value("lost", true));
         });
}

}  // namespace

std::string Cluster::Range() const {
  return nodes_min == nodes ? fmt::format("{}", nodes) : fmt::format("{}:{}", nodes_min, nodes);
}

Place Cluster::NodePlace(uint64_t node) const {
  return {.job = place.job, .node = node, .run_dir = fmt::format("{}/node{}", place.run_dir, node)};
}

StartRequest Cluster::NodeRequest(uint64_t node) const {
  StartRequest request = start;
  request.daemon_words = {fmt::format("--nodes={}", nodes),
                          fmt::format("--data-chunks={}", data_chunks),
                          fmt::format("--parity-chunks={}", parity_chunks),
                          fmt::format("--meta-endpoints={}", meta_address)};
  // Only then: a daemon of an earlier release does not know it.
  if (nodes_min != nodes) request.daemon_words.push_back(fmt::format("--nodes-min={}", nodes_min));
  if (node >= nodes) request.daemon_words.emplace_back("--spare");
  if (!tls_dir.empty()) {
    AddTlsWords("meta", tls_dir, fmt::format("node{}", node), request.daemon_words);
    AddTlsWords("transport", tls_dir, fmt::format("node{}", node), request.daemon_words);
  }
  if (insecure) {
    request.daemon_words.insert(request.daemon_words.end(),
                                {"--insecure", "--transport-listen=127.0.0.1:0"});
  }
  request.daemon_words.insert(request.daemon_words.end(), start.daemon_words.begin(),
                              start.daemon_words.end());
  return request;
}

StartRequest Cluster::MetaRequest() const {
  StartRequest request = start;
  request.daemon_words.clear();
  if (!tls_dir.empty()) AddTlsWords("meta", tls_dir, "meta", request.daemon_words);
  if (insecure) request.daemon_words.emplace_back("--insecure");
  return request;
}

absl::StatusOr<std::optional<Cluster>> ReadCluster(const Place& place) {
  std::ifstream file(FilePath(place));
  if (!file) return std::nullopt;
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("job", "") != place.job) {
    return absl::FailedPreconditionError(
        fmt::format("{} is of another job than '{}', or was cut", FilePath(place), place.job));
  }
  Cluster cluster{.place = {.job = place.job, .run_dir = place.run_dir},
                  .nodes = json.at("nodes"),
                  .nodes_min = json.value("nodes_min", json.at("nodes").get<uint64_t>()),
                  .spares = json.value("spares", uint64_t{0}),
                  .data_chunks = json.at("data_chunks"),
                  .parity_chunks = json.at("parity_chunks"),
                  .meta_address = json.at("meta_address"),
                  .tls_dir = json.value("tls_dir", ""),
                  .insecure = json.value("insecure", false),
                  .start = {.daemon_path = json.at("daemon_path"),
                            .daemon_words = json.at("daemon_words"),
                            .supervise = json.at("supervise")}};
  return cluster;
}

// Whole or not at all.
absl::Status WriteCluster(const Cluster& cluster) {
  const nlohmann::json json{{"job", cluster.place.job},
                            {"nodes", cluster.nodes},
                            {"nodes_min", cluster.nodes_min},
                            {"spares", cluster.spares},
                            {"data_chunks", cluster.data_chunks},
                            {"parity_chunks", cluster.parity_chunks},
                            {"meta_address", cluster.meta_address},
                            {"tls_dir", cluster.tls_dir},
                            {"insecure", cluster.insecure},
                            {"daemon_path", cluster.start.daemon_path},
                            {"daemon_words", cluster.start.daemon_words},
                            {"supervise", cluster.start.supervise}};
  const std::string draft = fmt::format("{}.new{}", FilePath(cluster.place), ::getpid());
  std::ofstream file(draft, std::ios::trunc);
  file << json.dump(2) << "\n";
  file.close();
  if (file && ::rename(draft.c_str(), FilePath(cluster.place).c_str()) == 0) {
    return absl::OkStatus();
  }
  ::unlink(draft.c_str());
  return absl::UnavailableError(fmt::format("{} cannot be written", FilePath(cluster.place)));
}

absl::Status RemoveCluster(const Cluster& cluster) {
  absl::Status status = RemoveMetaFiles(cluster.place);
  for (uint64_t node = 0; node < cluster.places() && status.ok(); ++node) {
    status = RemoveRunFiles(cluster.NodePlace(node));
  }
  if (status.ok()) status = RemoveFiles(cluster.place.run_dir, {"cluster.json"});
  return status;
}

absl::StatusOr<StartResult> StartNode(const Cluster& cluster, uint64_t node) {
  Place place = cluster.NodePlace(node);
  if (absl::Status status = Resolve(place); !status.ok()) return status;
  return StartDaemon(place, cluster.NodeRequest(node));
}

absl::StatusOr<nlohmann::json> WaitJoined(const Cluster& cluster, uint64_t nodes,
                                          Milliseconds timeout) {
  const Deadline deadline(timeout);
  while (true) {
    auto answer = AskCluster(cluster, timeout);
    if (answer.ok() && HasJoined(*answer, nodes)) return answer;
    if (deadline.passed()) {
      return absl::DeadlineExceededError(
          fmt::format("job {}: its {} nodes have not found each other within {} ms: {}",
                      cluster.place.job, nodes, timeout.count(),
                      answer.ok() ? answer->dump() : std::string(answer.status().message())));
    }
    poll(nullptr, 0, static_cast<int>(kPollInterval.count()));
  }
}

uint64_t PlaceOf(const nlohmann::json& answer, uint64_t node) {
  return MemberOf(answer, node).value("place", node);
}

bool IsToCome(const nlohmann::json& answer, uint64_t node) {
  return MemberOf(answer, node).value("to_come", false);
}

bool HasView(const nlohmann::json& answer) {
  return answer.is_object() && answer.value("view", uint64_t{0}) > 0;
}

absl::StatusOr<nlohmann::json> AskCluster(const Cluster& cluster, Milliseconds timeout,
                                          const nlohmann::json& arguments) {
  absl::Status failed;
  std::optional<nlohmann::json> without_view;
  for (uint64_t place = 0; place < cluster.places(); ++place) {
    auto answer = AskDaemon(cluster.NodePlace(place), "cluster", arguments, timeout);
    if (answer.ok() && HasView(*answer)) return answer;
    if (answer.ok() && !without_view) without_view = *std::move(answer);
    if (failed.ok()) failed = answer.status();
  }
  if (without_view) return *std::move(without_view);
  return failed;
}

std::vector<Place> NodePlaces(const Cluster& cluster, Milliseconds timeout) {
  absl::StatusOr<nlohmann::json> answer = nlohmann::json();
  if (cluster.spares > 0) answer = AskCluster(cluster, timeout);
  std::vector<Place> places;
  for (uint64_t node = 0; node < cluster.nodes; ++node) {
    places.push_back(cluster.NodePlace(answer.ok() ? PlaceOf(*answer, node) : node));
  }
  return places;
}

}  // namespace unreft::cli
