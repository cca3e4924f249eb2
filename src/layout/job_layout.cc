#include "layout/job_layout.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include "base/segment_store.h"
#include "base/text.h"
#include "layout/tensor_table.h"

namespace unreft::layout {
namespace {

constexpr size_t kNamesTold = 10;

template <typename... Args>
absl::Status Refuse(fmt::format_string<Args...> format, Args&&... args) {
  return absl::InvalidArgumentError(fmt::format(format, std::forward<Args>(args)...));
}

// A JSON string.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char byte : text) {
    if (byte == '"' || byte == '\\') {
      quoted += '\\';
      quoted += byte;
    } else if (static_cast<unsigned char>(byte) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(byte));
    } else {
      quoted += byte;
    }
  }
  return quoted + '"';
}

std::string Numbers(const std::vector<uint64_t>& numbers) {
  return fmt::format("[{}]", fmt::join(numbers, ","));
}

bool IsWhole(const TensorSpec& spec) {
  return spec.extent == spec.global_shape &&
         std::ranges::all_of(spec.offset, [](uint64_t begin) { return begin == 0; });
}

bool IsSameKind(const TensorSpec& a, const TensorSpec& b) {
  return a.dtype == b.dtype && a.global_shape == b.global_shape;
}

// The names, dtypes and shapes of all ranks, each once, in the order in which they come.
class Tensors {
 public:
  size_t NumberOf(const TensorSpec& spec) {
    // What is each rank's own may be of several kinds.
    std::vector<std::pair<const TensorSpec*, size_t>>& known = numbers_[spec.name];
    for (const auto& [other, number] : known) {
      if (IsSameKind(*other, spec) && other->allow_shape_mismatch == spec.allow_shape_mismatch) {
        return number;
      }
    }
    known.emplace_back(&spec, texts_.size());
    if (spec.allow_shape_mismatch) of_any_shape_.push_back(texts_.size());
    texts_.push_back(fmt::format("[{},{},{}]", Quoted(spec.name), Quoted(DtypeName(spec.dtype)),
                                 Numbers(spec.global_shape)));
    return known.back().second;
  }
  std::string Text() const { return fmt::format("[{}]", fmt::join(texts_, ",")); }
  // The numbers of those that are restored from other shapes, too, as a member; empty if none is.
  std::string AllowShapeMismatch() const {
    if (of_any_shape_.empty()) return "";
    return fmt::format(R"("allow_shape_mismatch":{},)", Numbers(of_any_shape_));
  }

 private:
  absl::flat_hash_map<std::string_view, std::vector<std::pair<const TensorSpec*, size_t>>> numbers_;
  std::vector<std::string> texts_;
  std::vector<uint64_t> of_any_shape_;
};

}  // namespace

std::string RankFileName(Rank rank) { return fmt::format("rank-{}.json", rank); }

std::string KindText(const TensorSpec& spec) {
  return fmt::format("{} [{}]", DtypeName(spec.dtype), fmt::join(spec.global_shape, ", "));
}

std::string ToJson(const JobLayout& layout) {
  Tensors tensors;
  std::string ranks;
  for (const RankLayout& rank : layout.ranks) {
    std::string shards;
    for (const TensorSpec& spec : rank.shards) {
      if (!shards.empty()) shards += ',';
      fmt::format_to(std::back_inserter(shards), "[{}", tensors.NumberOf(spec));
      if (!IsWhole(spec)) {
        fmt::format_to(std::back_inserter(shards), ",{},{}", Numbers(spec.offset),
                       Numbers(spec.extent));
      }
      shards += ']';
    }
    if (!ranks.empty()) ranks += ',';
    fmt::format_to(std::back_inserter(ranks),
                   R"({{"rank":{},"node":{},"any_world":{},"shards":[{}]}})", rank.rank.value,
                   rank.node, rank.any_world, shards);
  }
  for (const TensorSpec& spec : layout.others) tensors.NumberOf(spec);
  return fmt::format(R"({{"unreft_layout":{{"format":{},"min_reader":{}}},"job":{},"world":{},)"
                     R"("tensors":{},{}"ranks":[{}]}})",
                     kLayoutFormat, kLayoutMinReader, Quoted(layout.job), layout.world,
                     tensors.Text(), tensors.AllowShapeMismatch(), ranks);
}

absl::Status CheckLayout(const JobLayout& layout) {
  if (absl::Status status = CheckJobName(layout.job); !status.ok()) return status;
  if (layout.world == 0 || layout.world > kLayoutWorldMax) {
    return Refuse("world: needed 1 to {} ranks, found {}", kLayoutWorldMax, layout.world);
  }
  if (layout.ranks.empty()) return Refuse("ranks: needed one or more, found none");
  std::set<Rank> known;
  absl::flat_hash_map<std::string_view, std::pair<Rank, const TensorSpec*>> kinds;
  for (const RankLayout& rank : layout.ranks) {
    if (rank.rank.value >= layout.world) {
      return Refuse("rank {}: needed one below the world's {} ranks", rank.rank, layout.world);
    }
    if (!known.insert(rank.rank).second) return Refuse("rank {} is there twice", rank.rank);
    if (const auto table = TensorTable::Create(rank.shards); !table.ok()) {
      return Refuse("rank {}: {}", rank.rank, std::string(table.status().message()));
    }
    for (const TensorSpec& spec : rank.shards) {
      if (spec.name.starts_with(kEachRanks)) continue;
      const auto [found, is_new] = kinds.try_emplace(spec.name, std::pair(rank.rank, &spec));
      const auto& [first, other] = found->second;
      if (is_new || IsSameKind(*other, spec)) continue;
      return Refuse("tensor '{}': {} on rank {}, {} on rank {}", CleanText(spec.name),
                    KindText(*other), first, KindText(spec), rank.rank);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAllThere(const JobLayout& layout) {
  std::set<uint64_t> known;
  for (const RankLayout& rank : layout.ranks) known.insert(rank.rank.value);
  const uint64_t missing = layout.world - known.size();
  if (missing == 0) return absl::OkStatus();
  std::vector<uint64_t> first;
  for (uint64_t rank = 0; first.size() < std::min<uint64_t>(missing, kNamesTold); ++rank) {
    if (!known.contains(rank)) first.push_back(rank);
  }
  return absl::FailedPreconditionError(fmt::format("of the world's {} ranks {} lack: {}{}",
                                                   layout.world, missing, fmt::join(first, ", "),
                                                   first.size() < missing ? ", ..." : ""));
}

}  // namespace unreft::layout
