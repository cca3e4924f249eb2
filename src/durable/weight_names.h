// Which tensors of a version a copy in safetensors has, and under which keys: the model's
// parameters and buffers, if any rank stored such as `unreft.torch` names them, and of buffers that
// each rank has on its own the first rank's alone; otherwise every tensor, since nothing says what
// the model is. Keys are those of a DCP copy (copy_names.h), without the `model.` that all would
// begin with, unless the map says what stands there instead. Pure.
#pragma once

#include <absl/status/status.h>

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "durable/copy_names.h"
#include "layout/manifest.h"

namespace unreft::durable {

// The parameters and buffers of `unreft.torch` that the rank stored, by their logical names.
std::set<std::string> ModelNames(const layout::SlotManifest& manifest);

// The parameters of which the rank stored optimizer state or a master copy.
std::set<std::string> TrainedParameters(const layout::SlotManifest& manifest);

// FailedPrecondition, naming it, for a parameter that was trained and that no rank stored, as one
// that is made anew from its master copy (docs/derived_state.md): the weights would lack it.
// `stored` are names as ModelNames returns them.
absl::Status CheckTrained(const std::set<std::string>& stored,
                          const std::set<std::string>& trained);

// Of the names that all ranks stored, those whose keys are the plain ones: what a rank needs to
// know of the others to find the key of each tensor.
std::vector<std::string> PlainNames(const std::set<std::string>& stored);

class WeightNames {
 public:
  // `plain`: as PlainNames returns them.
  WeightNames(const std::vector<std::string>& plain, KeyMap map);

  // Of a logical name that some rank stored; none if the copy does not have it.
  std::optional<std::string> KeyOf(std::string_view stored) const;

 private:
  bool has_model_;
  CopyNames names_;
};

}  // namespace unreft::durable
