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

// Bytes [begin, end) of an array - a stored shard, or a target - that lie at `slab_offset` of a
// slab.
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
  std::vector<StoredShard> shards;
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

// Appends what of `shard` belongs to the target, in bytes of the target.
void AppendCommon(const StoredShard& shard, const Box& target, uint64_t element_bytes,
                  std::vector<Source>& out) {
  const auto common = layout::Intersect(shard.box, target);
  if (!common) return;
  auto source = shard.sources.begin();
  const auto append_run = [&](uint64_t shard_begin, uint64_t target_begin, uint64_t elements) {
    const uint64_t begin = shard_begin * element_bytes;
    const uint64_t end = begin + elements * element_bytes;
    const uint64_t shift = target_begin * element_bytes - begin;  // modulo 2^64
    // Runs come in the order of the shard, so what ended before this one is done with.
    while (source != shard.sources.end() && source->end <= begin) ++source;
    for (auto s = source; s != shard.sources.end() && s->begin < end; ++s) {
      Source piece = s->Tail(std::max(s->begin, begin));
      piece.end = std::min(piece.end, end) + shift;
      piece.begin += shift;
      out.push_back(piece);
    }
  };
  layout::ForEachRun(*common, shard.box, target, append_run);
}

absl::Status CheckComplete(const TensorSpec& target, std::span<const Source> taken) {
  const uint64_t needed = ShardBytes(target);
  uint64_t found = 0;
  uint64_t missing = 0;  // the first byte that is
  for (const Source& source : taken) {
    found += source.end - source.begin;
    if (source.begin == missing) missing = source.end;
  }
  if (found == needed) return absl::OkStatus();
  return absl::DataLossError(
      About(target, "the box {} needs {} bytes, found {} stored; the first missing is byte {}",
            layout::BoxText(BoxOf(target)), needed, found, missing));
}

// What a plan may cost, all its targets together.
class PlanBudget {
 public:
  absl::Status TakeComparisons(const TensorSpec& target, uint64_t shards) {
    return Take(target, "comparisons with stored shards", shards, kComparisonsMax, comparisons_);
  }
  absl::Status TakeRuns(const TensorSpec& target, uint64_t runs) {
    return Take(target, "runs of contiguous bytes", runs, kPlanRunsMax, runs_);
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
  uint64_t runs_ = 0;
};

// Before anything is made of them.
absl::Status TakeRunsOf(const TensorSpec& target, const StoredTensor& tensor, PlanBudget& budget) {
  const uint64_t shards = tensor.shards.size();
  if (auto status = budget.TakeComparisons(target, shards); !status.ok()) return status;
  const Box box = BoxOf(target);
  uint64_t runs = 0;
  for (const StoredShard& shard : tensor.shards) {
    if (const auto common = layout::Intersect(shard.box, box)) {
      runs += layout::RunsOf(*common, shard.box, box);
    }
  }
  return budget.TakeRuns(target, runs);
}

absl::StatusOr<std::vector<Source>> SourcesOf(const TensorSpec& target, const StoredTensor& tensor,
                                              PlanBudget& budget) {
  if (tensor.parts.empty()) {
    return absl::NotFoundError(
        About(target, "needs {} bytes, found none stored under this name", ShardBytes(target)));
  }
  if (!IsSameKind(*tensor.spec, target)) {
    return absl::FailedPreconditionError(
        About(target, "is stored as {}, wanted as {}", KindText(*tensor.spec), KindText(target)));
  }
  if (auto status = TakeRunsOf(target, tensor, budget); !status.ok()) return status;
  std::vector<Source> sources;
  for (const StoredShard& shard : tensor.shards) {
    AppendCommon(shard, BoxOf(target), DtypeBytes(target.dtype), sources);
  }
  sources = TakeBest(std::move(sources));
  if (absl::Status status = CheckComplete(target, sources); !status.ok()) return status;
  return sources;
}

}  // namespace

absl::StatusOr<std::vector<Piece>> PlanRestore(std::span<const StoredPart> stored,
                                               std::span<const TensorSpec> targets,
                                               std::span<const uint32_t> preferred_slabs) {
  for (const TensorSpec& target : targets) {
    if (absl::Status status = layout::CheckTensorSpec(target); !status.ok()) return status;
  }
  Preferences preferred;
  for (const uint32_t slab : preferred_slabs) preferred.try_emplace(slab, preferred.size());
  const auto tensors = GatherWanted(stored, targets, preferred);
  if (!tensors.ok()) return tensors.status();
  std::vector<Piece> pieces;
  PlanBudget budget;
  for (uint32_t target = 0; target < targets.size(); ++target) {
    const auto sources = SourcesOf(targets[target], tensors->at(targets[target].name), budget);
    if (!sources.ok()) return sources.status();
    for (const Source& source : *sources) {
      pieces.push_back(
          {source.slab, target, source.slab_offset, source.begin, source.end - source.begin});
    }
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::tie(a.slab, a.slab_offset, a.target, a.target_offset) <
           std::tie(b.slab, b.slab_offset, b.target, b.target_offset);
  });
  return pieces;
}

}  // namespace unreft::recovery
