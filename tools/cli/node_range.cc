#include "tools/cli/node_range.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <utility>

namespace unreft::cli {
namespace {

std::optional<NodeRange> TryParse(const std::string& text) {
  const std::pair<std::string, std::string> ends = absl::StrSplit(text, absl::MaxSplits(':', 1));
  NodeRange range;
  if (!absl::SimpleAtoi(ends.first, &range.min)) return std::nullopt;
  range.max = range.min;
  const bool has_max = text.find(':') != std::string::npos;
  if (has_max && !absl::SimpleAtoi(ends.second, &range.max)) return std::nullopt;
  if (range.min == 0 || range.min > range.max) return std::nullopt;
  return range;
}

}  // namespace

NodeRange ParseRange(const std::string& text) { return TryParse(text).value_or(NodeRange{}); }

std::string IsRange(const std::string& text) {
  if (TryParse(text)) return "";
  return fmt::format("'{}' is no range of nodes: needed MIN:MAX, both at least 1 and in order",
                     text);
}

absl::Status CheckRange(const NodeRange& range, uint64_t nodes, uint32_t ranks, uint64_t multiple) {
  if (!range.is_given()) return absl::OkStatus();
  if (range.max == nodes) return RanksOn(range.min, nodes, ranks, multiple).status();
  return absl::InvalidArgumentError(fmt::format(
      "run --nodes {}:{}: the job has {} nodes, which is the most that an attempt can have",
      range.min, range.max, nodes));
}

absl::StatusOr<uint32_t> RanksOn(uint64_t n, uint64_t nodes, uint32_t ranks, uint64_t multiple) {
  const uint64_t left = ranks * n / nodes;
  const uint64_t rounded = left - left % multiple;
  if (rounded > 0) return static_cast<uint32_t>(rounded);
  return absl::InvalidArgumentError(
      fmt::format("{} ranks on {} nodes are {} on {}, and at least {} {} needed: more --ranks, or "
                  "more nodes at "
                  "least",
                  ranks, nodes, left, n, multiple, multiple == 1 ? "is" : "are"));
}

std::string DescribeWait(const NodeRange& range, const std::vector<uint64_t>& vacant,
                         uint64_t there) {
  const bool is_short = there < range.min;
  return fmt::format(
      "waiting for {}: node {} has no daemon ({} of {} nodes are there, --nodes {}:{}"
      "{})",
      is_short ? fmt::format("{} more of them", range.min - there) : "all nodes",
      fmt::join(vacant, ", "), there, range.max, range.min, range.max,
      is_short ? "" : ", until --shrink-after is over");
}

}  // namespace unreft::cli
