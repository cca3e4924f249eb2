#include "base/options.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/run_dir.h"
#include "base/segment_store.h"
#include "base/variables.h"

namespace unreft {
namespace {

struct ByteUnit {
  std::string_view name;
  uint64_t bytes;
};
constexpr std::array<ByteUnit, 5> kByteUnits = {{{"TiB", uint64_t{1} << 40},
                                                 {"GiB", uint64_t{1} << 30},
                                                 {"MiB", uint64_t{1} << 20},
                                                 {"KiB", uint64_t{1} << 10},
                                                 {"B", 1}}};

std::string FlagOf(std::string_view name) {
  return "--" + absl::StrReplaceAll(absl::string_view(name.data(), name.size()), {{"_", "-"}});
}

std::string VariableOf(std::string_view name) {
  return "UNREFT_" + absl::AsciiStrToUpper(absl::string_view(name.data(), name.size()));
}

// The other way round.
std::string FlagOfVariable(std::string_view variable) {
  const std::string_view name = variable.substr(std::string_view("UNREFT_").size());
  return FlagOf(absl::AsciiStrToLower(absl::string_view(name.data(), name.size())));
}

std::vector<std::string> WordsOf(std::string_view name) {
  return absl::StrSplit(absl::string_view(name.data(), name.size()), '_');
}

bool IsByteSize(std::string_view name) {
  const auto words = WordsOf(name);
  return std::find(words.begin(), words.end(), "bytes") != words.end();
}

void CheckName(std::string_view name) {
  for (const std::string& word : WordsOf(name)) {
    UNREFT_CHECK(
        !word.empty() &&
            std::all_of(word.begin(), word.end(),
                        [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }),
        "option name \"{}\"", name);
  }
}

// What makes one option's text into its value.
struct TextOption {
  std::string type;   // for --help
  std::string needs;  // for the message, after "needs "
  std::string default_text;
  std::function<bool(const std::string& text)> read;  // sets the field, or false
};

CLI::Option& AddText(CLI::App& app, std::string_view name, std::string_view help, TextOption text) {
  CheckName(name);
  const std::string flag = FlagOf(name);
  const auto callback = [flag, needs = text.needs,
                         read = std::move(text.read)](const CLI::results_t& results) {
    if (read(results.back())) return true;
    throw CLI::ValidationError(flag, fmt::format("found \"{}\", needs {}", results.back(), needs));
  };
  CLI::Option& option = *app.add_option(flag, callback, std::string(help));
  option.type_name(text.type)->default_str(text.default_text)->take_last();
  option.envname(VariableOf(name));
  return option;
}

// A number of type T, read by `parse` and printed by `print`.
template <typename T, typename Parse, typename Print>
void AddNumber(CLI::App& app, T& field, std::string_view name, std::string_view help,
               Range<T> range, std::string type, std::string_view what, Parse parse, Print print) {
  UNREFT_CHECK(range.min <= field && field <= range.max, "the default of option {}", name);
  AddText(app, name, help,
          {.type = std::move(type),
           .needs = fmt::format("{} from {} to {}", what, print(range.min), print(range.max)),
           .default_text = print(field),
           .read = [&field, range, parse](const std::string& text) {
             T value{};
             if (!parse(text, value) || value < range.min || value > range.max) return false;
             field = value;
             return true;
           }});
}

template <typename T>
void AddWhole(CLI::App& app, T& field, std::string_view name, std::string_view help,
              Range<T> range) {
  if (IsByteSize(name)) {
    const auto parse = [](const std::string& text, T& value) {
      const auto bytes = ParseByteSize(text);
      if (!bytes.ok() || *bytes > std::numeric_limits<T>::max()) return false;
      value = static_cast<T>(*bytes);
      return true;
    };
    AddNumber(app, field, name, help, range, "BYTES", "a size (\"64MiB\")", parse,
              [](T value) { return FormatByteSize(value); });
    return;
  }
  AddNumber(
      app, field, name, help, range, "N", "a whole number",
      [](const std::string& text, T& value) { return absl::SimpleAtoi(text, &value); },
      [](T value) { return fmt::format("{}", value); });
}

// The unit that a Duration's name ends in.
Duration UnitOf(std::string_view name) {
  if (name.ends_with("_us")) return std::chrono::microseconds(1);
  if (name.ends_with("_ms")) return std::chrono::milliseconds(1);
  UNREFT_CHECK(name.ends_with("_s"), "option {} needs _us, _ms or _s at its end", name);
  return std::chrono::seconds(1);
}

// The TOML of CLI11 made strict: one value for each key, every key an option, names as in the
// structs. A key whose variable is set is left out, since CLI11 reads the environment last.
class StrictToml : public CLI::ConfigTOML {
 public:
  explicit StrictToml(const CLI::App& app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::vector<CLI::ConfigItem> items;
    std::set<std::string> seen;
    for (CLI::ConfigItem& item : CLI::ConfigTOML::from_config(input)) {
      CheckItem(item);
      if (!seen.insert(item.name).second) ThrowNotOne(item.name);
      if (SetByVariable(item.name)) continue;
      item.name = absl::StrReplaceAll(item.name, {{"_", "-"}});
      items.push_back(std::move(item));
    }
    return items;
  }

