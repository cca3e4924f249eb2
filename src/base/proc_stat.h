// ProcStat: what /proc/<pid>/stat says of a process; and its pid in its own namespace.
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
// Of this process, by the pid that it calls itself: /proc may be that of another pid namespace,
// where it has another.
absl::StatusOr<ProcStat> ReadProcStatOfSelf();

// The pid that the process has in the innermost of its pid namespaces, from the text of
// /proc/<pid>/status; of a kernel without namespaces the only one. Pure.
absl::StatusOr<int64_t> ParseOwnPid(std::string_view text);

// Of the process that has the pid now. NotFound when there is none.
absl::StatusOr<int64_t> ReadOwnPid(int64_t pid);

}  // namespace unreft
