// WantedBoxes: of each tensor that plans ask for, the smallest box that holds all that they ask
// for. Pure.
//
// One box is enough, since what the ranks of a node restore mostly lies together: a share of the
// rows, cut by columns.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/tensor_spec.h"
#include "layout/box.h"

namespace unreft::recovery {

class WantedBoxes {
 public:
  // A target is as layout::CheckTensorSpec has it.
  void Add(const TensorSpec& target);
  void Add(std::span<const TensorSpec> targets);

  // Whether the target lies within what was added.
  bool Covers(const TensorSpec& target) const;
  // Null if nobody asks for the tensor; no box if all of it counts as asked for, since it was asked
  // for with several numbers of dimensions.
  const std::optional<layout::Box>* Find(std::string_view name) const;

 private:
  std::map<std::string, std::optional<layout::Box>, std::less<>> boxes_;
};

}  // namespace unreft::recovery
