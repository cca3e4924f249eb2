#include "tools/cli/line_prefixer.h"

#include <algorithm>
#include <utility>

namespace unreft::cli {

std::string LinePrefixer::Take(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const size_t end = std::min(bytes.find('\n'), bytes.size() - 1) + 1;
    line_ += bytes.substr(0, end);
    bytes.remove_prefix(end);
    if (line_.back() == '\n' || line_.size() >= kLineBytesMax) out += Rest();
  }
  return out;
}

std::string LinePrefixer::Rest() {
  if (line_.empty()) return {};
  std::string out = prefix_ + std::exchange(line_, {});
  if (out.back() != '\n') out += '\n';
  return out;
}

}  // namespace unreft::cli
