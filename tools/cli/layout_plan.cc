#include "tools/cli/layout_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/cli/admin_client.h"
#include "tools/cli/cluster.h"

namespace unreft::cli {
namespace {

using layout::JobLayout;
using layout::RankLayout;

// Some MB, which a daemon plans in less than its asker waits.
constexpr size_t kShardsPerQuestion = 200'000;

// Of some of the ranks each. All name the tensors of all, since what is stored and no rank restores
// is looked for by them.
std::vector<JobLayout> Divide(JobLayout layout) {
  std::map<std::string_view, const TensorSpec*> tensors;
  for (const RankLayout& rank : layout.ranks) {
    for (const TensorSpec& shard : rank.shards) tensors.try_emplace(shard.name, &shard);
  }
  std::vector<TensorSpec> others;
  for (const auto& [name, spec] : tensors) {
    TensorSpec& whole = others.emplace_back(*spec);
    whole.offset.assign(whole.global_shape.size(), 0);
    whole.extent = whole.global_shape;
  }
  std::vector<JobLayout> parts;
  size_t shards = kShardsPerQuestion;
  for (RankLayout& rank : layout.ranks) {
    if (shards + rank.shards.size() > kShardsPerQuestion) {
      parts.push_back({.job = layout.job, .world = layout.world, .others = others});
      shards = 0;
    }
    shards += rank.shards.size();
    parts.back().ranks.push_back(std::move(rank));
  }
  return parts;
}

// Of one that answers: each knows the whole job's slabs.
absl::StatusOr<nlohmann::json> Ask(const Context& context, const std::vector<Place>& places,
                                   const std::string& text) {
  absl::StatusOr<nlohmann::json> answer = absl::UnavailableError("");
  for (const Place& place : places) {
    answer = AskDaemonText(place, "plan-layout", text, context.timeout());
    if (!absl::IsUnavailable(answer.status())) break;
  }
  return answer;
}

}  // namespace

absl::StatusOr<std::map<uint64_t, nlohmann::json>> AskOfLayout(const Context& context,
                                                               JobLayout layout) {
  if (layout.job != context.place.job) {
    return absl::InvalidArgumentError(
        fmt::format("the layout is of job '{}', needed one of job '{}': --job says which job",
                    layout.job, context.place.job));
  }
  std::vector<Place> places = {context.place};
  if (const Cluster* cluster = context.all_nodes()) {
    places = NodePlaces(*cluster, context.timeout());
  }
  std::map<uint64_t, nlohmann::json> nodes;
  nlohmann::json version;
  for (const JobLayout& part : Divide(std::move(layout))) {
    auto answer = Ask(context, places, layout::ToJson(part));
    if (!answer.ok()) return answer.status();
    if (version.is_null()) version = answer->at("version");
    if (version != answer->at("version")) {
      return absl::UnavailableError("a version was committed between two questions: ask again");
    }
    nlohmann::json ranks = std::exchange(answer->at("ranks"), nlohmann::json::array());
    for (nlohmann::json& rank : ranks) {
      nlohmann::json& node = nodes.try_emplace(rank.at("node"), *answer).first->second;
      node["ranks"].push_back(std::move(rank));
    }
  }
  return nodes;
}

}  // namespace unreft::cli
