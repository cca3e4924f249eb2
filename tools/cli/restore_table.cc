#include "tools/cli/restore_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "tools/cli/job_answers.h"

namespace unreft::cli {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;

// Of a node, or of all.
struct Bytes {
  uint64_t local = 0;
  uint64_t peer = 0;
  uint64_t decoded = 0;

  static Bytes Of(const nlohmann::json& rank) {
    return {rank.value("local_bytes", uint64_t{0}), rank.value("peer_bytes", uint64_t{0}),
            rank.value("decoded_bytes", uint64_t{0})};
  }
  Bytes& operator+=(const Bytes& other) {
    local += other.local;
    peer += other.peer;
    decoded += other.decoded;
    return *this;
  }
  // For each lost block as many are read as the code has data.
  double Seconds(const Rates& rates, uint64_t data_chunks) const {
    const double over_network =
        static_cast<double>(peer) + static_cast<double>(decoded) * static_cast<double>(data_chunks);
    return static_cast<double>(local) / kGib / rates.memory_gib_s +
           over_network / kGib / rates.network_gib_s;
  }
};

// The first names of so many.
std::string Names(const nlohmann::json& names, uint64_t count) {
  const auto first = names.get<std::vector<std::string>>();
  return fmt::format("{}{}", fmt::join(first, ", "), first.size() < count ? ", ..." : "");
}

std::string TensorsNotStored(const nlohmann::json& rank) {
  const auto count = rank.value("not_stored", uint64_t{0});
  return fmt::format("{} of its tensors {} not stored: {}", count, count == 1 ? "is" : "are",
                     Names(rank.at("not_stored_names"), count));
}

}  // namespace

nlohmann::json Summed(const nlohmann::json& answer, const Rates& rates) {
  Bytes bytes;
  for (const nlohmann::json& rank : answer.value("ranks", nlohmann::json::array())) {
    bytes += Bytes::Of(rank);
  }
  return {{"local_bytes", bytes.local},
          {"peer_bytes", bytes.peer},
          {"decoded_bytes", bytes.decoded},
          {"seconds", bytes.Seconds(rates, answer.value("data_chunks", uint64_t{1}))}};
}

void RestoreTable::Add(uint64_t node, const nlohmann::json& answer, const Rates& rates) {
  if (version.is_null()) {
    version = answer.at("version");
    source_world = answer.value("source_world", uint64_t{0});
  } else if (version != answer.at("version")) {
    problems += fmt::format("node {} speaks of version {}: it was committed meanwhile; ask again\n",
                            node, VersionCell(answer.at("version")));
  }
  world = std::max(world, answer.value("world", uint64_t{0}));
  for (const nlohmann::json& rank : answer.value("ranks", nlohmann::json::array())) {
    ++ranks;
    const uint64_t number = rank.at("rank");
    const Bytes bytes = Bytes::Of(rank);
    table.Add({std::to_string(node), std::to_string(number), Cell(rank, "tensors"),
               HumanBytes(bytes.local), HumanBytes(bytes.peer), HumanBytes(bytes.decoded)});
    if (const std::string problem = rank.value("problem", ""); !problem.empty()) {
      problems += fmt::format("rank {} would not restore: {}\n", number, problem);
      is_refused = true;
    }
    // Of a layout's rank it is a problem, which has said so.
    if (!is_of_layout && rank.value("not_stored", uint64_t{0}) > 0) {
      problems += fmt::format("rank {}: {}\n", number, TensorsNotStored(rank));
    }
  }
  const double seconds = Summed(answer, rates).at("seconds");
  if (seconds <= slowest_s) return;
  slowest_s = seconds;
  slowest_node = node;
}

void RestoreTable::AddUnwanted(const nlohmann::json& answer) {
  const auto count = answer.value("unwanted", uint64_t{0});
  if (count == 0) return;
  problems += fmt::format("{} of the stored tensors {} in no rank of the layout: {}\n", count,
                          count == 1 ? "is" : "are", Names(answer.at("unwanted_names"), count));
  is_refused = true;
}

std::string RestoreTable::Text(const Rates& rates) const {
  if (ranks == 0 && !is_of_layout)
    return "no rank has registered: ranks say what they restore as they attach\n";
  std::string text =
      fmt::format("version {}, stored by {} ranks; ", VersionCell(version), source_world);
  if (is_of_layout) {
    text += fmt::format("the layout has {} ranks\n", world);
  } else {
    text += fmt::format("{} of {} ranks have registered{}\n", ranks, world,
                        is_silent ? " on the nodes that answer" : "");
  }
  text += table.Text() + problems;
  text += fmt::format(
      "about {:.1f} s on node {}, the slowest{}, at {:g} GiB/s from a node's own memory and {:g} "
      "GiB/s from others\n",
      slowest_s, slowest_node, is_silent ? " of these" : "", rates.memory_gib_s,
      rates.network_gib_s);
  return text;
}

}  // namespace unreft::cli
