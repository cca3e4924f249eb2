// Runs a harness without libFuzzer, as a test: on its seeds, on the files of the directories that
// are named (what was once found), and on mutations of both, always the same ones.
//
//   fuzz_replay_NAME RUNS [DIRECTORY...]
//   fuzz_replay_NAME FILE            on that input alone
//
// UNREFT_SIM_FIRST_SEED, as in the simulation, chooses other mutations. An input that ends the
// process, or that takes half a minute, is left in fuzz_replay_NAME.input beside the program.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/check.h"
#include "base/random.h"
#include "tests/fuzz/fuzz.h"

namespace unreft::fuzz {
namespace {

constexpr size_t kInputBytesMax = 1 << 16;
constexpr unsigned kInputSecondsMax = 30;

// For the handler of a signal.
std::string finding_path;  // NOLINT: its handler has no other way to it
std::string input;         // NOLINT: as above

void LeaveInput(int signal) {
  if (FILE* file = std::fopen(finding_path.c_str(), "wb"); file != nullptr) {
    std::fwrite(input.data(), 1, input.size(), file);
    std::fclose(file);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  UNREFT_CHECK(file.good(), "{} cannot be read", path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

void Insert(std::string& text, const std::string& from, Random& random) {
  if (from.empty()) return;
  const size_t begin = random.Below(from.size());
  const size_t bytes = 1 + random.Below(std::min<size_t>(from.size() - begin, 64));
  text.insert(random.Below(text.size() + 1), from, begin, bytes);
}

// One to eight small changes: bits, bytes, numbers at their limits, pieces that are cut, doubled or
// of another input.
std::string Mutate(std::string text, const std::string& other, Random& random) {
  constexpr uint64_t kNumbers[] = {0,      1,          0x7f,       0x80,      0xff,      0x7fff,
                                   0xffff, 0x7fffffff, 0xffffffff, INT64_MAX, UINT64_MAX};
  for (uint64_t change = 1 + random.Below(8); change > 0; --change) {
    const size_t at = random.Below(text.size() + 1);
    switch (random.Below(text.empty() ? 1 : 6)) {
      case 0:
        Insert(text, text.empty() ? "seed" : other, random);
        break;
      case 1:
        text[at % text.size()] ^= static_cast<char>(1 << random.Below(8));
        break;
      case 2:
        text[at % text.size()] = static_cast<char>(random.Next());
        break;
      case 3: {
        const uint64_t number = kNumbers[random.Below(std::size(kNumbers))];
        const size_t bytes = std::min<size_t>(size_t{1} << random.Below(4), text.size());
        std::memcpy(text.data() + random.Below(text.size() - bytes + 1), &number, bytes);
        break;
      }
      case 4:
        text.erase(at, 1 + random.Below(16));
        break;
      default:
        Insert(text, text, random);
    }
  }
  text.resize(std::min(text.size(), kInputBytesMax));
  return text;
}

void RunInput(std::string next) {
  input = std::move(next);
  // A copy of its own size, so that a sanitizer sees a read beyond it.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  alarm(kInputSecondsMax);
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

int Main(int argc, char** argv) {
  UNREFT_CHECK(argc >= 2, "usage: {} RUNS [DIRECTORY...] | FILE", argv[0]);
  finding_path = std::string(argv[0]) + ".input";
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTERM, SIGALRM}) {
    std::signal(signal, LeaveInput);
  }
  if (std::filesystem::is_regular_file(argv[1])) {
    RunInput(ReadFile(argv[1]));
    return 0;
  }
  const uint64_t runs = std::stoull(argv[1]);
  std::vector<std::string> corpus = Seeds();
  for (int i = 2; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) continue;
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      corpus.push_back(ReadFile(entry.path()));
    }
  }
  UNREFT_CHECK(!corpus.empty());
  for (const std::string& text : corpus) RunInput(text);
  const char* first = std::getenv("UNREFT_SIM_FIRST_SEED");
  Random random(first == nullptr ? 1 : std::stoull(first));
  for (uint64_t run = 0; run < runs; ++run) {
    const std::string& other = corpus[random.Below(corpus.size())];
    RunInput(Mutate(corpus[random.Below(corpus.size())], other, random));
  }
  fmt::print("{} inputs, {} mutations\n", corpus.size(), runs);
  return 0;
}

}  // namespace
}  // namespace unreft::fuzz

int main(int argc, char** argv) { return unreft::fuzz::Main(argc, argv); }
