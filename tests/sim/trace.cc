#include "tests/sim/trace.h"

#include <cstdio>

namespace unreft::sim {
namespace {

constexpr size_t kTailLines = 400;

}  // namespace

void Trace::AddLine(std::string line) {
  line = fmt::format("{:12.6f} {}", std::chrono::duration<double>(scheduler_.now()).count(), line);
  for (const char c : line) hash_ = (hash_ ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  if (verbose_) std::fprintf(stderr, "%s\n", line.c_str());
  tail_.push_back(std::move(line));
  if (tail_.size() > kTailLines) tail_.pop_front();
}

}  // namespace unreft::sim