 private:
  void CheckItem(const CLI::ConfigItem& item) const {
    if (!item.parents.empty()) {
      throw CLI::ConfigError(
          fmt::format("config file: section or dotted key \"{}\"", item.parents.front()));
    }
    if (OptionOf(item.name) == nullptr) {
      throw CLI::ConfigError(fmt::format("config file: \"{}\" is no option", item.name));
    }
    if (item.inputs.size() != 1) ThrowNotOne(item.name);
    // CLI11 ends a line at '#', within quotes too.
    const std::string& value = item.inputs.front();
    if (!value.empty() && (value.front() == '"' || value.front() == '\'')) {
      throw CLI::ConfigError(fmt::format(
          "config file: the value of \"{}\" has no closing quote, or a '#'", item.name));
    }
  }

  [[noreturn]] static void ThrowNotOne(const std::string& name) {
    throw CLI::ConfigError(fmt::format("config file: \"{}\" needs one value", name));
  }

  const CLI::Option* OptionOf(const std::string& name) const {
    return app_.get_option_no_throw("--" + absl::StrReplaceAll(name, {{"_", "-"}}));
  }

  bool SetByVariable(const std::string& name) const {
    const std::string variable = OptionOf(name)->get_envname();
    const char* value = variable.empty() ? nullptr : std::getenv(variable.c_str());
    return value != nullptr && *value != '\0';
  }

  const CLI::App& app_;
};

}  // namespace

void AddOption(CLI::App& app, bool& field, std::string_view name, std::string_view help) {
  AddText(app, name, help,
          {.type = "BOOL",
           .needs = "true or false",
           .default_text = field ? "true" : "false",
           .read = [&field](const std::string& text) { return absl::SimpleAtob(text, &field); }})
      .expected(0);  // a flag: "--name" alone means true
}

void AddOption(CLI::App& app, std::string& field, std::string_view name, std::string_view help) {
  AddText(
      app, name, help,
      {.type = "TEXT", .needs = "text", .default_text = field, .read = [&field](const auto& text) {
         field = text;
         return true;
       }});
}

void AddOption(CLI::App& app, uint32_t& field, std::string_view name, std::string_view help,
               Range<uint32_t> range) {
  AddWhole(app, field, name, help, range);
}

void AddOption(CLI::App& app, uint64_t& field, std::string_view name, std::string_view help,
               Range<uint64_t> range) {
  AddWhole(app, field, name, help, range);
}

void AddOption(CLI::App& app, double& field, std::string_view name, std::string_view help,
               Range<double> range) {
  AddNumber(
      app, field, name, help, range, "NUMBER", "a number",
      [](const std::string& text, double& value) {
        return absl::SimpleAtod(text, &value) && std::isfinite(value);
      },
      [](double value) { return fmt::format("{:g}", value); });
}

void AddOption(CLI::App& app, Duration& field, std::string_view name, std::string_view help,
               Range<Duration> range) {
  const Duration unit = UnitOf(name);
  AddNumber(
      app, field, name, help, range, absl::AsciiStrToUpper(WordsOf(name).back()), "a whole number",
      [unit](const std::string& text, Duration& value) {
        int64_t count = 0;
        if (!absl::SimpleAtoi(text, &count)) return false;
        if (count < 0 || count > Duration::max() / unit) return false;
        value = count * unit;
        return true;
      },
      [unit](Duration value) { return fmt::format("{}", value / unit); });
}

void AddOption(CLI::App& app, std::string& field, std::string_view name, std::string_view help,
               std::vector<std::string> choices) {
  const std::string needs = "one of " + absl::StrJoin(choices, ", ");
  AddText(app, name, help,
          {.type = "TEXT",
           .needs = needs,
           .default_text = field,
           .read = [&field, choices = std::move(choices)](const std::string& text) {
             if (std::find(choices.begin(), choices.end(), text) == choices.end()) return false;
             field = text;
             return true;
           }});
}

void AddConfigFile(CLI::App& app) {
  app.config_formatter(std::make_shared<StrictToml>(app));
  // CLI11 reads variables after the file, so this one comes as the default; a file that somebody
  // names has to be there.
  const std::string variable = VariableOf("config");
  const char* file = std::getenv(variable.c_str());
  const bool named = file != nullptr && *file != '\0';
  app.set_config("--config", named ? file : "", "File of options (TOML): name = value", named)
      ->envname(variable);
}

absl::StatusOr<std::string> ParseOptions(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return std::string();
  } catch (const CLI::CallForHelp&) {
    return app.help();
  } catch (const CLI::CallForAllHelp&) {
    return app.help("", CLI::AppFormatMode::All);
  } catch (const CLI::CallForVersion& version) {
    return std::string(version.what()) + "\n";
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

absl::StatusOr<std::vector<std::string>> CheckVariables(const CLI::App& app,
                                                        const char* const* environment) {
  std::vector<std::string> strangers;
  for (const UnknownVariable& unknown : FindUnknownVariables(environment)) {
    if (app.get_option_no_throw(FlagOfVariable(unknown.name)) != nullptr) continue;
    if (unknown.is_mistyped) {
      return absl::InvalidArgumentError(
          fmt::format("{} is no variable of Unreft and would be without effect, {} is one: correct "
                      "it or unset it",
                      unknown.name, unknown.nearest));
    }
    strangers.push_back(unknown.Text());
  }
  return strangers;
}

std::string SourceOfOption(const CLI::App& app, std::string_view name, int argc,
                           const char* const* argv) {
  const std::string flag = FlagOf(name);
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == flag || word.starts_with(flag + "=")) return flag;
  }
  const std::string variable = VariableOf(name);
  const char* const value = std::getenv(variable.c_str());
  if (value != nullptr && *value != '\0') return variable;
  const CLI::Option* const option = app.get_option_no_throw(flag);
  if (option == nullptr || option->count() == 0) return "";
  return fmt::format("{} of --config", name);
}

