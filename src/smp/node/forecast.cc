#include "smp/node/forecast.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "recovery/restore_planner.h"
#include "smp/node/layout_reader.h"

namespace unreft::smp {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kNamesTold = 10;

// What follows "rank3/" in a name; nothing of another.
std::optional<std::string_view> WithoutRank(std::string_view name) {
  constexpr std::string_view kBegin = "rank";
  if (!name.starts_with(kBegin)) return std::nullopt;
  const size_t end = name.find_first_not_of("0123456789", kBegin.size());
  if (end == kBegin.size() || end == name.npos || name[end] != '/') return std::nullopt;
  return name.substr(end + 1);
}

// The pattern of a shard: the order in memory, if the name says one, belongs to the name that it
// stands for, not to what it says besides.
std::string PatternOf(const TensorSpec& shard) {
  const std::string_view name = shard.name;
  const size_t mark = name.ends_with(']') ? name.rfind(layout::kOrderMark) : name.npos;
  if (mark == name.npos) return shard.name;
  const std::string_view before = name.substr(0, mark);
  if (before.ends_with(layout::kAllBeneath)) return std::string(before);
  if (!before.ends_with(layout::kIfStored)) return shard.name;
  return fmt::format("{}{}{}", before.substr(0, before.size() - layout::kIfStored.size()),
                     name.substr(mark), layout::kIfStored);
}

// Whether any of the patterns is about the name.
bool IsAmong(const std::set<std::string, std::less<>>& patterns, const std::string& name) {
  if (patterns.contains(name) || patterns.contains(name + std::string(layout::kIfStored))) {
    return true;
  }
  for (size_t at = name.find('/'); at != name.npos; at = name.find('/', at + 1)) {
    if (patterns.contains(name.substr(0, at) + std::string(layout::kAllBeneath))) return true;
  }
  return false;
}

}  // namespace

void Forecast::Names::AddOnce(std::string_view key, std::string_view text) {
  if (count > 0 && key == last) return;
  last = key;
  ++count;
  if (first.size() < kNamesTold) first.push_back(CleanText(text, kTextBytesMax));
}

std::string Forecast::Names::Text() const {
  return fmt::format("{}{}", fmt::join(first, ", "), first.size() < count ? ", ..." : "");
}

void Forecast::AddRegistered(Rank rank, uint64_t world, std::vector<TensorSpec> tensors) {
  world_ = world;
  RankForecast& of = ranks_.emplace_back();
  of.rank = rank;
  of.node = of_.node.value;
  of.targets = std::move(tensors);
}

absl::Status Forecast::Compute() {
  for (const recovery::StoredTensor* tensor : stored_->InOrder()) {
    if (!tensor->empty()) kinds_.emplace(tensor->like().name, &tensor->like());
  }
  if (!layout_.empty()) {
    if (absl::Status status = TakeLayout(); !status.ok()) return status;
  } else {
    for (RankForecast& rank : ranks_) {
      // A rank may have several shards of one tensor.
      std::set<std::string> tensors;
      std::set<std::string> not_stored;
      std::erase_if(rank.targets, [&](const TensorSpec& spec) {
        tensors.insert(spec.name);
        if (kinds_.contains(spec.name)) return false;
        not_stored.insert(spec.name);
        return true;
      });
      rank.tensors = tensors.size();
      for (const std::string& name : not_stored) rank.not_stored.Add(name);
    }
  }
  for (RankForecast& rank : ranks_) Plan(rank);
  kinds_.clear();
  return absl::OkStatus();
}

// --- of a layout ---

absl::Status Forecast::TakeLayout() {
  absl::StatusOr<layout::JobLayout> layout = ReadLayout(std::exchange(layout_, {}));
  if (!layout.ok()) {
    return absl::Status(layout.status().code(),
                        fmt::format("the layout: {}", std::string(layout.status().message())));
  }
  if (layout->job != of_.job) {
    return absl::InvalidArgumentError(fmt::format(
        "the layout is of job '{}', needed one of this job, '{}'", layout->job, of_.job));
  }
  for (const layout::RankLayout& rank : layout->ranks) {
    if (rank.node < of_.nodes) continue;
    return absl::InvalidArgumentError(
        fmt::format("the layout has rank {} on node {}, needed one below the job's {} nodes",
                    rank.rank, rank.node, of_.nodes));
  }
  world_ = layout->world;
  FindUnwanted(*layout);
  for (layout::RankLayout& rank : layout->ranks) TakeRank(std::move(rank));
  return absl::OkStatus();
}

void Forecast::TakeRank(layout::RankLayout rank) {
  RankForecast& of = ranks_.emplace_back();
  of.rank = rank.rank;
  of.node = rank.node;
  Names other_kinds;
  std::set<std::string_view> tensors;
  for (const TensorSpec& shard : rank.shards) {
    AddWanted(shard, of, other_kinds);
  }
  for (const TensorSpec& target : of.targets) tensors.insert(target.name);
  of.tensors = tensors.size() + of.not_stored.count + other_kinds.count;
  std::vector<std::string> problems;
  if (world_ != source_world() && !rank.any_world) {
    problems.push_back(fmt::format(
        "{} was saved by {} ranks, and it is one of {} and takes only what as many have "
        "saved",
        of_.version, source_world(), world_));
  }
  if (of.not_stored.count > 0) {
    problems.push_back(fmt::format("{} of its tensors {} not stored: {}", of.not_stored.count,
                                   of.not_stored.count == 1 ? "is" : "are", of.not_stored.Text()));
  }
  if (other_kinds.count > 0) {
    problems.push_back(fmt::format("{} of its tensors {} of another kind than stored: {}",
                                   other_kinds.count, other_kinds.count == 1 ? "is" : "are",
                                   other_kinds.Text()));
  }
  of.problem = fmt::format("{}", fmt::join(problems, "; "));
}

