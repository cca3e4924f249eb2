// Looking for processes by what /proc says of them. Stateless; a process that ends meanwhile is
// passed over.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace unreft::cli {

// The kernel's name of a process: its program's, cut to 15 characters. Empty when it is gone.
std::string ProcessName(pid_t pid);

std::vector<pid_t> ProcessesNamed(const std::string& name);

// The words of its command line; none when it is gone.
std::vector<std::string> CommandLine(pid_t pid);

// Whether it maps a file whose path begins with `path`.
bool MapsFile(pid_t pid, const std::string& path);

}  // namespace unreft::cli
