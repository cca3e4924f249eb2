// What a client is told by the environment when its caller does not say it (unreft/c.h).
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <initializer_list>
#include <string>

namespace unreft::snapshot {

// The first of `names` that is set and not empty; else `otherwise`.
std::string EnvironmentText(std::initializer_list<const char*> names, const char* otherwise);

// Likewise, as a number >= 0. InvalidArgument, naming the variable, when it is none.
absl::StatusOr<int64_t> EnvironmentNumber(std::initializer_list<const char*> names,
                                          int64_t otherwise);

// A line on standard error for each variable that is likely a mistyped one: training goes on.
void WarnOfMistypedVariables();

}  // namespace unreft::snapshot
