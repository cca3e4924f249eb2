#include "tools/cli/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace unreft::cli {
namespace {

bool IsNumber(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789.:-") == std::string::npos;
}

}  // namespace

std::string Table::Text() const {
  const size_t columns = rows_.front().size();
  std::vector<size_t> width(columns, 0);
  std::vector<bool> right(columns, true);
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (size_t c = 0; c < columns; ++c) {
      width[c] = std::max(width[c], rows_[r][c].size());
      if (r > 0 && !IsNumber(rows_[r][c])) right[c] = false;
    }
  }
  std::string out;
  for (const std::vector<std::string>& row : rows_) {
    std::string line;
    for (size_t c = 0; c < columns; ++c) {
      line += right[c] ? fmt::format("{:>{}}  ", row[c], width[c])
                       : fmt::format("{:<{}}  ", row[c], width[c]);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string Cell(const nlohmann::json& record, std::string_view key) {
  const auto found = record.find(key);
  if (found == record.end() || found->is_null()) return "-";
  if (found->is_boolean()) return found->get<bool>() ? "yes" : "no";
  if (!found->is_string()) return found->dump();
  const std::string text = found->get<std::string>();
  return text.empty() ? "-" : text;
}

std::string HumanBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string Count(uint64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string BytesCell(const nlohmann::json& record, std::string_view key) {
  const auto found = record.find(key);
  if (found == record.end() || !found->is_number_integer()) return "-";
  return HumanBytes(found->get<uint64_t>());
}

std::string VersionCell(const nlohmann::json& version) {
  return fmt::format("{}:{}", Cell(version, "timeline"), Cell(version, "step"));
}

}  // namespace unreft::cli
