#include <fmt/format.h>

#include <memory>

#include "base/shm_segment_store.h"
#include "tools/cli/commands.h"
#include "tools/cli/daemon_control.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

struct UpOptions {
  StartRequest start;
  uint64_t wait_ms = 30000;
  bool print_env = false;
};

std::string Exports(const Place& place) {
  std::string text;
  for (const auto& [name, value] : TrainerEnvironment(place)) {
    text += fmt::format("export {}={}\n", name, ShellQuote(value));
  }
  return text;
}

nlohmann::json MemoryFacts(const Place& place) {
  nlohmann::json facts = nlohmann::json::object();
  if (auto capacity = ShmSegmentStore().Capacity(); capacity.ok()) {
    facts["shm_free_bytes"] = capacity->segments_free;
    facts["ram_available_bytes"] = capacity->ram_available;
    facts["memlock_limit_bytes"] = capacity->memlock_limit;
  }
  if (auto segments = ListMemory(place); segments.ok()) {
    facts["segments"] = segments->size();
    facts["segment_bytes"] = TotalBytes(*segments);
  }
  return facts;
}

nlohmann::json Document(const Place& place, const StartResult& result) {
  nlohmann::json environment = nlohmann::json::object();
  for (const auto& [name, value] : TrainerEnvironment(place)) environment[name] = value;
  nlohmann::json document{{"job", place.job},
                          {"node", place.node},
                          {"run_dir", place.run_dir},
                          {"socket", place.socket()},
                          {"log", place.log()},
                          {"pid", result.status.value("pid", 0)},
                          {"supervisor_pid", nullptr},
                          {"already_up", result.already_up},
                          {"memory", MemoryFacts(place)},
                          {"environment", environment}};
  if (auto supervisor = FindSupervisor(place); supervisor.ok() && supervisor->has_value()) {
    document["supervisor_pid"] = (*supervisor)->pid();
  }
  return document;
}

std::string Limit(const nlohmann::json& facts, const char* key) {
  const uint64_t bytes = facts.value(key, UINT64_MAX);
  return bytes == UINT64_MAX ? "no limit" : HumanBytes(bytes);
}

std::string Text(const Place& place, const nlohmann::json& document) {
  const nlohmann::json& memory = document["memory"];
  std::string text =
      fmt::format("{}: unreftd is {} (pid {}", place.Name(),
                  document["already_up"].get<bool>() ? "already up" : "up", Cell(document, "pid"));
  text += document["supervisor_pid"].is_null()
              ? ")\n"
              : fmt::format(", supervised by {})\n", Cell(document, "supervisor_pid"));
  text += fmt::format("  socket  {}\n  log     {}\n", place.socket(), place.log());
  text += fmt::format(
      "  memory  {} held in {}; free: {} in /dev/shm, {} of RAM; may be locked: {}\n",
      BytesCell(memory, "segment_bytes"), Count(memory.value("segments", uint64_t{0}), "segment"),
      Limit(memory, "shm_free_bytes"), Limit(memory, "ram_available_bytes"),
      Limit(memory, "memlock_limit_bytes"));
  return text + "Training processes find it by:\n" + Exports(place);
}

int Up(const Context& context, UpOptions& options) {
  options.start.daemon_words = context.after_dashes;
  options.start.timeout = Milliseconds(options.wait_ms);
  absl::StatusOr<StartResult> result = StartDaemon(context.place, options.start);
  if (!result.ok()) return Fail(context, result.status());
  const nlohmann::json document = Document(context.place, *result);
  if (result->already_up && options.start.supervise && document["supervisor_pid"].is_null()) {
    Say("unreftd was already up without a supervisor; `unreft down --keep-memory` first, to "
        "start it with one");
  }
  Print(context, document,
        options.print_env ? Exports(context.place) : Text(context.place, document));
  return kExitOk;
}

}  // namespace

void AddUp(CLI::App& app, Context& context) {
  auto options = std::make_shared<UpOptions>();
  CLI::App* command = AddCommand(app, "up", "start unreftd in the background, if it is not up");
  command->add_flag("--supervise", options->start.supervise,
                    "keep a supervisor that starts unreftd again when it dies");
  command->add_flag("--print-env", options->print_env,
                    "print only the export lines: eval \"$(unreft up --print-env)\"");
  command->add_option("--wait-ms", options->wait_ms, "how long unreftd may take to answer")
      ->capture_default_str();
  command->add_option("--daemon", options->start.daemon_path, "another unreftd to start")
      ->check(CLI::ExistingFile);
  command->footer("Words after -- are handed to unreftd: unreft up -- --slots-per-rank 2");
  OnChosen(command, context, [&context, options] { return Up(context, *options); });
}

}  // namespace unreft::cli
