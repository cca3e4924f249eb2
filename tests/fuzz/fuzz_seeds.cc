#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/check.h"
#include "base/random.h"
#include "tests/fuzz/fuzz.h"

namespace unreft::fuzz {

std::vector<std::string> GoldenFiles(std::string_view prefix, std::string_view head) {
  const char* source = std::getenv("UNREFT_SOURCE_DIR");
  const std::filesystem::path golden =
      std::filesystem::path(source == nullptr ? "." : source) / "tests/golden";
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(golden)) {
    if (entry.path().filename().string().starts_with(prefix)) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  UNREFT_CHECK(!paths.empty());
  std::vector<std::string> files;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    files.push_back(std::string(head) + std::string(std::istreambuf_iterator<char>(file), {}));
  }
  return files;
}

std::vector<std::string> DrawnSeeds(size_t count, size_t bytes_max) {
  Random random(1);
  std::vector<std::string> seeds(count);
  for (std::string& seed : seeds) {
    seed.resize(1 + random.Below(bytes_max));
    for (char& byte : seed) byte = static_cast<char>(random.Next());
  }
  return seeds;
}

}  // namespace unreft::fuzz
