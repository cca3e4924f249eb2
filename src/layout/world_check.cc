// CheckWorld. Groups the shards by name first, then by box, so that only what could conflict is
// compared: a sort over the shards of each name.
#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>

#include "layout/box.h"
#include "layout/tensor_table.h"

namespace unreft::layout {
namespace {

struct Holder {
  const TensorSpec* spec = nullptr;
  size_t rank = 0;
};

struct HeldTensor {
  std::string_view name;
  std::vector<Holder> holders;
};

// In the order in which the names first occur, so that the error found does not depend on a hash.
std::vector<HeldTensor> GroupByName(std::span<const TensorTable> tables) {
  absl::flat_hash_map<std::string_view, size_t> index;
  std::vector<HeldTensor> tensors;
  for (size_t rank = 0; rank < tables.size(); ++rank) {
    for (const TensorSpec& spec : tables[rank].specs()) {
      const auto [found, is_new] = index.try_emplace(spec.name, tensors.size());
      if (is_new) tensors.push_back({spec.name, {}});
      tensors[found->second].holders.push_back({&spec, rank});
    }
  }
  return tensors;
}

template <typename... Args>
absl::Status Conflict(std::string_view name, fmt::format_string<Args...> format, Args&&... args) {
  return absl::FailedPreconditionError(
      fmt::format("tensor '{}': {}", name, fmt::format(format, std::forward<Args>(args)...)));
}

absl::Status CheckKinds(const HeldTensor& tensor) {
  const Holder& first = tensor.holders[0];
  for (const Holder& other : tensor.holders) {
    if (other.spec->dtype != first.spec->dtype) {
      return Conflict(tensor.name, "rank {} says {}, rank {} says {}", first.rank,
                      DtypeName(first.spec->dtype), other.rank, DtypeName(other.spec->dtype));
    }
    if (other.spec->global_shape != first.spec->global_shape) {
      return Conflict(tensor.name, "rank {} says global shape [{}], rank {} says [{}]", first.rank,
                      fmt::join(first.spec->global_shape, ", "), other.rank,
                      fmt::join(other.spec->global_shape, ", "));
    }
  }
  return absl::OkStatus();
}

// "ranks 0, 1, 2 and 5 more"
std::string RanksText(std::span<const Holder> holders) {
  constexpr size_t kNamed = 8;
  std::vector<size_t> ranks;
  for (const Holder& holder : holders) ranks.push_back(holder.rank);
  std::sort(ranks.begin(), ranks.end());
  const size_t more = ranks.size() > kNamed ? ranks.size() - kNamed : 0;
  ranks.resize(ranks.size() - more);
  std::string text =
      fmt::format("rank{} {}", holders.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
  return more == 0 ? text : text + fmt::format(" and {} more", more);
}

// `replicas` hold one box and are sorted by replica index.
absl::Status CheckReplicas(std::string_view name, std::span<const Holder> replicas) {
  const std::string box = BoxText(BoxOf(*replicas[0].spec));
  for (const Holder& holder : replicas) {
    if (holder.spec->replica_count != replicas.size()) {
      return Conflict(name, "rank {} says that {} has {} replicas, held by {}: {}", holder.rank,
                      box, holder.spec->replica_count, replicas.size(), RanksText(replicas));
    }
  }
  for (size_t i = 1; i < replicas.size(); ++i) {
    if (replicas[i].spec->replica_index == replicas[i - 1].spec->replica_index) {
      return Conflict(name, "ranks {} and {} both say that they are replica {} of {} of {}",
                      replicas[i - 1].rank, replicas[i].rank, replicas[i].spec->replica_index,
                      replicas.size(), box);
    }
  }
  return absl::OkStatus();
}

// UINT64_MAX when the product is larger.
uint64_t SaturatedProduct(std::span<const uint64_t> factors) {
  uint64_t product = 1;
  for (const uint64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) return UINT64_MAX;
  }
  return product;
}

absl::Status CheckCover(std::string_view name, std::span<const Box> boxes,
                        std::span<const uint64_t> global_shape) {
  const uint64_t needed = SaturatedProduct(global_shape);
  uint64_t found = 0;  // never above `needed`: the boxes are disjoint and within the shape
  for (const Box& box : boxes) found += box.elements();
  if (found == needed) return absl::OkStatus();
  return Conflict(name, "the shards of all ranks cover {} elements of the {} of global shape [{}]",
                  found, needed, fmt::join(global_shape, ", "));
}

absl::Status CheckTensor(HeldTensor tensor) {
  if (absl::Status status = CheckKinds(tensor); !status.ok()) return status;
  const auto key = [](const Holder& h) {
    return std::tie(h.spec->offset, h.spec->extent, h.spec->replica_index, h.rank);
  };
  std::sort(tensor.holders.begin(), tensor.holders.end(),
            [&](const Holder& a, const Holder& b) { return key(a) < key(b); });
  std::vector<Box> boxes;
  std::vector<std::span<const Holder>> replica_sets;  // of each box
  for (size_t begin = 0, end = 0; begin < tensor.holders.size(); begin = end) {
    boxes.push_back(BoxOf(*tensor.holders[begin].spec));
    while (end < tensor.holders.size() && BoxOf(*tensor.holders[end].spec) == boxes.back()) ++end;
    replica_sets.push_back(std::span(tensor.holders).subspan(begin, end - begin));
  }
  const auto overlap = FindOverlap(boxes);
  if (!overlap.ok()) return Conflict(tensor.name, "{}", std::string(overlap.status().message()));
  if (*overlap) {
    const auto [first, second] = **overlap;
    return Conflict(tensor.name, "shards overlap without being replicas, {} of {} and {} of {}",
                    BoxText(boxes[first]), RanksText(replica_sets[first]), BoxText(boxes[second]),
                    RanksText(replica_sets[second]));
  }
  for (const auto& replicas : replica_sets) {
    if (absl::Status status = CheckReplicas(tensor.name, replicas); !status.ok()) return status;
  }
  return CheckCover(tensor.name, boxes, tensor.holders[0].spec->global_shape);
}

}  // namespace

absl::Status CheckWorld(std::span<const TensorTable> tables) {
  for (HeldTensor& tensor : GroupByName(tables)) {
    if (absl::Status status = CheckTensor(std::move(tensor)); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace unreft::layout