// Adds what is stored for it to the targets.
void Forecast::AddWanted(const TensorSpec& shard, RankForecast& rank, Names& other_kinds) const {
  const std::string pattern = PatternOf(shard);
  std::string_view name = pattern;
  std::vector<std::string> prefixes = {""};
  const bool is_own = name.starts_with(layout::kEachRanks);
  if (is_own) {
    name.remove_prefix(layout::kEachRanks.size());
    prefixes = {fmt::format("rank{}/", rank.rank)};
    if (world_ != source_world()) {
      prefixes.clear();
      for (const auto& [of, slab] : slabs_) prefixes.push_back(fmt::format("rank{}/", of));
    }
  }
  const bool is_beneath = name.ends_with(layout::kAllBeneath);
  const bool is_needed = !name.ends_with(layout::kIfStored);
  if (is_beneath) name.remove_suffix(1);
  if (!is_needed) name.remove_suffix(layout::kIfStored.size());
  for (const std::string& prefix : prefixes) {
    const std::string stored = prefix + std::string(name);
    if (is_beneath) {
      AddBeneath(shard, stored, rank);
    } else {
      AddNamed(shard, stored, is_needed, rank, other_kinds);
    }
  }
}

void Forecast::AddNamed(const TensorSpec& shard, const std::string& name, bool is_needed,
                        RankForecast& rank, Names& other_kinds) const {
  const auto found = kinds_.find(name);
  if (found == kinds_.end()) {
    if (is_needed) rank.not_stored.AddOnce(shard.name, name);
    return;
  }
  const TensorSpec& stored = *found->second;
  if (!recovery::IsAsWanted(stored, shard)) {
    other_kinds.AddOnce(shard.name, fmt::format("{} ({} was stored, found {})", name,
                                                layout::KindText(stored), layout::KindText(shard)));
    return;
  }
  TensorSpec& target = rank.targets.emplace_back(shard);
  target.name = name;
}

void Forecast::AddBeneath(const TensorSpec& shard, const std::string& prefix,
                          RankForecast& rank) const {
  for (auto at = kinds_.lower_bound(prefix); at != kinds_.end(); ++at) {
    const TensorSpec& stored = *at->second;
    if (!stored.name.starts_with(prefix)) break;
    TensorSpec& target = rank.targets.emplace_back(stored);
    if (stored.global_shape == shard.global_shape) {
      target.offset = shard.offset;
      target.extent = shard.extent;
    } else {
      target.offset.assign(stored.global_shape.size(), 0);
      target.extent = stored.global_shape;
    }
  }
}

void Forecast::FindUnwanted(const layout::JobLayout& layout) {
  std::set<std::string, std::less<>> patterns;
  for (const layout::RankLayout& rank : layout.ranks) {
    for (const TensorSpec& shard : rank.shards) patterns.insert(PatternOf(shard));
  }
  for (const TensorSpec& other : layout.others) patterns.insert(PatternOf(other));
  for (const auto& [name, spec] : kinds_) {
    if (IsAmong(patterns, std::string(name))) continue;
    const auto own = WithoutRank(name);
    if (own && IsAmong(patterns, std::string(layout::kEachRanks) + std::string(*own))) continue;
    unwanted_.Add(name);
  }
}

// --- of each rank ---

SlabPlace Forecast::PlaceOf(const ForecastSlab& slab, uint64_t node) const {
  const bool is_own = node == of_.node.value;
  if (is_own ? slab.is_here : slab.is_at_home && slab.home.value == node) return SlabPlace::kHere;
  return slab.is_at_home || slab.is_here ? SlabPlace::kPeer : SlabPlace::kDecoded;
}

void Forecast::Plan(RankForecast& rank) const {
  std::vector<uint32_t> preferred;
  // Its own slab first, as the restore does among as many ranks.
  if (world_ == source_world()) preferred.push_back(static_cast<uint32_t>(rank.rank.value));
  for (const auto& [of, slab] : slabs_) {
    if (PlaceOf(slab, rank.node) == SlabPlace::kHere) {
      preferred.push_back(static_cast<uint32_t>(of.value));
    }
  }
  const auto pieces = recovery::PlanRestore(*stored_, rank.targets, preferred);
  if (!pieces.ok()) {
    if (rank.problem.empty()) rank.problem = std::string(pieces.status().message());
    return;
  }
  for (const PlanPiece& piece : *pieces) {
    rank.bytes_from[size_t(PlaceOf(slabs_.at(Rank{piece.source}), rank.node))] +=
        piece.total_bytes();
  }
}

Json Forecast::ToJson() const {
  Json json{
      {"version", {{"timeline", NumberOf(of_.version.timeline)}, {"step", of_.version.step.value}}},
      {"source_world", source_world()},
      {"world", world_},
      {"data_chunks", of_.data_chunks},
      {"unwanted", unwanted_.count},
      {"unwanted_names", unwanted_.first},
      {"ranks", Json::array()}};
  for (const RankForecast& rank : ranks_) {
    json["ranks"].push_back({{"rank", rank.rank.value},
                             {"node", rank.node},
                             {"tensors", rank.tensors},
                             {"local_bytes", rank.bytes_from[size_t(SlabPlace::kHere)]},
                             {"peer_bytes", rank.bytes_from[size_t(SlabPlace::kPeer)]},
                             {"decoded_bytes", rank.bytes_from[size_t(SlabPlace::kDecoded)]},
                             {"not_stored", rank.not_stored.count},
                             {"not_stored_names", rank.not_stored.first},
                             {"problem", rank.problem}});
  }
  return json;
}

}  // namespace unreft::smp
