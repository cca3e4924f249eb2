// Of a libFuzzer program: `fuzz_NAME --write-seeds=DIR` writes the harness's seeds and ends.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "base/check.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  constexpr std::string_view kFlag = "--write-seeds=";
  if (*argc != 2 || !std::string_view((*argv)[1]).starts_with(kFlag)) return 0;
  const std::filesystem::path directory = std::string_view((*argv)[1]).substr(kFlag.size());
  std::filesystem::create_directories(directory);
  size_t number = 0;
  for (const std::string& seed : unreft::fuzz::Seeds()) {
    std::ofstream file(directory / ("seed" + std::to_string(number++)), std::ios::binary);
    file << seed;
    UNREFT_CHECK(file.flush().good());
  }
  UNREFT_CHECK(number > 0);
  std::exit(0);  // NOLINT(concurrency-mt-unsafe): there is one thread
}
