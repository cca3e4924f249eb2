// ProcStat: what /proc/<pid>/stat says of a process.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string_view>

namespace unreft {

struct ProcStat {
  int64_t pid = 0;
  uint64_t start_time = 0;  // in clock ticks since boot; field 22
};

// Parses the file's text. The second field is the program's name in parentheses, which may itself
// hold spaces and parentheses. Pure.
absl::StatusOr<ProcStat> ParseProcStat(std::string_view text);

// Of the process that has the pid now. NotFound when there is none.
absl::StatusOr<ProcStat> ReadProcStat(int64_t pid);

}  // namespace unreft
