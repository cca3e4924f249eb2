// The log: levels, names, throttling, and the sinks of real processes.

#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/log_sinks.h"
#include "tests/fakes/capture_log_sink.h"

namespace unreft {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Log, FormatsAndDropsWhatIsBelowItsLevel) {
  CaptureLogSink sink;
  Log log(sink, LogLevel::kInfo);
  log.Debug("not {}", 1);
  log.Info("slot {} of {}", 2, "rank 3");
  log.Warn("plain {{}}");
  log.Error("{:#x}", 255);
  EXPECT_THAT(sink.lines(), ElementsAre("info: slot 2 of rank 3", "warn: plain {}", "error: 0xff"));
  EXPECT_FALSE(log.enabled(LogLevel::kDebug));
}

TEST(Log, NamesItself) {
  CaptureLogSink sink;
  Log log(sink, LogLevel::kDebug, "rank 3");
  log.Debug("hello");
  EXPECT_THAT(sink.lines(), ElementsAre("debug: rank 3: hello"));
}

TEST(Log, OffIsSilent) {
  CaptureLogSink sink;
  Log log(sink, LogLevel::kOff);
  log.Error("no");
  log.WarnEvery("k", seconds(1), Time(), "no");
  EXPECT_TRUE(sink.lines().empty());
}

TEST(Log, WarnEveryThrottlesByKeyAndCountsWhatItLeftOut) {
  CaptureLogSink sink;
  Log log(sink);
  const Time start;
  for (int i = 0; i < 4; ++i) log.WarnEvery("a", seconds(10), start + seconds(3 * i), "a {}", i);
  log.WarnEvery("b", seconds(10), start + seconds(9), "b");
  log.WarnEvery("a", seconds(10), start + seconds(10), "a again");
  log.WarnEvery("a", seconds(10), start + seconds(20), "a alone");
  EXPECT_THAT(sink.lines(), ElementsAre("warn: a 0", "warn: b",
                                        "warn: a again (3 more like it before)", "warn: a alone"));
}

TEST(Log, RemembersABoundedNumberOfKeys) {
  CaptureLogSink sink;
  Log log(sink);
  const Time start;
  for (int i = 0; i <= 1000; ++i) {
    log.WarnEvery(std::to_string(i), seconds(3600), start + seconds(i), "once");
  }
  EXPECT_EQ(sink.lines().size(), 1001u);
  log.WarnEvery("1000", seconds(3600), start + seconds(1001), "known");
  EXPECT_EQ(sink.Count("known"), 0u);
  log.WarnEvery("0", seconds(3600), start + seconds(1001), "the oldest was forgotten");
  EXPECT_EQ(sink.Count("forgotten"), 1u);
}

// What is in a line, and in a key, may come from other processes.
TEST(Log, WritesAndRemembersNoMoreThanSomeKiB) {
  CaptureLogSink sink;
  Log log(sink);
  const std::string large(size_t{1} << 20, 'x');
  log.Warn("{}", large);
  log.WarnEvery(large + "a", seconds(10), Time(), "{}", large);
  log.WarnEvery(large + "b", seconds(10), Time(), "a key like the one before");
  log.WarnEvery(large + "b", seconds(10), Time() + seconds(10), "{}", large);
  const std::vector<std::string> lines = sink.lines();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0], testing::EndsWith("xxx..."));
  EXPECT_THAT(lines[1], testing::EndsWith("xxx..."));
  EXPECT_THAT(lines[2], testing::EndsWith("xxx... (1 more like it before)"));
  for (const std::string& line : lines) EXPECT_LT(line.size(), 10'000u);
}

TEST(Log, LevelsHaveNames) {
  for (const char* name : {"debug", "info", "warn", "error", "off"}) {
    ASSERT_TRUE(ParseLogLevel(name).ok());
    EXPECT_EQ(LogLevelName(*ParseLogLevel(name)), name);
  }
  EXPECT_THAT(std::string(ParseLogLevel("loud").status().message()), HasSubstr("\"loud\""));
}

TEST(LogSinks, StderrCarriesTimeAndLevel) {
  testing::internal::CaptureStderr();
  const auto sink = StderrLogSink();
  Log(*sink).Warn("text {}", 7);
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_THAT(line, testing::ContainsRegex("^[0-9-]+T[0-9:.]+[+-][0-9:]+ warning unreft"));
  EXPECT_THAT(line, HasSubstr("text 7\n"));
}

TEST(LogSinks, AFileIsFlushedAndBounded) {
  const std::string directory = testing::TempDir() + "unreft_log_" + std::to_string(getpid());
  std::filesystem::create_directories(directory);
  {
    const auto sink = FileLogSink(directory + "/unreft.log", 4096);
    ASSERT_TRUE(sink.ok()) << sink.status();
    Log log(**sink);
    log.Info("first");
    std::ifstream file(directory + "/unreft.log");
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_THAT(text.str(), HasSubstr("first"));
    for (int i = 0; i < 1000; ++i) log.Info("line {}", i);
  }
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    bytes += entry.file_size();
  }
  EXPECT_LE(bytes, 2 * 4096u);
  std::filesystem::remove_all(directory);
}

TEST(LogSinks, AFileThatWasMovedAwayIsMadeAnew) {
  const std::string directory = testing::TempDir() + "unreft_log_moved_" + std::to_string(getpid());
  std::filesystem::create_directories(directory);
  const auto text = [&](const std::string& name) {
    std::ifstream file(directory + name);
    return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  };
  {
    const auto sink = FileLogSink(directory + "/own.log", 4096);
    ASSERT_TRUE(sink.ok()) << sink.status();
    Log log(**sink);
    log.Info("before");
    std::filesystem::rename(directory + "/own.log", directory + "/moved");
    EXPECT_EQ(log.Reopen(), absl::OkStatus());
    log.Info("after");
  }
  EXPECT_THAT(text("/moved"), HasSubstr("before"));
  EXPECT_THAT(text("/moved"), testing::Not(HasSubstr("after")));
  EXPECT_THAT(text("/own.log"), HasSubstr("after"));
  std::filesystem::remove_all(directory);
}

TEST(LogSinks, AFileThatCannotBeOpenedIsAnError) {
  const auto status = FileLogSink("/proc/no/such/place/unreft.log", 4096).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("/proc/no/such/place/unreft.log"));
}

}  // namespace
}  // namespace unreft
