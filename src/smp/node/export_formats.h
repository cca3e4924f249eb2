// How an operator names the formats of durable copies.
#pragma once

#include <unreft/copy.pb.h>

#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace unreft::smp {

inline constexpr std::array<std::pair<std::string_view, CopyOrder::Format>, 2> kExportFormats = {
    std::pair(std::string_view("dcp"), CopyOrder::DCP),
    std::pair(std::string_view("safetensors"), CopyOrder::SAFETENSORS)};

constexpr std::string_view ExportFormatName(CopyOrder::Format format) {
  for (const auto& [name, known] : kExportFormats) {
    if (known == format) return name;
  }
  return "unknown";
}

constexpr std::optional<CopyOrder::Format> ExportFormatOf(std::string_view name) {
  for (const auto& [known, format] : kExportFormats) {
    if (known == name) return format;
  }
  return std::nullopt;
}

}  // namespace unreft::smp
