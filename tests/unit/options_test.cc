// One name is a field, a flag, a variable and a key; who wins; what is refused.

#include "base/options.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/run_dir.h"

namespace unreft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

struct TestOptions {
  uint64_t count = 7;
  uint64_t slot_bytes_max = 4096;
  uint32_t block_bytes = 1 << 20;
  Duration heartbeat_ms = milliseconds(500);
  Duration scrub_interval_s = seconds(60);
  double ratio = 0.5;
  bool quiet = false;
  bool eager = true;
  std::string name = "n";
  std::string mode = "fast";
};

class OptionsTest : public testing::Test {
 protected:
  OptionsTest() {
    AddOption(app_, options_.count, "count", "How many", {1, 100});
    AddOption(app_, options_.slot_bytes_max, "slot_bytes_max", "Size", {4096, 1 << 30});
    AddOption(app_, options_.block_bytes, "block_bytes", "Size", {64, 1 << 30});
    AddOption(app_, options_.heartbeat_ms, "heartbeat_ms", "Wait", {milliseconds(10), seconds(60)});
    AddOption(app_, options_.scrub_interval_s, "scrub_interval_s", "Wait");
    AddOption(app_, options_.ratio, "ratio", "Part", {0.0, 1.0});
    AddOption(app_, options_.quiet, "quiet", "Say less");
    AddOption(app_, options_.eager, "eager", "Do more");
    AddOption(app_, options_.name, "name", "Text");
    AddOption(app_, options_.mode, "mode", "How", {"fast", "safe"});
    AddConfigFile(app_);
  }
  ~OptionsTest() override {
    for (const std::string& variable : variables_) unsetenv(variable.c_str());
    std::filesystem::remove(config_);
  }

  void SetVariable(const std::string& variable, const std::string& value) {
    setenv(variable.c_str(), value.c_str(), 1);
    variables_.push_back(variable);
  }

