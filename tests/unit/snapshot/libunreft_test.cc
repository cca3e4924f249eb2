// What libunreft.so shows to a training process: the C ABI, and no library that could clash.

#include <gmock/gmock.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

std::vector<std::string> LinesOf(const std::string& command) {
  std::vector<std::string> lines;
  FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::array<char, 4096> line;
  while (pipe != nullptr && std::fgets(line.data(), line.size(), pipe) != nullptr) {
    lines.emplace_back(line.data());
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  return lines;
}

std::string Library() {
  return std::string(std::getenv("UNREFT_BIN_DIR")) + "/../lib/libunreft.so";
}

TEST(Libunreft, ExportsTheCAbiAndNothingElse) {
  const std::vector<std::string> symbols =
      LinesOf("nm -D --defined-only --format=posix '" + Library() + "'");
  EXPECT_EQ(symbols.size(), 24u);
  for (const std::string& symbol : symbols) {
    EXPECT_THAT(symbol, testing::StartsWith("unreft_"));
    EXPECT_THAT(symbol, testing::HasSubstr(" T "));
  }
}

TEST(Libunreft, LoadsNoProtobufNoGrpcNoRocksdb) {
  const std::vector<std::string> libraries = LinesOf("ldd '" + Library() + "'");
  EXPECT_FALSE(libraries.empty());
  for (const std::string& library : libraries) {
    for (const char* banned :
         {"protobuf", "grpc", "rocksdb", "spdlog", "prometheus", "not found"}) {
      EXPECT_THAT(library, testing::Not(testing::HasSubstr(banned)));
    }
  }
}

}  // namespace
