#include "durable/weight_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/text.h"
#include "layout/memory_order.h"

namespace unreft::durable {
namespace {

constexpr std::string_view kModel = "model.";

// Bare names are what readers of safetensors look for.
KeyMap WithBareNames(KeyMap map) {
  const bool says_another = std::ranges::any_of(
      map, [](const auto& mapping) { return kModel.starts_with(mapping.first); });
  if (!says_another) map.emplace_back(kModel, "");
  return map;
}

}  // namespace

std::set<std::string> ModelNames(const layout::SlotManifest& manifest) {
  std::set<std::string> names;
  for (const TensorSpec& spec : manifest.tensors) {
    std::string name = layout::ToLogical(spec).spec.name;
    if (ModelPartOf(name) != ModelPart::kNone) names.insert(std::move(name));
  }
  return names;
}

std::set<std::string> TrainedParameters(const layout::SlotManifest& manifest) {
  std::set<std::string> trained;
  for (const TensorSpec& spec : manifest.tensors) {
    const std::string name = layout::ToLogical(spec).spec.name;
    if (ModelPartOf(name) != ModelPart::kNone) continue;
    if (std::optional<std::string> parameter = ParameterOf(name)) {
      trained.insert(*std::move(parameter));
    }
  }
  return trained;
}

absl::Status CheckTrained(const std::set<std::string>& stored,
                          const std::set<std::string>& trained) {
  std::set<std::string> missing = trained;
  for (const std::string& name : stored) {
    if (ModelPartOf(name) == ModelPart::kParameter) missing.erase(*ParameterOf(name));
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "parameter '{}': it is not stored, but what it is made from, its optimizer state or its "
      "master copy ({} of {} trained parameters are so): weights in safetensors would lack it; "
      "`--format dcp` writes what is stored",
      CleanText(*missing.begin(), kTextBytesMax), missing.size(), trained.size()));
}

std::vector<std::string> PlainNames(const std::set<std::string>& stored) {
  CopyNames names({});
  for (const std::string& name : stored) names.Add(name);
  std::vector<std::string> plain;
  std::ranges::copy_if(stored, std::back_inserter(plain),
                       [&](const std::string& name) { return names.IsPlain(name); });
  return plain;
}

WeightNames::WeightNames(const std::vector<std::string>& plain, KeyMap map)
    : has_model_(!plain.empty()),
      names_(has_model_ ? WithBareNames(std::move(map)) : std::move(map)) {
  for (const std::string& name : plain) names_.Add(name);
}

std::optional<std::string> WeightNames::KeyOf(std::string_view stored) const {
  if (has_model_) {
    const ModelPart part = ModelPartOf(stored);
    if (part == ModelPart::kNone) return std::nullopt;
    if (part == ModelPart::kBuffer && !names_.IsPlain(stored)) return std::nullopt;
  }
  return names_.Of(stored).key;
}

}  // namespace unreft::durable
