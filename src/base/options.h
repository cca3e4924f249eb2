// Options: one name, "scrub_interval_s", is a field, a flag, a variable and a key.
//
//   flag          --scrub-interval-s 60        wins over
//   environment   UNREFT_SCRUB_INTERVAL_S=60   wins over
//   --config FILE scrub_interval_s = 60        wins over the field's own default
//
// AddOption derives all of them from the name, so they cannot diverge. A value out of range, a key
// that is no option and a flag that is none are errors that name it. The unit is part of the name:
// a Duration's ends in _us, _ms or _s, and with the word "bytes" in it the value may be "256MiB".
// Functions without state; an App is used by one thread.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/executor.h"

namespace CLI {
class App;
}

namespace unreft {

// Both ends are allowed.
template <typename T>
struct Range {
  T min;
  T max;
};

template <typename T>
inline constexpr Range<T> kAnyValue = {0, std::numeric_limits<T>::max()};

// Each adds the option `name` (words of a-z and 0-9 with '_' between) to `app`. The field's value
// is the default that --help shows; it keeps it unless the option is given. `field` outlives
// parsing. Besides "--name true" and "--name=false" also "--name" alone.
void AddOption(CLI::App& app, bool& field, std::string_view name, std::string_view help);
void AddOption(CLI::App& app, std::string& field, std::string_view name, std::string_view help);
void AddOption(CLI::App& app, uint32_t& field, std::string_view name, std::string_view help,
               Range<uint32_t> range = kAnyValue<uint32_t>);
void AddOption(CLI::App& app, uint64_t& field, std::string_view name, std::string_view help,
               Range<uint64_t> range = kAnyValue<uint64_t>);
void AddOption(CLI::App& app, double& field, std::string_view name, std::string_view help,
               Range<double> range = kAnyValue<double>);
void AddOption(CLI::App& app, Duration& field, std::string_view name, std::string_view help,
               Range<Duration> range = {Duration::zero(), Duration::max()});
// One of `choices`.
void AddOption(CLI::App& app, std::string& field, std::string_view name, std::string_view help,
               std::vector<std::string> choices);

// Adds --config FILE; UNREFT_CONFIG is read now.
void AddConfigFile(CLI::App& app);

// What the environment has of UNREFT_... variables that are none, as a line each for the log.
// InvalidArgument for one that is likely a mistyped option of `app`: it would be without effect.
// Those of other programs, trainers and set-up scripts are known, and what is like none of all is
// not refused: a cluster manager may have made it from the name of a service.
absl::StatusOr<std::vector<std::string>> CheckVariables(const CLI::App& app,
                                                        const char* const* environment);

// Fills the fields. The text to print when --help or --version was asked for, otherwise empty;
// InvalidArgument.
absl::StatusOr<std::string> ParseOptions(CLI::App& app, int argc, const char* const* argv);

// Where a parsed option has its value from: "--data-chunks", "UNREFT_DATA_CHUNKS", "data_chunks of
// --config"; empty: it is the default.
std::string SourceOfOption(const CLI::App& app, std::string_view name, int argc,
                           const char* const* argv);

// "4096", "64KiB", "1.5GiB"; units B, KiB, MiB, GiB, TiB. InvalidArgument.
absl::StatusOr<uint64_t> ParseByteSize(std::string_view text);
// The shortest exact text: "64KiB", "4097".
std::string FormatByteSize(uint64_t bytes);

// What every program of Unreft has.
struct CommonOptions {
  std::string job = "default";  // isolates everything; CheckJobName
  uint64_t node = 0;            // slot of this node, 0..N-1
  std::string run_dir;          // sockets, pid files, records; base/run_dir.h unless set
  std::string log_level = "info";
  std::string log_file;  // stderr unless set
  uint64_t log_file_bytes_max = uint64_t{64} << 20;
  std::string fault_points;  // for tests: base/fault_points.h
};

void AddCommonOptions(CLI::App& app, CommonOptions& options);

// Fills run_dir if it is empty, and checks what no single option can.
absl::Status FinishCommonOptions(CommonOptions& options);

}  // namespace unreft
