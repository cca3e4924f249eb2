// Record: one measured number beside its reference. Plain data.
#pragma once

#include <absl/status/status.h>

#include <optional>
#include <string>
#include <vector>

namespace unreft::bench {

struct Record {
  std::string name;
  double value = 0;
  std::string unit;
  std::string reference_name;
  double reference = 0;          // measured in the same run, in turns with the value
  std::optional<double> target;  // of value / reference; none = for information
  bool less_is_better = false;   // the target is the most that the ratio may be

  double ratio() const { return reference == 0 ? 0 : value / reference; }
  std::optional<bool> met() const;
};

void Print(const Record& record);

// Writes {name, value, unit, reference, reference_name, ratio, target, met} of each as JSON.
absl::Status Write(const std::vector<Record>& records, const std::string& path);

}  // namespace unreft::bench
