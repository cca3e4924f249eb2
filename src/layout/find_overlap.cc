// FindOverlap: by cutting space in two, box by box into the halves that it lies in.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "layout/box.h"

namespace unreft::layout {
namespace {

constexpr size_t kCompared = 8;  // so few are compared each with each
// Dimensions of boxes that are looked at, all cells together: some tenths of a second.
constexpr uint64_t kLooksMax = uint64_t{1} << 25;

uint64_t EndOf(const Box& box, size_t d) { return box.offset[d] + box.extent[d]; }

struct Cut {
  size_t dimension = 0;
  uint64_t at = 0;
  size_t worth = std::numeric_limits<size_t>::max();  // the less, the better
};

class OverlapSearch {
 public:
  explicit OverlapSearch(std::span<const Box> boxes) : boxes_(boxes) {}

  absl::StatusOr<std::optional<BoxPair>> Run() {
    std::vector<uint32_t> all(boxes_.size());
    std::iota(all.begin(), all.end(), 0);
    if (!Add(std::move(all))) return TooMuch();
    while (!cells_.empty()) {
      const std::vector<uint32_t> cell = std::move(cells_.back());
      cells_.pop_back();
      if (cell.size() <= kCompared) {
        if (const auto found = CompareAll(cell)) return found;
        continue;
      }
      const std::optional<Cut> cut = BestCut(cell);
      // Each two have common coordinates in every dimension.
      if (!cut) return Pair(cell[0], cell[1]);
      std::vector<uint32_t> below;
      std::vector<uint32_t> above;
      for (const uint32_t box : cell) {
        if (boxes_[box].offset[cut->dimension] < cut->at) below.push_back(box);
        if (EndOf(boxes_[box], cut->dimension) > cut->at) above.push_back(box);
      }
      if (!Add(std::move(below)) || !Add(std::move(above))) return TooMuch();
    }
    return std::nullopt;
  }

 private:
  static std::optional<BoxPair> Pair(size_t a, size_t b) {
    return BoxPair{std::min(a, b), std::max(a, b)};
  }

  bool Add(std::vector<uint32_t> cell) {
    looks_ += cell.size() * boxes_[0].offset.size();
    if (looks_ > kLooksMax) return false;
    if (cell.size() > 1) cells_.push_back(std::move(cell));
    return true;
  }

  absl::Status TooMuch() const {
    return absl::ResourceExhaustedError(
        fmt::format("{} boxes of {} dimensions lie so that comparing them takes more than {} looks",
                    boxes_.size(), boxes_[0].offset.size(), kLooksMax));
  }

  std::optional<BoxPair> CompareAll(std::span<const uint32_t> cell) const {
    for (size_t i = 1; i < cell.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (Overlap(boxes_[cell[j]], boxes_[cell[i]])) return Pair(cell[j], cell[i]);
      }
    }
    return std::nullopt;
  }

  // Of those after which each half has fewer boxes than the cell: between the first end and the
  // last beginning. None when there is no such place, in any dimension.
  std::optional<Cut> BestCut(std::span<const uint32_t> cell) {
    std::optional<Cut> best;
    for (size_t d = 0; d < boxes_[0].offset.size(); ++d) {
      begins_.clear();
      uint64_t first_end = std::numeric_limits<uint64_t>::max();
      for (const uint32_t box : cell) {
        begins_.push_back(boxes_[box].offset[d]);
        first_end = std::min(first_end, EndOf(boxes_[box], d));
      }
      const uint64_t last_begin = *std::max_element(begins_.begin(), begins_.end());
      if (last_begin < first_end) continue;
      const auto middle = begins_.begin() + static_cast<ptrdiff_t>(begins_.size() / 2);
      std::nth_element(begins_.begin(), middle, begins_.end());
      Cut cut{.dimension = d, .at = std::clamp(*middle, first_end, last_begin)};
      cut.worth = Worth(cell, cut);
      if (!best || cut.worth < best->worth) best = cut;
    }
    return best;
  }

  // The larger half, and what lies in both.
  size_t Worth(std::span<const uint32_t> cell, const Cut& cut) const {
    size_t below = 0;
    size_t above = 0;
    for (const uint32_t box : cell) {
      below += boxes_[box].offset[cut.dimension] < cut.at;
      above += EndOf(boxes_[box], cut.dimension) > cut.at;
    }
    return std::max(below, above) + (below + above - cell.size());
  }

  std::span<const Box> boxes_;
  std::vector<std::vector<uint32_t>> cells_;  // still to be searched
  std::vector<uint64_t> begins_;
  uint64_t looks_ = 0;
};

}  // namespace

absl::StatusOr<std::optional<BoxPair>> FindOverlap(std::span<const Box> boxes) {
  if (boxes.size() < 2) return std::nullopt;
  if (boxes[0].offset.empty()) return BoxPair{0, 1};  // both the one element
  return OverlapSearch(boxes).Run();
}

}  // namespace unreft::layout
