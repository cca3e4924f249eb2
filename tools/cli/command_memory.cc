#include <fmt/format.h>

#include <algorithm>

#include "base/job_memory.h"
#include "tools/cli/commands.h"
#include "tools/cli/process_search.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

// 0 where the daemon is not seen, as in another pid namespace.
pid_t DaemonOf(const JobMemory& memory, const std::vector<pid_t>& daemons) {
  const std::string mapped = "/dev/shm" + SegmentPrefix(memory.job, memory.node);
  const auto found =
      std::ranges::find_if(daemons, [&](const pid_t pid) { return MapsFile(pid, mapped); });
  return found == daemons.end() ? 0 : *found;
}

int Memory(const Context& context) {
  ShmSegmentStore segments;
  const auto all = ListJobMemory(segments);
  if (!all.ok()) return Fail(context, all.status());
  nlohmann::json document{{"memory", nlohmann::json::array()}, {"bytes", 0}};
  uint64_t bytes = 0;
  Table table({"job", "node", "segments", "bytes", "unreftd"});
  const std::vector<pid_t> daemons = ProcessesNamed(kDaemonName);
  for (const JobMemory& memory : *all) {
    const pid_t pid = memory.is_served ? DaemonOf(memory, daemons) : 0;
    nlohmann::json entry{{"job", memory.job},           {"node", memory.node},
                         {"segments", memory.segments}, {"bytes", memory.bytes},
                         {"served", memory.is_served},  {"pid", nullptr}};
    if (pid != 0) entry["pid"] = pid;
    table.Add({memory.job, std::to_string(memory.node), std::to_string(memory.segments),
               HumanBytes(memory.bytes),
               !memory.is_served ? "none"
               : pid == 0        ? "serves it"
                                 : fmt::format("pid {}", pid)});
    document["memory"].push_back(std::move(entry));
    bytes += memory.bytes;
  }
  document["bytes"] = bytes;
  std::string text = table.empty() ? "no job holds shared memory of this host\n"
                                   : table.Text() + fmt::format("{} in all\n", HumanBytes(bytes));
  if (!std::ranges::all_of(*all, &JobMemory::is_served)) {
    text +=
        "what no unreftd serves stays for the next one of that job and node; `unreft down "
        "--job JOB --node NODE` frees it\n";
  }
  Print(context, document, text);
  return kExitOk;
}

}  // namespace

void AddMemory(CLI::App& app, Context& context) {
  CLI::App* command =
      AddCommand(app, "memory", "what all jobs hold of this host's shared memory, served or not");
  command->footer(
      "Of this user. What no unreftd serves stays for the next one of that job and node; `unreft "
      "down --job JOB --node NODE` frees it.");
  OnChosenForAll(command, context, [&context] { return Memory(context); });
}

}  // namespace unreft::cli
