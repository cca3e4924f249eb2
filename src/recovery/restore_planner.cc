#include "recovery/restore_planner.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "layout/box.h"
#include "layout/job_layout.h"
#include "layout/tensor_table.h"

namespace unreft::recovery {
namespace {

using layout::Box;
using layout::BoxOf;

// Bytes [begin, end) of a stored shard, which lie at `slab_offset` of a slab.
struct Source {
  uint64_t begin = 0;
  uint64_t end = 0;
  size_t preference = 0;  // its slab's place among the preferred ones; beyond them for the rest
  uint32_t slab = 0;
  uint64_t slab_offset = 0;

  // Smaller is taken first. The offset makes the choice independent of the order of the parts.
  auto order() const { return std::tuple(preference, slab, slab_offset); }
  Source Tail(uint64_t from) const {
    return {from, end, preference, slab, slab_offset + (from - begin)};
  }
};

struct TakenLast {
  bool operator()(const Source& a, const Source& b) const { return a.order() > b.order(); }
};

// Appends, as one with the last where it continues it.
void AppendMerged(std::vector<Source>& sources, const Source& next) {
  if (!sources.empty()) {
    Source& last = sources.back();
    if (last.end == next.begin && last.slab == next.slab &&
        last.slab_offset + (last.end - last.begin) == next.slab_offset) {
      last.end = next.end;
      return;
    }
  }
  sources.push_back(next);
}

// Of disjoint sources in order.
std::vector<Source> TakeAll(std::span<const Source> sources) {
  std::vector<Source> taken;
  for (const Source& source : sources) {
    if (source.begin < source.end) AppendMerged(taken, source);
  }
  return taken;
}

// For each byte that any of them has, the one to take it from: disjoint and in order. A sweep, with
// the sources that have begun in a heap.
std::vector<Source> TakeBest(std::vector<Source> sources) {
  std::sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) {
    return std::tuple(a.begin, a.order()) < std::tuple(b.begin, b.order());
  });
  std::priority_queue<Source, std::vector<Source>, TakenLast> begun;
  std::vector<Source> taken;
  size_t next = 0;
  for (uint64_t at = 0;;) {
    while (next < sources.size() && sources[next].begin <= at) begun.push(sources[next++]);
    while (!begun.empty() && begun.top().end <= at) begun.pop();
    if (begun.empty()) {
      if (next == sources.size()) return taken;
      at = sources[next].begin;
      continue;
    }
    Source best = begun.top().Tail(at);
    if (next < sources.size()) best.end = std::min(best.end, sources[next].begin);
    AppendMerged(taken, best);
    at = best.end;
  }
}

template <typename... Args>
std::string About(const TensorSpec& spec, fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format("tensor '{}': {}", spec.name,
                     fmt::format(format, std::forward<Args>(args)...));
}

// Of the shards that a plan reads, where it takes each byte from.
class BestSources {
 public:
  explicit BestSources(std::span<const uint32_t> preferred_slabs) {
    for (const uint32_t slab : preferred_slabs) preferred_.try_emplace(slab, preferred_.size());
  }

  // Disjoint and in order. By the parts of one shard: another target may read it too.
  std::span<const Source> Of(std::span<const ShardPart> parts) {
    const auto [found, is_new] = best_.try_emplace(parts.data());
    if (is_new) found->second = Choose(parts);
    return found->second;
  }

 private:
  std::vector<Source> Choose(std::span<const ShardPart> parts) const {
    std::vector<Source> sources;
    bool is_choice = false;
    for (const ShardPart& part : parts) {  // by their begins
      const Source source{.begin = part.shard_begin,
                          .end = part.shard_end,
                          .slab = part.slab,
                          .slab_offset = part.slab_offset};
      is_choice |= !sources.empty() && source.begin < sources.back().end;
      sources.push_back(source);
    }
    return is_choice ? TakeBest(Ranked(std::move(sources))) : TakeAll(sources);
  }

  std::vector<Source> Ranked(std::vector<Source> sources) const {
    for (Source& source : sources) {
      const auto found = preferred_.find(source.slab);
      source.preference = found == preferred_.end() ? preferred_.size() : found->second;
    }
    return sources;
  }

  absl::flat_hash_map<uint32_t, size_t> preferred_;  // of slabs: the smaller, the sooner
  std::unordered_map<const ShardPart*, std::vector<Source>> best_;
};

