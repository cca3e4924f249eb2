#include "snapshot/environment.h"

#include <absl/strings/numbers.h>
#include <fmt/format.h>

#include <cstdlib>

namespace unreft::snapshot {
namespace {

const char* Get(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

}  // namespace

std::string EnvironmentText(std::initializer_list<const char*> names, const char* otherwise) {
  for (const char* name : names) {
    if (const char* value = Get(name)) return value;
  }
  return otherwise;
}

absl::StatusOr<int64_t> EnvironmentNumber(std::initializer_list<const char*> names,
                                          int64_t otherwise) {
  for (const char* name : names) {
    const char* value = Get(name);
    if (value == nullptr) continue;
    int64_t number = 0;
    if (absl::SimpleAtoi(value, &number) && number >= 0) return number;
    return absl::InvalidArgumentError(fmt::format("{}: needed a number, found '{}'", name, value));
  }
  return otherwise;
}

}  // namespace unreft::snapshot
