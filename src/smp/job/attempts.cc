#include "smp/job/attempts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "smp/job/refusals.h"

namespace unreft::smp {
namespace {

std::string DescribeWanted(const AskingRank& asking) {
  return fmt::format("rank {} on node {} restores {}", asking.rank(), asking.slot(),
                     asking.has_at_or_before()
                         ? fmt::format("step {} or an earlier one", asking.at_or_before())
                         : "any step");
}

bool WantTheSame(const AskingRank& a, const AskingRank& b) {
  return a.has_at_or_before() == b.has_at_or_before() && a.at_or_before() == b.at_or_before();
}

// Of one attempt, as one node tells; the nodes before it have told already.
void Add(const NodeReport& report, NodeSlot slot, Asked& asked) {
  if (asked.world == 0) asked.world = report.world();
  for (const AskingRank& asking : report.asking()) {
    const auto [it, is_new] = asked.ranks.try_emplace(asking.rank(), asking);
    if (is_new) it->second.set_slot(slot.value);
    if (!asked.contradiction.empty()) continue;
    const AskingRank& first = asked.ranks.begin()->second;
    if (asked.world != report.world()) {
      asked.contradiction =
          fmt::format("rank {} on node {} is one of {} ranks, rank {} on node {} one of {}",
                      first.rank(), first.slot(), asked.world, asking.rank(), slot, report.world());
    } else if (!is_new) {
      asked.contradiction =
          fmt::format("rank {} asks on node {} (pid {}) and on node {} (pid {})", asking.rank(),
                      it->second.slot(), it->second.pid(), slot, asking.pid());
    } else if (!WantTheSame(first, it->second)) {
      asked.contradiction =
          fmt::format("{}, {}", DescribeWanted(first), DescribeWanted(it->second));
    }
  }
}

bool HasRanksOn(const DecisionRecord& decision, NodeSlot slot) {
  return std::ranges::any_of(
      decision.asked(), [slot](const AskingRank& asked) { return asked.slot() == slot.value; });
}

}  // namespace

std::vector<Asked> WhoAsk(const meta::JobState& records, const RollCall& roll) {
  std::map<uint64_t, Asked> by_attempt;
  const uint64_t round = records.timeline.value.decision().round();
  for (const auto& [slot, report] : roll.told()) {
    if (report->asking().empty() || report->round_applied() < round) continue;
    Asked& asked = by_attempt[report->attempt()];
    asked.attempt = report->attempt();
    Add(*report, slot, asked);
  }
  std::vector<Asked> all;
  for (auto& [attempt, asked] : by_attempt) all.push_back(std::move(asked));
  return all;
}

// Processes of two nodes may look like one life. A release that did not say where knew of none.
bool AreOneLife(const AskingRank& a, const AskingRank& b) {
  const bool may_be_there = !a.has_slot() || !b.has_slot() || a.slot() == b.slot();
  return may_be_there && a.pid() == b.pid() && a.start_time() == b.start_time();
}

bool IsOver(const DecisionRecord& in_force, const RollCall& roll) {
  // A leader of an earlier release did not write from where.
  if (!in_force.asked().empty() && !in_force.asked(0).has_slot()) return true;
  const bool has_one_ended = std::ranges::any_of(roll.told(), [&](const RollCall::Told& told) {
    return told.report->round_applied() >= in_force.round() &&
           told.report->lives_round() != in_force.round();
  });
  return has_one_ended || std::ranges::none_of(roll.members(), [&](const RollCall::Entry& entry) {
           return !entry.member->lost() && HasRanksOn(in_force, entry.slot);
         });
}

absl::Status CheckMayFollow(const DecisionRecord* in_force, const RollCall& roll,
                            const Asked& asked) {
  if (in_force == nullptr || in_force->asked().empty() || IsOver(*in_force, roll)) {
    return absl::OkStatus();
  }
  for (const auto& [rank, asking] : asked.ranks) {
    const bool asks_again = std::ranges::any_of(
        in_force->asked(), [&](const AskingRank& asked) { return AreOneLife(asked, asking); });
    if (asks_again) return absl::OkStatus();
  }
  const AskingRank& rank = in_force->asked(0);
  return AttemptLives(Attempt{asked.attempt}, Attempt{in_force->attempt()}, rank);
}

}  // namespace unreft::smp
