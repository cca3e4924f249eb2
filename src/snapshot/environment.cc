#include "snapshot/environment.h"

#include <absl/strings/numbers.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/variables.h"

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

void WarnOfMistypedVariables() {
  for (const UnknownVariable& unknown : FindUnknownVariables(environ)) {
    if (!unknown.is_mistyped) continue;
    const std::string line = fmt::format("unreft: {}\n", unknown.Text());
    std::fwrite(line.data(), 1, line.size(), stderr);
  }
}

}  // namespace unreft::snapshot
