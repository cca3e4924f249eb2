#include <fmt/format.h>

#include <memory>
#include <optional>

#include "tools/cli/commands.h"
#include "tools/cli/job_answers.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

struct PinOptions {
  std::optional<uint64_t> step;
  std::string owner;
  uint64_t for_ms = 0;
};

int Change(const Context& context, const std::string& verb, const PinOptions& options) {
  const nlohmann::json arguments{
      {"owner", options.owner}, {"step", options.step.value_or(0)}, {"for_ms", options.for_ms}};
  auto answer = AskLeader(context, verb, arguments);
  if (!answer.ok()) return Fail(context, answer.status());
  std::string text;
  for (const nlohmann::json& pin : answer->value("pins", nlohmann::json::array())) {
    text += verb == "pin" ? fmt::format("version {} is kept for '{}' for {} s\n", VersionCell(pin),
                                        Cell(pin, "owner"), pin.value("for_ms", 0.0) / 1000)
                          : fmt::format("version {} is no longer kept for '{}'\n", VersionCell(pin),
                                        Cell(pin, "owner"));
  }
  Print(context, *answer, text);
  return kExitOk;
}

void AddOptions(CLI::App* command, PinOptions& options) {
  command->add_option("STEP", options.step)->check(CLI::PositiveNumber);
  command->add_option("--owner", options.owner, "who keeps it")->required();
}

}  // namespace

void AddPin(CLI::App& app, Context& context) {
  auto options = std::make_shared<PinOptions>();
  CLI::App* command =
      AddCommand(app, "pin", "keep the version that is committed now, until unpin or a deadline");
  AddOptions(command, *options);
  command->add_option("--for", options->for_ms, "how long at most: 90s, 10m, 2h")
      ->transform(CLI::AsNumberWithUnit(
          std::map<std::string, uint64_t>{
              {"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}, {"d", 86'400'000}},
          CLI::AsNumberWithUnit::Options(CLI::AsNumberWithUnit::UNIT_REQUIRED |
                                         CLI::AsNumberWithUnit::CASE_SENSITIVE)))
      ->required();
  command->footer(
      "Each version that is kept takes a slot more of every rank: unreftd --pins N. With STEP it "
      "fails if another step is committed by now. The same owner renews a pin by giving its STEP.");
  OnChosenForAll(command, context,
                 [&context, options] { return Change(context, "pin", *options); });
}

void AddUnpin(CLI::App& app, Context& context) {
  auto options = std::make_shared<PinOptions>();
  CLI::App* command = AddCommand(app, "unpin", "let go of what this owner has pinned");
  AddOptions(command, *options);
  command->footer("Without STEP all that the owner has pinned.");
  OnChosenForAll(command, context,
                 [&context, options] { return Change(context, "unpin", *options); });
}

}  // namespace unreft::cli
