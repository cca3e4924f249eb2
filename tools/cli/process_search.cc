#include "tools/cli/process_search.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <fstream>

namespace unreft::cli {

std::string ProcessName(pid_t pid) {
  std::ifstream comm(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(comm, name);
  return name;
}

std::vector<pid_t> ProcessesNamed(const std::string& name) {
  std::vector<pid_t> found;
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator("/proc", error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string entry = it->path().filename();
    pid_t pid = 0;
    const auto parsed = std::from_chars(entry.data(), entry.data() + entry.size(), pid);
    const bool is_pid = parsed.ec == std::errc() && parsed.ptr == entry.data() + entry.size();
    if (is_pid && ProcessName(pid) == name) found.push_back(pid);
  }
  return found;
}

std::vector<std::string> CommandLine(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/cmdline", pid));
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

bool MapsFile(pid_t pid, const std::string& path) {
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(maps, line);) {
    if (line.find(" " + path) != std::string::npos) return true;
  }
  return false;
}

}  // namespace unreft::cli