// What a plan may cost, all its targets together.
class PlanBudget {
 public:
  absl::Status TakeComparisons(const TensorSpec& target, uint64_t shards) {
    return Take(target, "comparisons with stored shards", shards, kComparisonsMax, comparisons_);
  }
  absl::Status TakePieces(const TensorSpec& target, uint64_t pieces) {
    return Take(target, "pieces", pieces, kPlanPiecesMax, pieces_);
  }

 private:
  static constexpr uint64_t kComparisonsMax = uint64_t{1} << 26;

  static absl::Status Take(const TensorSpec& target, std::string_view what, uint64_t needed,
                           uint64_t most, uint64_t& taken) {
    if (needed <= most - taken) {
      taken += needed;
      return absl::OkStatus();
    }
    return absl::ResourceExhaustedError(
        About(target,
              "the box {} needs {} {} beside the {} of the tensors before it, a plan has "
              "at most {}: ask for fewer tensors at a time, or cut them as they are stored",
              layout::BoxText(BoxOf(target)), needed, what, taken, most));
  }

  uint64_t comparisons_ = 0;
  uint64_t pieces_ = 0;
};

// What a shard has of a target.
struct Common {
  uint32_t shard = 0;
  Box of;   // the shard
  Box box;  // within it
};

std::vector<Common> CommonOf(const ShardTable& table, uint32_t first, uint32_t last,
                             const Box& target) {
  std::vector<Common> found;
  for (uint32_t shard = first; shard < last; ++shard) {
    if (!table.Overlaps(shard, target)) continue;
    Box box = table.BoxOf(shard);
    Box common = *layout::Intersect(box, target);
    found.push_back({shard, std::move(box), std::move(common)});
  }
  return found;
}

// Appends its rows as they lie in the shard, and of those what each source has.
void AppendPieces(const Common& common, std::span<const Source> sources, const TensorSpec& target,
                  uint32_t index, std::vector<PlanPiece>& pieces) {
  const uint64_t element = DtypeBytes(target.dtype);
  layout::ForEachRows(common.box, common.of, BoxOf(target), [&](const layout::Rows& rows) {
    const PlanPiece in_shard{.target = index,
                             .source_offset = rows.a_begin * element,
                             .target_offset = rows.b_begin * element,
                             .bytes = rows.elements * element,
                             .rows = rows.count,
                             .source_pitch = rows.a_pitch * element,
                             .target_pitch = rows.b_pitch * element};
    const uint64_t end = in_shard.source_end();
    auto source = std::partition_point(sources.begin(), sources.end(), [&](const Source& s) {
      return s.end <= in_shard.source_offset;
    });
    for (; source != sources.end() && source->begin < end; ++source) {
      ClipToSource(in_shard, source->begin, source->end, [&](PlanPiece piece) {
        piece.source = source->slab;
        piece.source_offset += source->slab_offset - source->begin;  // modulo 2^64
        pieces.push_back(piece);
      });
    }
  });
}

// Shards whose rows lie behind one another in a slab and in the target.
void MergeSingleRows(std::vector<PlanPiece>& pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const PlanPiece& a, const PlanPiece& b) {
    return a.target_offset < b.target_offset;
  });
  size_t kept = 0;
  for (const PlanPiece& piece : pieces) {
    if (kept > 0) {
      PlanPiece& last = pieces[kept - 1];
      if (last.rows == 1 && piece.rows == 1 && last.source == piece.source &&
          last.source_offset + last.bytes == piece.source_offset &&
          last.target_offset + last.bytes == piece.target_offset) {
        last.bytes += piece.bytes;
        continue;
      }
    }
    pieces[kept++] = piece;
  }
  pieces.resize(kept);
}

// Of the target, what lies in a tensor of that global shape.
uint64_t BytesWithin(std::span<const uint64_t> global_shape, const TensorSpec& target) {
  Box whole;
  whole.offset.assign(global_shape.size(), 0);
  whole.extent.assign(global_shape.begin(), global_shape.end());
  const std::optional<Box> common = layout::Intersect(whole, BoxOf(target));
  return common ? common->elements() * DtypeBytes(target.dtype) : 0;
}

