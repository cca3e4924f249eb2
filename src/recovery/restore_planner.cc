#include "recovery/restore_planner.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <queue>
#include <string_view>
#include <tuple>

#include "layout/box.h"
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

// One shard, as far as it is stored.
struct StoredShard {
  Box box;
  std::vector<Source> sources;  // of bytes of the shard: disjoint and in order
};

struct StoredTensor {
  std::vector<const StoredPart*> parts;
  const TensorSpec* spec = nullptr;  // of any of its shards
  // In the order of their begins in the dimension that tells most of them apart.
  std::vector<StoredShard> shards;
  size_t dimension = 0;
  uint64_t longest = 0;  // in that dimension
};

using StoredTensors = absl::flat_hash_map<std::string_view, StoredTensor>;
using Preferences = absl::flat_hash_map<uint32_t, size_t>;  // of slabs: the smaller, the sooner

template <typename... Args>
std::string About(const TensorSpec& spec, fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format("tensor '{}': {}", spec.name,
                     fmt::format(format, std::forward<Args>(args)...));
}

std::string KindText(const TensorSpec& spec) {
  return fmt::format("{} [{}]", DtypeName(spec.dtype), fmt::join(spec.global_shape, ", "));
}

bool IsSameKind(const TensorSpec& a, const TensorSpec& b) {
  return a.dtype == b.dtype && a.global_shape == b.global_shape;
}

Source SourceOf(const StoredPart& part, const Preferences& preferred) {
  const auto found = preferred.find(part.slab);
  return {.begin = part.shard_begin,
          .end = part.shard_begin + part.bytes,
          .preference = found == preferred.end() ? preferred.size() : found->second,
          .slab = part.slab,
          .slab_offset = part.slab_offset};
}

// What was captured is checked so (layout::CheckWorld): a byte has one place in the tensor, and in
// each box that holds it the same.
absl::Status CheckApart(const StoredTensor& tensor) {
  std::vector<Box> boxes;
  for (const StoredShard& shard : tensor.shards) boxes.push_back(shard.box);
  const auto overlap = layout::FindOverlap(boxes);
  if (!overlap.ok()) {
    return absl::Status(overlap.status().code(),
                        About(*tensor.spec, "{}", std::string(overlap.status().message())));
  }
  if (!*overlap) return absl::OkStatus();
  const auto [first, second] = **overlap;
  return absl::FailedPreconditionError(
      About(*tensor.spec, "is stored in boxes that overlap without being equal, {} and {}",
            layout::BoxText(boxes[first]), layout::BoxText(boxes[second])));
}

uint64_t BeginsIn(std::span<const StoredShard> shards, size_t dimension) {
  std::vector<uint64_t> begins;
  for (const StoredShard& shard : shards) begins.push_back(shard.box.offset[dimension]);
  std::ranges::sort(begins);
  return static_cast<uint64_t>(std::ranges::unique(begins).begin() - begins.begin());
}

void SortShards(StoredTensor& tensor) {
  const size_t dimensions = tensor.shards[0].box.offset.size();
  if (dimensions == 0) return;
  uint64_t most = 0;
  for (size_t d = 0; d < dimensions; ++d) {
    if (const uint64_t begins = BeginsIn(tensor.shards, d); begins > most) {
      most = begins;
      tensor.dimension = d;
    }
  }
  const auto begin = [d = tensor.dimension](const StoredShard& s) { return s.box.offset[d]; };
  std::ranges::stable_sort(tensor.shards, {}, begin);
  for (const StoredShard& shard : tensor.shards) {
    tensor.longest = std::max(tensor.longest, shard.box.extent[tensor.dimension]);
  }
}

// Those that the box may have something in common with, and few others.
std::span<const StoredShard> ShardsNear(const StoredTensor& tensor, const Box& box) {
  if (box.offset.empty()) return tensor.shards;
  const size_t d = tensor.dimension;
  const auto begin = [d](const StoredShard& s) { return s.box.offset[d]; };
  const uint64_t from = box.offset[d] - std::min(box.offset[d], tensor.longest - 1);
  const auto first = std::ranges::lower_bound(tensor.shards, from, {}, begin);
  const auto last =
      std::ranges::lower_bound(tensor.shards, box.offset[d] + box.extent[d], {}, begin);
  return {first, last};
}

// Makes the shards of the parts: those of one box together, so that its rows are walked once.
absl::Status MakeShards(StoredTensor& tensor, const Preferences& preferred) {
  auto& parts = tensor.parts;
  const auto key = [](const StoredPart* p) { return std::tie(p->spec->offset, p->spec->extent); };
  std::stable_sort(parts.begin(), parts.end(),
                   [&](const StoredPart* a, const StoredPart* b) { return key(a) < key(b); });
  tensor.spec = parts[0]->spec;
  for (size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    std::vector<Source> sources;
    for (; end < parts.size() && key(parts[end]) == key(parts[begin]); ++end) {
      if (!IsSameKind(*tensor.spec, *parts[end]->spec)) {
        return absl::FailedPreconditionError(
            About(*tensor.spec, "is stored as {} in one slab and as {} in slab {}",
                  KindText(*tensor.spec), KindText(*parts[end]->spec), parts[end]->slab));
      }
      sources.push_back(SourceOf(*parts[end], preferred));
    }
    tensor.shards.push_back({BoxOf(*parts[begin]->spec), TakeBest(std::move(sources))});
  }
  if (absl::Status status = CheckApart(tensor); !status.ok()) return status;
  SortShards(tensor);
  return absl::OkStatus();
}

