// What every harness has: a function that takes one input, called by libFuzzer or by
// replay_main.cc, and the inputs to start from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace unreft::fuzz {

// The harness's own: made from the golden files and from examples, so that they are always of the
// formats of today.
std::vector<std::string> Seeds();

// The golden files whose names begin so, each with `head` before it.
std::vector<std::string> GoldenFiles(std::string_view prefix, std::string_view head = "");

// `count` inputs of bytes that are the same each time, for a harness that draws what it tests.
std::vector<std::string> DrawnSeeds(size_t count, size_t bytes_max);

inline std::string_view Bytes(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace unreft::fuzz
