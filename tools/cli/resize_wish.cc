#include "tools/cli/resize_wish.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

namespace unreft::cli {
namespace {

std::optional<std::set<uint64_t>> NumbersOf(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return std::nullopt;
  std::set<uint64_t> numbers;
  for (const nlohmann::json& entry : *found) {
    if (!entry.is_number_unsigned()) return std::nullopt;
    numbers.insert(entry.get<uint64_t>());
  }
  return numbers;
}

std::optional<ResizeWish> WishOf(const nlohmann::json& order) {
  if (!order.is_object()) return std::nullopt;
  ResizeWish wish;
  const auto nodes = order.find("nodes");
  if (nodes != order.end() && nodes->is_number_unsigned()) wish.nodes = nodes->get<uint64_t>();
  wish.without = NumbersOf(order, "without").value_or(std::set<uint64_t>{});
  const auto ordered = order.find("ordered_s");
  if (ordered != order.end() && ordered->is_number_unsigned()) {
    wish.ordered_s = ordered->get<uint64_t>();
  }
  if (!wish.nodes && wish.without.empty()) return std::nullopt;
  return wish;
}

std::set<uint64_t> AllBelow(uint64_t nodes) {
  std::set<uint64_t> all;
  for (uint64_t node = 0; node < nodes; ++node) all.insert(all.end(), node);
  return all;
}

std::set<uint64_t> Without(std::set<uint64_t> nodes, const std::set<uint64_t>& out) {
  std::erase_if(nodes, [&](uint64_t node) { return out.contains(node); });
  return nodes;
}

// As many of them, those first that have a daemon, then those on which ranks run, then the lowest.
std::vector<uint64_t> FirstOf(const std::set<uint64_t>& of, uint64_t count,
                              const std::set<uint64_t>& there, const std::set<uint64_t>& running) {
  std::vector<uint64_t> nodes(of.begin(), of.end());
  std::ranges::sort(nodes, {}, [&](uint64_t node) {
    return std::tuple(!there.contains(node), !running.contains(node), node);
  });
  nodes.resize(std::min<size_t>(nodes.size(), count));
  std::ranges::sort(nodes);
  return nodes;
}

// How many nodes the wish asks for.
uint64_t CountOf(const ResizeWish& wish, uint64_t nodes) {
  return wish.nodes.value_or(Without(AllBelow(nodes), wish.without).size());
}

// Why this launcher cannot meet the wish, whatever there is; empty when it may.
std::string OutOfRange(const ResizeWish& wish, const RunShape& shape) {
  if (!shape.range.is_given()) {
    return "without --nodes MIN:MAX `unreft run` does not act on it";
  }
  const uint64_t count = CountOf(wish, shape.nodes);
  if (count >= shape.range.min && count <= shape.range.max) return "";
  return fmt::format("needed {} to {} nodes, by --nodes of `unreft run`, found {}", shape.range.min,
                     shape.range.max, count);
}

std::string TooFew(const std::set<uint64_t>& candidates, uint64_t needed) {
  return fmt::format("needed {} nodes that have a daemon, found {}{}{}", needed, candidates.size(),
                     candidates.empty() ? "" : ": ", fmt::join(candidates, ", "));
}

}  // namespace

std::string ResizeWish::Text() const {
  std::string text = nodes ? fmt::format("{} node{}", *nodes, *nodes == 1 ? "" : "s") : "all nodes";
  if (without.empty()) return text;
  return text + fmt::format("{} node {}", nodes ? ", without" : " but", fmt::join(without, ", "));
}

ResizeAnswer ParseResize(const nlohmann::json& answer) {
  ResizeAnswer parsed;
  if (!answer.is_object()) return parsed;
  parsed.wish = WishOf(answer.value("order", nlohmann::json()));
  parsed.committed = answer.value("committed", nlohmann::json());
  parsed.there = NumbersOf(answer, "there").value_or(std::set<uint64_t>{});
  parsed.lost = NumbersOf(answer, "lost").value_or(std::set<uint64_t>{});
  return parsed;
}

WishVerdict Judge(const ResizeWish& wish, const std::set<uint64_t>& running,
                  const std::set<uint64_t>& there, const RunShape& shape) {
  using Kind = WishVerdict::Kind;
  if (std::string why = OutOfRange(wish, shape); !why.empty()) {
    return {.kind = Kind::kCannot, .why = std::move(why)};
  }
  const bool stays = Without(running, wish.without).size() == running.size();
  if (stays && (!wish.nodes || *wish.nodes == running.size())) return {};
  std::set<uint64_t> candidates = there;
  candidates.insert(running.begin(), running.end());
  candidates = Without(std::move(candidates), wish.without);
  // All others than those left out are as many as there are.
  const uint64_t needed = wish.nodes.value_or(shape.range.min);
  if (candidates.size() < needed) {
    return {.kind = Kind::kCannot, .why = TooFew(candidates, needed)};
  }
  const uint64_t count = wish.nodes.value_or(candidates.size());
  return {.kind = Kind::kMove, .nodes = FirstOf(candidates, count, there, running)};
}

std::optional<NodeChoice> ChooseNodes(const std::optional<ResizeWish>& wish,
                                      const NodesAtHand& at_hand, const RunShape& shape) {
  const std::set<uint64_t> all = AllBelow(shape.nodes);
  if (!shape.range.is_given()) return NodeChoice{.nodes = {all.begin(), all.end()}};
  const std::set<uint64_t>& usable = at_hand.replace ? all : at_hand.there;
  const auto is_enough = [&](size_t found, size_t wanted) {
    return found >= wanted || (at_hand.has_waited && found >= shape.range.min);
  };
  std::string ignored = wish ? OutOfRange(*wish, shape) : "";
  if (wish && ignored.empty()) {
    const std::set<uint64_t> candidates = Without(usable, wish->without);
    const uint64_t count = CountOf(*wish, shape.nodes);
    if (is_enough(candidates.size(), count)) {
      return NodeChoice{.nodes = FirstOf(candidates, count, at_hand.there, at_hand.before)};
    }
    if (!at_hand.has_waited) return std::nullopt;
    ignored = TooFew(candidates, shape.range.min);
  }
  if (!is_enough(usable.size(), shape.nodes)) return std::nullopt;
  return NodeChoice{.nodes = {usable.begin(), usable.end()}, .ignored = std::move(ignored)};
}

}  // namespace unreft::cli
