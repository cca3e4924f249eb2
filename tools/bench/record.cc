#include "tools/bench/record.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace unreft::bench {
namespace {

nlohmann::json ToJson(const Record& record) {
  nlohmann::json json = {{"name", record.name},
                         {"value", record.value},
                         {"unit", record.unit},
                         {"reference", record.reference},
                         {"reference_name", record.reference_name},
                         {"ratio", record.ratio()},
                         {"target", nullptr},
                         {"met", nullptr}};
  if (record.target) {
    json["target"] = *record.target;
    json["met"] = *record.met();
  }
  return json;
}

}  // namespace

std::optional<bool> Record::met() const {
  if (!target) return std::nullopt;
  return less_is_better ? ratio() <= *target : ratio() >= *target;
}

void Print(const Record& record) {
  std::string verdict;
  if (record.target) {
    verdict = fmt::format("target {:.2f} {}", *record.target, *record.met() ? "met" : "MISSED");
  }
  fmt::print("{:<28} {:8.2f} {}   {:<24} {:8.2f}   ratio {:.2f}  {}\n", record.name, record.value,
             record.unit, record.reference_name, record.reference, record.ratio(), verdict);
}

absl::Status Write(const std::vector<Record>& records, const std::string& path) {
  nlohmann::json json = nlohmann::json::array();
  for (const Record& record : records) json.push_back(ToJson(record));
  std::ofstream file(path);
  file << json.dump(2) << "\n";
  file.close();
  if (file.good()) return absl::OkStatus();
  return absl::UnavailableError(fmt::format("{}: cannot be written", path));
}

}  // namespace unreft::bench
