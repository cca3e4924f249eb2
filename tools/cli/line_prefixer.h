// LinePrefixer: passes a rank's output on line by line, each with the rank before it.
//
// Single-threaded. What has no newline yet is kept, up to a limit, until the rest comes.
#pragma once

#include <string>
#include <string_view>

namespace unreft::cli {

class LinePrefixer {
 public:
  static constexpr size_t kLineBytesMax = 64 << 10;

  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

  // The lines that `bytes` completes, prefixed, ready to be written.
  std::string Take(std::string_view bytes);

  // What is left of a line that will not be completed.
  std::string Rest();

 private:
  const std::string prefix_;
  std::string line_;
};

}  // namespace unreft::cli
