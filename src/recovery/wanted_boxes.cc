#include "recovery/wanted_boxes.h"

#include <algorithm>

namespace unreft::recovery {
namespace {

// Becomes the smallest box that holds both.
void Extend(layout::Box& box, const TensorSpec& target) {
  for (size_t d = 0; d < box.offset.size(); ++d) {
    const uint64_t end =
        std::max(box.offset[d] + box.extent[d], target.offset[d] + target.extent[d]);
    box.offset[d] = std::min(box.offset[d], target.offset[d]);
    box.extent[d] = end - box.offset[d];
  }
}

bool Contains(const layout::Box& box, const TensorSpec& target) {
  for (size_t d = 0; d < box.offset.size(); ++d) {
    if (target.offset[d] < box.offset[d]) return false;
    if (target.offset[d] + target.extent[d] > box.offset[d] + box.extent[d]) return false;
  }
  return true;
}

}  // namespace

void WantedBoxes::Add(const TensorSpec& target) {
  const auto [found, is_new] = boxes_.try_emplace(target.name, std::nullopt);
  std::optional<layout::Box>& box = found->second;
  if (is_new) {
    box = layout::BoxOf(target);
  } else if (box && box->offset.size() != target.offset.size()) {
    box.reset();
  } else if (box) {
    Extend(*box, target);
  }
}

void WantedBoxes::Add(std::span<const TensorSpec> targets) {
  for (const TensorSpec& target : targets) Add(target);
}

bool WantedBoxes::Covers(const TensorSpec& target) const {
  const std::optional<layout::Box>* const box = Find(target.name);
  if (box == nullptr) return false;
  if (!box->has_value()) return true;
  return (*box)->offset.size() == target.offset.size() && Contains(**box, target);
}

const std::optional<layout::Box>* WantedBoxes::Find(std::string_view name) const {
  const auto found = boxes_.find(name);
  return found == boxes_.end() ? nullptr : &found->second;
}

}  // namespace unreft::recovery