// Only what is wanted: the rest of the world's parts is looked at once and left.
absl::StatusOr<StoredTensors> GatherWanted(std::span<const StoredPart> stored,
                                           std::span<const TensorSpec> targets,
                                           const Preferences& preferred) {
  StoredTensors tensors;
  for (const TensorSpec& target : targets) tensors.try_emplace(target.name);
  for (const StoredPart& part : stored) {
    if (const auto found = tensors.find(part.spec->name); found != tensors.end()) {
      found->second.parts.push_back(&part);
    }
  }
  for (const TensorSpec& target : targets) {
    StoredTensor& tensor = tensors[target.name];
    if (tensor.parts.empty() || tensor.spec != nullptr) continue;
    if (absl::Status status = MakeShards(tensor, preferred); !status.ok()) return status;
  }
  return tensors;
}

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
  const StoredShard* shard = nullptr;
  Box box;
};

std::vector<Common> CommonOf(std::span<const StoredShard> shards, const Box& target) {
  std::vector<Common> found;
  for (const StoredShard& shard : shards) {
    if (auto box = layout::Intersect(shard.box, target)) found.push_back({&shard, *std::move(box)});
  }
  return found;
}

// Appends its rows as they lie in the shard, and of those what each source has.
void AppendPieces(const Common& common, const TensorSpec& target, uint32_t index,
                  std::vector<PlanPiece>& pieces) {
  const uint64_t element = DtypeBytes(target.dtype);
  const StoredShard& shard = *common.shard;
  layout::ForEachRows(common.box, shard.box, BoxOf(target), [&](const layout::Rows& rows) {
    const PlanPiece in_shard{.target = index,
                             .source_offset = rows.a_begin * element,
                             .target_offset = rows.b_begin * element,
                             .bytes = rows.elements * element,
                             .rows = rows.count,
                             .source_pitch = rows.a_pitch * element,
                             .target_pitch = rows.b_pitch * element};
    const uint64_t end = in_shard.source_end();
    auto source =
        std::partition_point(shard.sources.begin(), shard.sources.end(),
                             [&](const Source& s) { return s.end <= in_shard.source_offset; });
    for (; source != shard.sources.end() && source->begin < end; ++source) {
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

// The boxes are apart, so the pieces write no byte twice.
absl::Status CheckComplete(const TensorSpec& target, std::span<const PlanPiece> pieces) {
  const uint64_t needed = ShardBytes(target);
  uint64_t found = 0;
  for (const PlanPiece& piece : pieces) found += piece.total_bytes();
  if (found == needed) return absl::OkStatus();
  const auto flaw = FindCoverageFlaw(pieces, needed);
  return absl::DataLossError(
      About(target, "the box {} needs {} bytes, found {} stored; the first missing is byte {}",
            layout::BoxText(BoxOf(target)), needed, found, flaw ? flaw->at : needed));
}

absl::StatusOr<std::vector<PlanPiece>> PlanTarget(const TensorSpec& target, uint32_t index,
                                                  const StoredTensor& tensor, PlanBudget& budget) {
  if (tensor.parts.empty()) {
    return absl::NotFoundError(
        About(target, "needs {} bytes, found none stored under this name", ShardBytes(target)));
  }
  if (!IsSameKind(*tensor.spec, target)) {
    return absl::FailedPreconditionError(
        About(target, "is stored as {}, wanted as {}", KindText(*tensor.spec), KindText(target)));
  }
  const Box box = BoxOf(target);
  const std::span<const StoredShard> shards = ShardsNear(tensor, box);
  absl::Status status = budget.TakeComparisons(target, shards.size());
  if (!status.ok()) return status;
  const std::vector<Common> commons = CommonOf(shards, box);
  // Before they are made: what is cut in several dimensions has many.
  uint64_t counted = 0;
  for (const Common& common : commons) {
    counted += layout::RowsOf(common.box, common.shard->box, box);
  }
  if (status = budget.TakePieces(target, counted); !status.ok()) return status;
  std::vector<PlanPiece> pieces;
  for (const Common& common : commons) AppendPieces(common, target, index, pieces);
  if (pieces.size() > counted) status = budget.TakePieces(target, pieces.size() - counted);
  if (!status.ok()) return status;
  MergeSingleRows(pieces);
  if (status = CheckComplete(target, pieces); !status.ok()) return status;
  return pieces;
}

}  // namespace

absl::StatusOr<std::vector<PlanPiece>> PlanRestore(std::span<const StoredPart> stored,
                                                   std::span<const TensorSpec> targets,
                                                   std::span<const uint32_t> preferred_slabs) {
  for (const TensorSpec& target : targets) {
    if (absl::Status status = layout::CheckTensorSpec(target); !status.ok()) return status;
  }
  Preferences preferred;
  for (const uint32_t slab : preferred_slabs) preferred.try_emplace(slab, preferred.size());
  const auto tensors = GatherWanted(stored, targets, preferred);
  if (!tensors.ok()) return tensors.status();
  std::vector<PlanPiece> plan;
  PlanBudget budget;
  for (uint32_t target = 0; target < targets.size(); ++target) {
    const auto pieces =
        PlanTarget(targets[target], target, tensors->at(targets[target].name), budget);
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