// The boxes are apart, so the pieces write no byte twice.
absl::Status CheckComplete(const TensorSpec& target, const TensorSpec& stored,
                           std::span<const PlanPiece> pieces) {
  const uint64_t needed = BytesWithin(stored.global_shape, target);
  uint64_t found = 0;
  for (const PlanPiece& piece : pieces) found += piece.total_bytes();
  if (found == needed) return absl::OkStatus();
  if (needed < ShardBytes(target)) {
    return absl::DataLossError(
        About(target,
              "of the box {} {} bytes are needed, what a tensor of shape [{}] has of it, found "
              "{} stored",
              layout::BoxText(BoxOf(target)), needed, fmt::join(stored.global_shape, ", "), found));
  }
  const auto flaw = FindCoverageFlaw(pieces, needed);
  return absl::DataLossError(
      About(target, "the box {} needs {} bytes, found {} stored; the first missing is byte {}",
            layout::BoxText(BoxOf(target)), needed, found, flaw ? flaw->at : needed));
}

// One plan, target by target.
class Planner {
 public:
  explicit Planner(std::span<const uint32_t> preferred_slabs) : sources_(preferred_slabs) {}

  absl::StatusOr<std::vector<PlanPiece>> PlanTarget(const TensorSpec& target, uint32_t index,
                                                    const StoredTensor* stored) {
    if (stored == nullptr) {
      return absl::NotFoundError(
          About(target, "needs {} bytes, found none stored under this name", ShardBytes(target)));
    }
    if (!IsAsWanted(stored->like(), target)) {
      return absl::FailedPreconditionError(About(target, "is stored as {}, wanted as {}",
                                                 layout::KindText(stored->like()),
                                                 layout::KindText(target)));
    }
    const Box box = BoxOf(target);
    const ShardTable& table = **stored->Shards();
    const auto [first, last] = table.ShardsNear(box);
    absl::Status status = budget_.TakeComparisons(target, last - first);
    if (!status.ok()) return status;
    const std::vector<Common> commons = CommonOf(table, first, last, box);
    // Before they are made: what is cut in several dimensions has many.
    uint64_t counted = 0;
    for (const Common& common : commons) counted += layout::RowsOf(common.box, common.of, box);
    if (status = budget_.TakePieces(target, counted); !status.ok()) return status;
    std::vector<PlanPiece> pieces;
    for (const Common& common : commons) {
      AppendPieces(common, sources_.Of(table.PartsOf(common.shard)), target, index, pieces);
    }
    if (pieces.size() > counted) status = budget_.TakePieces(target, pieces.size() - counted);
    if (!status.ok()) return status;
    MergeSingleRows(pieces);
    if (status = CheckComplete(target, stored->like(), pieces); !status.ok()) return status;
    return pieces;
  }

 private:
  BestSources sources_;
  PlanBudget budget_;
};

}  // namespace

bool IsAsWanted(const TensorSpec& stored, const TensorSpec& target) {
  const bool is_same_shape = stored.global_shape == target.global_shape;
  const bool may_differ =
      target.allow_shape_mismatch && stored.global_shape.size() == target.global_shape.size();
  return stored.dtype == target.dtype && (is_same_shape || may_differ);
}

absl::StatusOr<std::vector<PlanPiece>> PlanRestore(const StoredTables& stored,
                                                   std::span<const TensorSpec> targets,
                                                   std::span<const uint32_t> preferred_slabs) {
  for (const TensorSpec& target : targets) {
    if (absl::Status status = layout::CheckTensorSpec(target); !status.ok()) return status;
  }
  std::vector<const StoredTensor*> wanted;
  for (const TensorSpec& target : targets) {
    wanted.push_back(stored.Find(target.name));
    if (wanted.back() == nullptr) continue;
    if (const auto shards = wanted.back()->Shards(); !shards.ok()) return shards.status();
  }
  std::vector<PlanPiece> plan;
  Planner planner(preferred_slabs);
  for (uint32_t target = 0; target < targets.size(); ++target) {
    const auto pieces = planner.PlanTarget(targets[target], target, wanted[target]);
    if (!pieces.ok()) return pieces.status();
    plan.insert(plan.end(), pieces->begin(), pieces->end());
  }
  std::sort(plan.begin(), plan.end(), [](const PlanPiece& a, const PlanPiece& b) {
    return std::tie(a.source, a.source_offset, a.target, a.target_offset) <
           std::tie(b.source, b.source_offset, b.target, b.target_offset);
  });
  return plan;
}

std::vector<uint32_t> NumberSources(std::span<PlanPiece> pieces) {
  std::vector<uint32_t> slabs;
  for (PlanPiece& piece : pieces) {
    if (slabs.empty() || slabs.back() != piece.source) slabs.push_back(piece.source);
    piece.source = static_cast<uint32_t>(slabs.size() - 1);
  }
  return slabs;
}

}  // namespace unreft::recovery
