#include "tools/cli/memory_check.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <set>

#include "tools/cli/admin_client.h"

namespace unreft::cli {
namespace {

constexpr Milliseconds kPollInterval(500);
// A node that was replaced knows what it will hold once the others take it for the lost one's
// successor, seconds after its last sign of life.
constexpr Milliseconds kUntilKnown(15000);

bool IsToStop() {
  sigset_t waiting;
  if (sigpending(&waiting) != 0) return false;
  return sigismember(&waiting, SIGINT) == 1 || sigismember(&waiting, SIGTERM) == 1 ||
         sigismember(&waiting, SIGHUP) == 1;
}

std::string Describe(uint64_t node, const nlohmann::json& memory) {
  return fmt::format(
      "node {}: too little memory for what it must hold in the next attempt: {} bytes of shared "
      "memory needed, {} held now, {} allowed by {}; free some of it, give the node more, or take "
      "another node (unreft up --spares)",
      node, memory.value("needed", uint64_t{0}), memory.value("held", uint64_t{0}),
      memory.value("allowed", uint64_t{0}), memory.value("limit", "the host"));
}

}  // namespace

absl::Status WaitForMemory(
    const std::vector<Place>& nodes, Milliseconds timeout, Milliseconds patience,
    const std::function<void(const nlohmann::json& event, const std::string& text)>& tell) {
  const Deadline deadline(patience);
  const Deadline unknown(std::min(patience, kUntilKnown));
  std::set<uint64_t> told;
  while (true) {
    std::string shortage;
    bool is_known = true;
    for (uint64_t node = 0; node < nodes.size(); ++node) {
      const auto memory = AskDaemon(nodes[node], "memory", nlohmann::json::object(), timeout);
      if (!memory.ok()) continue;
      is_known &= memory->value("known", true);
      if (!memory->value("short", false)) continue;
      shortage = Describe(node, *memory);
      if (!told.insert(node).second) continue;
      nlohmann::json event = *memory;
      event["event"] = "memory-short";
      event["node"] = node;
      tell(event, fmt::format("{}; waiting {} s for it", shortage, patience.count() / 1000));
    }
    const bool is_settled = shortage.empty() && (is_known || unknown.passed());
    if (is_settled || IsToStop()) return absl::OkStatus();
    if (!shortage.empty() && deadline.passed()) {
      return absl::ResourceExhaustedError(
          fmt::format("no attempt is begun, and no restart is used up: {}", shortage));
    }
    poll(nullptr, 0, static_cast<int>(kPollInterval.count()));
  }
}

}  // namespace unreft::cli