absl::StatusOr<uint64_t> ParseByteSize(std::string_view text) {
  uint64_t unit = 1;
  std::string_view number = text;
  for (const ByteUnit& candidate : kByteUnits) {
    if (!text.ends_with(candidate.name)) continue;
    unit = candidate.bytes;
    number.remove_suffix(candidate.name.size());
    break;
  }
  const std::string digits(absl::StripAsciiWhitespace({number.data(), number.size()}));
  const auto bad = [&] {
    return absl::InvalidArgumentError(
        fmt::format("size \"{}\": needs a number and B, KiB, MiB, GiB or TiB", text));
  };
  uint64_t whole = 0;
  if (absl::SimpleAtoi(digits, &whole)) {
    if (whole > UINT64_MAX / unit) return bad();
    return whole * unit;
  }
  // A fraction must come to whole bytes; beyond 2^53 a double could not tell.
  double fraction = 0;
  if (digits.find('.') == std::string::npos || !absl::SimpleAtod(digits, &fraction)) return bad();
  const double bytes = fraction * static_cast<double>(unit);
  if (!(bytes >= 0 && bytes < 0x1p53) || bytes != std::floor(bytes)) return bad();
  return static_cast<uint64_t>(bytes);
}

std::string FormatByteSize(uint64_t bytes) {
  for (const ByteUnit& unit : kByteUnits) {
    if (unit.bytes > 1 && bytes >= unit.bytes && bytes % unit.bytes == 0) {
      return fmt::format("{}{}", bytes / unit.bytes, unit.name);
    }
  }
  return fmt::format("{}", bytes);
}

void AddCommonOptions(CLI::App& app, CommonOptions& options) {
  AddOption(app, options.job, "job", "Name of the training run");
  AddOption(app, options.node, "node", "Slot of this node, from 0");
  AddOption(app, options.run_dir, "run_dir", "Directory of sockets and records");
  AddOption(app, options.log_level, "log_level", "Least level that is logged",
            {"debug", "info", "warn", "error", "off"});
  AddOption(app, options.log_file, "log_file", "Log there instead of to stderr");
  AddOption(app, options.log_file_bytes_max, "log_file_bytes_max",
            "Size at which the log file is set aside, one at a time", {4096, uint64_t{1} << 40});
  AddOption(app, options.fault_points, "fault_points", "For tests: NAME=fail[:N],NAME=crash[:N]");
}

absl::Status FinishCommonOptions(CommonOptions& options) {
  if (absl::Status status = CheckJobName(options.job); !status.ok()) return status;
  if (options.run_dir.empty()) options.run_dir = DefaultRunDir(options.job, options.node);
  return absl::OkStatus();
}

}  // namespace unreft