  // Parses with --config when a file was written.
  absl::StatusOr<std::string> Parse(std::vector<std::string> arguments) {
    if (std::filesystem::exists(config_)) arguments.push_back("--config=" + config_);
    std::vector<const char*> argv = {"program"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    return ParseOptions(app_, static_cast<int>(argv.size()), argv.data());
  }

  std::string ErrorOf(std::vector<std::string> arguments) {
    const absl::Status status = Parse(std::move(arguments)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  void WriteConfig(const std::string& text) { std::ofstream(config_) << text; }

  const std::string config_ = fmt::format("{}unreft_options_{}.toml", testing::TempDir(), getpid());
  CLI::App app_;
  TestOptions options_;
  std::vector<std::string> variables_;
};

TEST_F(OptionsTest, DefaultsStay) {
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_EQ(options_.count, 7u);
  EXPECT_EQ(options_.mode, "fast");
  EXPECT_TRUE(options_.eager);
}

TEST_F(OptionsTest, FlagsOfEveryKind) {
  const auto result = Parse({"--count=8", "--slot-bytes-max", "64KiB", "--block-bytes=128",
                             "--heartbeat-ms=25", "--scrub-interval-s=0", "--ratio=0.25", "--quiet",
                             "--eager=false", "--name", "a b", "--mode=safe"});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(options_.count, 8u);
  EXPECT_EQ(options_.slot_bytes_max, 65536u);
  EXPECT_EQ(options_.block_bytes, 128u);
  EXPECT_EQ(options_.heartbeat_ms, milliseconds(25));
  EXPECT_EQ(options_.scrub_interval_s, seconds(0));
  EXPECT_EQ(options_.ratio, 0.25);
  EXPECT_TRUE(options_.quiet);
  EXPECT_FALSE(options_.eager);
  EXPECT_EQ(options_.name, "a b");
  EXPECT_EQ(options_.mode, "safe");
}

TEST_F(OptionsTest, FileOfEveryKind) {
  WriteConfig(
      "# comment\n"
      "count = 8\n"
      "slot_bytes_max = \"1MiB\"\n"
      "heartbeat_ms=30  # another\n"
      "ratio = 1.0\n"
      "quiet = true\n"
      "eager = false\n"
      "name = \"a b, c\"\n"
      "scrub-interval-s = 5\n");
  ASSERT_TRUE(Parse({}).ok()) << Parse({}).status();
  EXPECT_EQ(options_.count, 8u);
  EXPECT_EQ(options_.slot_bytes_max, uint64_t{1} << 20);
  EXPECT_EQ(options_.heartbeat_ms, milliseconds(30));
  EXPECT_EQ(options_.ratio, 1.0);
  EXPECT_TRUE(options_.quiet);
  EXPECT_FALSE(options_.eager);
  EXPECT_EQ(options_.name, "a b, c");
  EXPECT_EQ(options_.scrub_interval_s, seconds(5));
}

// What is like an option is refused; what nobody knows is told; all else is for others.
TEST_F(OptionsTest, VariablesThatAreNone) {
  CLI::App app;
  uint64_t value = 1;
  AddOption(app, value, "parity_chunks", "Count");
  AddConfigFile(app);
  const auto check = [&](std::vector<const char*> environment) {
    environment.push_back(nullptr);
    return CheckVariables(app, environment.data());
  };
  for (const char* fine : {"UNREFT_PARITY_CHUNKS=2", "UNREFT_CONFIG=x", "UNREFT_SOCKET=/x",
                           "UNREFT_ATTEMPT=3", "PARITY_CHUNK=2", "UNREFTED_X=2", "HOME=/"}) {
    const auto strangers = check({fine});
    ASSERT_TRUE(strangers.ok()) << strangers.status();
    EXPECT_TRUE(strangers->empty()) << fine;
  }
  for (const char* mistyped : {"UNREFT_PARITY_CHUNK=2", "UNREFT_PARTIY_CHUNKS=2",
                               "UNREFT_PARITYCHUNKS", "UNREFT_SOCKETS=/x", "UNREFT_ATEMPT=3"}) {
    const absl::Status status = check({"HOME=/", mistyped}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << mistyped;
    const std::string name = std::string(mistyped).substr(0, std::string(mistyped).find('='));
    EXPECT_THAT(std::string(status.message()), testing::StartsWith(name + " is no variable"));
  }
  const auto strangers = check({"UNREFT_META_SERVICE_HOST=10.0.0.1", "UNREFT_PORT=tcp://x"});
  ASSERT_TRUE(strangers.ok()) << strangers.status();
  EXPECT_EQ(strangers->size(), 2u);
}

// Every combination of where the value stands.
TEST_F(OptionsTest, FlagWinsOverEnvironmentOverFileOverDefault) {
  for (int places = 0; places < 8; ++places) {
    CLI::App app;
    uint64_t heartbeat = 1;
    AddOption(app, heartbeat, "beat_count", "Count");
    AddConfigFile(app);
    std::vector<const char*> argv = {"program"};
    uint64_t expected = 1;
    const std::string config = "--config=" + config_;
    if (places & 1) {
      WriteConfig("beat_count = 2\n");
      argv.push_back(config.c_str());
      expected = 2;
    }
    if (places & 2) {
      SetVariable("UNREFT_BEAT_COUNT", "3");
      expected = 3;
    } else {
      unsetenv("UNREFT_BEAT_COUNT");
    }
    if (places & 4) {
      argv.push_back("--beat-count=4");
      expected = 4;
    }
    const auto result = ParseOptions(app, static_cast<int>(argv.size()), argv.data());
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(heartbeat, expected) << "places " << places;
  }
}

TEST_F(OptionsTest, TheEnvironmentNamesTheFileToo) {
  WriteConfig("count = 9\n");
  SetVariable("UNREFT_CONFIG", config_);
  const char* argv[] = {"program"};
  CLI::App app;
  uint64_t count = 1;
  AddOption(app, count, "count", "How many");
  AddConfigFile(app);
  ASSERT_TRUE(ParseOptions(app, 1, argv).ok());
  EXPECT_EQ(count, 9u);
  std::filesystem::remove(config_);
  EXPECT_THAT(std::string(ParseOptions(app, 1, argv).status().message()), HasSubstr(config_));
}

TEST_F(OptionsTest, RangesAreCheckedFromEveryPlace) {
  const auto says = AllOf(HasSubstr("--count"), HasSubstr("\"101\""), HasSubstr("from 1 to 100"));
  EXPECT_THAT(ErrorOf({"--count=101"}), says);
  SetVariable("UNREFT_COUNT", "101");
  EXPECT_THAT(ErrorOf({}), says);
  unsetenv("UNREFT_COUNT");
  WriteConfig("count = 101\n");
  EXPECT_THAT(ErrorOf({}), says);
  EXPECT_EQ(options_.count, 7u);
}

TEST_F(OptionsTest, MessagesNameOptionFoundAndNeeded) {
  EXPECT_EQ(ErrorOf({"--count=x"}), "--count: found \"x\", needs a whole number from 1 to 100");
  EXPECT_EQ(ErrorOf({"--count=-1"}), "--count: found \"-1\", needs a whole number from 1 to 100");
  EXPECT_EQ(ErrorOf({"--heartbeat-ms=70000"}),
            "--heartbeat-ms: found \"70000\", needs a whole number from 10 to 60000");
  EXPECT_EQ(ErrorOf({"--slot-bytes-max=2GiB"}),
            "--slot-bytes-max: found \"2GiB\", needs a size (\"64MiB\") from 4KiB to 1GiB");
  EXPECT_EQ(ErrorOf({"--block-bytes=8GiB"}),
            "--block-bytes: found \"8GiB\", needs a size (\"64MiB\") from 64 to 1GiB");
  EXPECT_EQ(ErrorOf({"--ratio=nan"}), "--ratio: found \"nan\", needs a number from 0 to 1");
  EXPECT_EQ(ErrorOf({"--mode=slow"}), "--mode: found \"slow\", needs one of fast, safe");
  EXPECT_EQ(ErrorOf({"--eager=perhaps"}), "--eager: found \"perhaps\", needs true or false");
  EXPECT_THAT(ErrorOf({"--scrub-interval-s=99999999999999"}), HasSubstr("--scrub-interval-s"));
}

TEST_F(OptionsTest, UnknownNamesAreErrors) {
  EXPECT_THAT(ErrorOf({"--cuont=1"}), HasSubstr("--cuont"));
  WriteConfig("count = 8\ncuont = 1\n");
  EXPECT_THAT(ErrorOf({}), HasSubstr("\"cuont\" is no option"));
  WriteConfig("[section]\ncount = 8\n");
  EXPECT_THAT(ErrorOf({}), HasSubstr("section or dotted key \"section\""));
}

TEST_F(OptionsTest, AKeyHasOneValue) {
  WriteConfig("count = 1\nname = \"x\"\ncount = 2\n");
  EXPECT_THAT(ErrorOf({}), HasSubstr("\"count\" needs one value"));
  WriteConfig("count = 1\ncount = 2\n");
  EXPECT_THAT(ErrorOf({}), HasSubstr("\"count\" needs one value"));
  WriteConfig("count = [1, 2]\n");
  EXPECT_THAT(ErrorOf({}), HasSubstr("\"count\" needs one value"));
}

TEST_F(OptionsTest, AHashInQuotesIsRefusedAndNotCutOff) {
  WriteConfig("name = \"a#b\"\n");
  EXPECT_THAT(ErrorOf({}), AllOf(HasSubstr("\"name\""), HasSubstr("'#'")));
}

TEST_F(OptionsTest, AFileThatIsNotThereIsAnError) {
  EXPECT_THAT(ErrorOf({"--config=/no/such/file.toml"}), HasSubstr("/no/such/file.toml"));
}

TEST_F(OptionsTest, TheLastOfAFlagCounts) {
  ASSERT_TRUE(Parse({"--count=8", "--count=9"}).ok());
  EXPECT_EQ(options_.count, 9u);
}

TEST_F(OptionsTest, HelpShowsFlagUnitDefaultAndVariable) {
  const auto help = Parse({"--help"});
  ASSERT_TRUE(help.ok());
  EXPECT_THAT(*help, AllOf(HasSubstr("--heartbeat-ms"), HasSubstr("UNREFT_HEARTBEAT_MS"),
                           HasSubstr("500"), HasSubstr("4KiB"), HasSubstr("How many")));
}

TEST(ByteSize, ReadsAndPrints) {
  EXPECT_EQ(*ParseByteSize("0"), 0u);
  EXPECT_EQ(*ParseByteSize("17"), 17u);
  EXPECT_EQ(*ParseByteSize("17B"), 17u);
  EXPECT_EQ(*ParseByteSize("256MiB"), uint64_t{256} << 20);
  EXPECT_EQ(*ParseByteSize("1.5 GiB"), uint64_t{3} << 29);
  EXPECT_EQ(*ParseByteSize("18446744073709551615"), UINT64_MAX);
  for (const char* bad :
       {"", "MiB", "-1", "1MB", "1.5", "0.3KiB", "1e3MiB", "16777216TiB", "1 2"}) {
    EXPECT_FALSE(ParseByteSize(bad).ok()) << bad;
  }
  EXPECT_EQ(FormatByteSize(0), "0");
  EXPECT_EQ(FormatByteSize(4097), "4097");
  EXPECT_EQ(FormatByteSize(uint64_t{3} << 29), "1536MiB");
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{1} << 40, UINT64_MAX}) {
    EXPECT_EQ(*ParseByteSize(FormatByteSize(bytes)), bytes);
  }
}

TEST_F(OptionsTest, WhereAValueIsFromIsKnown) {
  SetVariable("UNREFT_MODE", "safe");
  SetVariable("UNREFT_COUNT", "3");
  std::ofstream(config_) << "ratio = 0.25\nmode = \"fast\"\n";
  ASSERT_TRUE(Parse({"--count=4", "--name", "x"}).ok());
  const char* argv[] = {"program", "--count=4", "--name", "x"};
  const auto source = [&](const char* name) { return SourceOfOption(app_, name, 4, argv); };
  EXPECT_EQ(source("count"), "--count");
  EXPECT_EQ(source("name"), "--name");
  EXPECT_EQ(source("mode"), "UNREFT_MODE");
  EXPECT_EQ(source("ratio"), "ratio of --config");
  EXPECT_EQ(source("eager"), "");
}

TEST(CommonOptions, AreParsedAndFinished) {
  CLI::App app;
  CommonOptions options;
  AddCommonOptions(app, options);
  const char* argv[] = {"program", "--job=llama", "--node=3", "--log-level=debug",
                        "--log-file-bytes-max=1MiB"};
  ASSERT_TRUE(ParseOptions(app, 5, argv).ok());
  ASSERT_TRUE(FinishCommonOptions(options).ok());
  EXPECT_EQ(options.node, 3u);
  EXPECT_EQ(options.log_file_bytes_max, uint64_t{1} << 20);
  EXPECT_EQ(options.run_dir, DefaultRunDir("llama", 3));
  options.job = "a.b";
  EXPECT_THAT(std::string(FinishCommonOptions(options).message()), HasSubstr("\"a.b\""));
}

TEST(CommonOptions, TheRunDirectoryIsTheUsersOwn) {
  setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  EXPECT_EQ(DefaultRunDir("llama", 0), fmt::format("/run/user/7/unreft-{}/llama", geteuid()));
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(DefaultRunDir("llama", 3), fmt::format("/tmp/unreft-{}/llama.node3", geteuid()));
}

using OptionsDeathTest = OptionsTest;

TEST_F(OptionsDeathTest, BadDeclarationsAreCaught) {
  Duration timeout{};
  uint64_t count = 0;
  EXPECT_DEATH(AddOption(app_, timeout, "timeout", "No unit"), "timeout");
  EXPECT_DEATH(AddOption(app_, count, "Count-Max", "No name"), "Count-Max");
  EXPECT_DEATH(AddOption(app_, count, "other_count", "No default", {1, 2}), "other_count");
}

}  // namespace
}  // namespace unreft
