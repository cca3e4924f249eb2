#include "layout/memory_order.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

namespace unreft::layout {
namespace {

constexpr std::string_view kMark = "[memory_order=";
constexpr std::string_view kMarkEnd = "]";

MemoryOrder RowMajor(size_t dims) {
  MemoryOrder order(dims);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

bool IsPermutation(std::span<const uint32_t> order, size_t dims) {
  MemoryOrder sorted(order.begin(), order.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted == RowMajor(dims);
}

// Dimensions of one element first, the others as they are; empty if that is row-major.
MemoryOrder Canonical(const TensorSpec& logical, std::span<const uint32_t> order) {
  MemoryOrder canonical;
  MemoryOrder others;
  for (const uint32_t dim : order) {
    (logical.global_shape[dim] == 1 ? canonical : others).push_back(dim);
  }
  if (std::is_sorted(others.begin(), others.end())) return {};
  std::sort(canonical.begin(), canonical.end());
  canonical.insert(canonical.end(), others.begin(), others.end());
  return canonical;
}

std::vector<uint64_t> Permuted(const std::vector<uint64_t>& numbers, const MemoryOrder& order) {
  std::vector<uint64_t> permuted;
  for (const uint32_t dim : order) permuted.push_back(numbers[dim]);
  return permuted;
}

std::vector<uint64_t> Restored(const std::vector<uint64_t>& permuted, const MemoryOrder& order) {
  std::vector<uint64_t> numbers(permuted.size());
  for (size_t i = 0; i < order.size(); ++i) numbers[order[i]] = permuted[i];
  return numbers;
}

// Of the text between mark and end; nothing if it is none.
std::optional<MemoryOrder> ParseOrder(std::string_view text, size_t dims) {
  MemoryOrder order;
  while (true) {
    uint32_t dim = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), dim);
    if (error != std::errc()) return std::nullopt;
    order.push_back(dim);
    text.remove_prefix(end - text.data());
    if (text.empty()) break;
    if (text.front() != ',') return std::nullopt;
    text.remove_prefix(1);
  }
  if (!IsPermutation(order, dims)) return std::nullopt;
  return order;
}

std::string OrderText(const MemoryOrder& order, size_t dims) {
  if (!order.empty()) return fmt::format("[{}]", fmt::join(order, ", "));
  return fmt::format("[{}] (row-major)", fmt::join(RowMajor(dims), ", "));
}

}  // namespace

absl::StatusOr<TensorSpec> InMemoryOrder(TensorSpec logical, std::span<const uint32_t> order) {
  if (logical.name.find(kMark) != std::string::npos) {
    return absl::InvalidArgumentError(
        fmt::format("tensor '{}': '{}' in a name is kept for memory orders", logical.name, kMark));
  }
  if (order.empty()) return logical;
  if (!IsPermutation(order, logical.global_shape.size())) {
    return absl::InvalidArgumentError(
        fmt::format("tensor '{}': memory_order needs each of its {} dimensions once, from the "
                    "slowest to the fastest, found [{}]",
                    logical.name, logical.global_shape.size(), fmt::join(order, ", ")));
  }
  const size_t dims = logical.global_shape.size();
  if (logical.offset.size() != dims || logical.extent.size() != dims) return logical;  // refused
  const MemoryOrder canonical = Canonical(logical, order);
  if (canonical.empty()) return logical;
  logical.name += fmt::format("{}{}{}", kMark, fmt::join(canonical, ","), kMarkEnd);
  logical.global_shape = Permuted(logical.global_shape, canonical);
  logical.offset = Permuted(logical.offset, canonical);
  logical.extent = Permuted(logical.extent, canonical);
  return logical;
}

LogicalTensor ToLogical(TensorSpec behind) {
  const std::string_view name = behind.name;
  const size_t mark = name.rfind(kMark);
  if (mark == std::string_view::npos || !name.ends_with(kMarkEnd)) return {std::move(behind), {}};
  const size_t begin = mark + kMark.size();
  const auto order = ParseOrder(name.substr(begin, name.size() - kMarkEnd.size() - begin),
                                behind.global_shape.size());
  if (!order) return {std::move(behind), {}};
  behind.name.resize(mark);
  behind.global_shape = Restored(behind.global_shape, *order);
  behind.offset = Restored(behind.offset, *order);
  behind.extent = Restored(behind.extent, *order);
  return {std::move(behind), *order};
}

absl::Status CheckMemoryOrders(std::span<const LogicalTensor> stored,
                               std::span<const TensorSpec* const> targets) {
  // Ranks may have stored one tensor in two orders: any of them will do.
  absl::flat_hash_map<std::string_view, std::vector<const LogicalTensor*>> by_name;
  for (const LogicalTensor& tensor : stored) by_name[tensor.spec.name].push_back(&tensor);
  for (const TensorSpec* target : targets) {
    const LogicalTensor wanted = ToLogical(*target);
    const auto found = by_name.find(wanted.spec.name);
    if (found == by_name.end()) continue;  // the daemon says that it is not stored
    const auto& of_name = found->second;
    const bool fits = std::any_of(of_name.begin(), of_name.end(), [&](const LogicalTensor* tensor) {
      return tensor->order == wanted.order;
    });
    if (fits) continue;
    const LogicalTensor& other = *of_name.front();
    return absl::FailedPreconditionError(fmt::format(
        "tensor '{}': its dimensions are stored in the order {} of memory, from the slowest to the "
        "fastest, and wanted in the order {}: restore it into a tensor of the stored order, and "
        "copy that",
        wanted.spec.name, OrderText(other.order, other.spec.global_shape.size()),
        OrderText(wanted.order, wanted.spec.global_shape.size())));
  }
  return absl::OkStatus();
}

}  // namespace unreft::layout
