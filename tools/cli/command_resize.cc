#include <absl/time/clock.h>
#include <absl/time/time.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <memory>
#include <optional>
#include <vector>

#include "tools/cli/commands.h"
#include "tools/cli/job_answers.h"
#include "tools/cli/resize_wish.h"

namespace unreft::cli {
namespace {

constexpr Milliseconds kLookInterval(500);

struct ResizeOptions {
  std::optional<uint64_t> nodes;
  std::vector<uint64_t> without;
  bool cancel = false;
  bool wait = false;
};

std::string OrderedText(const ResizeWish& wish) {
  if (wish.ordered_s == 0) return "";
  const absl::Time at = absl::FromUnixSeconds(static_cast<int64_t>(wish.ordered_s));
  return ", ordered at " + absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", at, absl::UTCTimeZone());
}

std::vector<uint64_t> RunningOn(const nlohmann::json& answer) {
  return answer.value("running", std::vector<uint64_t>{});
}

std::string Text(const nlohmann::json& answer) {
  const std::optional<ResizeWish> wish = ParseResize(answer).wish;
  const std::vector<uint64_t> running = RunningOn(answer);
  std::string text = wish ? fmt::format("wished: {}{}\n", wish->Text(), OrderedText(*wish))
                          : "nothing is wished: the launcher chooses the nodes\n";
  text += running.empty() ? "no ranks run"
                          : fmt::format("ranks run on node {}", fmt::join(running, ", "));
  if (!wish) return text + "\n";
  return text + (answer.value("met", false) ? ": as is wished\n"
                 : running.empty()          ? "\n"
                                            : ": the launcher is to start them anew\n");
}

nlohmann::json ArgumentsOf(const ResizeOptions& options) {
  nlohmann::json arguments = nlohmann::json::object();
  if (options.cancel) arguments["cancel"] = true;
  if (!options.nodes && options.without.empty()) return arguments;
  if (options.nodes) arguments["nodes"] = *options.nodes;
  arguments["without"] = options.without;
  arguments["ordered_s"] = absl::ToUnixSeconds(absl::Now());
  return arguments;
}

// Until ranks run otherwise than is wished. A leader may change meanwhile, and a daemon go.
absl::StatusOr<nlohmann::json> WaitUntilUnmet(const Context& context) {
  absl::StatusOr<nlohmann::json> answer = AskLeader(context, "resize", nlohmann::json::object());
  if (!answer.ok()) return answer;
  while (!answer.ok() || !ParseResize(*answer).wish || RunningOn(*answer).empty() ||
         answer->value("met", false)) {
    poll(nullptr, 0, static_cast<int>(kLookInterval.count()));
    answer = AskLeader(context, "resize", nlohmann::json::object());
  }
  return answer;
}

int Resize(const Context& context, const ResizeOptions& options) {
  const auto answer =
      options.wait ? WaitUntilUnmet(context) : AskLeader(context, "resize", ArgumentsOf(options));
  if (!answer.ok()) return Fail(context, answer.status());
  Print(context, *answer, Text(*answer));
  return kExitOk;
}

}  // namespace

void AddResize(CLI::App& app, Context& context) {
  auto options = std::make_shared<ResizeOptions>();
  CLI::App* command = AddCommand(app, "resize", "have the job run on more or fewer of its nodes");
  auto* nodes = command->add_option("--nodes", options->nodes, "on how many");
  auto* without = command
                      ->add_option("--without", options->without,
                                   "I,J: nodes on which no rank is to run; alone: on all others")
                      ->delimiter(',');
  auto* cancel = command->add_flag("--cancel", options->cancel, "nothing is wished any more")
                     ->excludes(nodes)
                     ->excludes(without);
  command->add_flag("--wait", options->wait, "until ranks run otherwise than is wished")
      ->excludes(nodes)
      ->excludes(without)
      ->excludes(cancel);
  command->footer(
      "Without an option: what is wished, and where ranks run. The wish stands until another one "
      "or --cancel takes its place. `unreft run --nodes MIN:MAX` does it after the next commit, "
      "and at each restart; another launcher has to be told by you.");
  OnChosenForAll(command, context, [&context, options] { return Resize(context, *options); });
}

}  // namespace unreft::cli
