#include "smp/job/next_move.h"

#include <algorithm>
#include <optional>

#include "smp/job/commit_rules.h"
#include "smp/job/decision_rules.h"
#include "smp/job/pin_rules.h"
#include "smp/job/seed_rule.h"
#include "smp/job/view_rules.h"

namespace unreft::smp {
namespace {

using Rule = Move (*)(const Facts&);
constexpr Rule kRules[] = {&SeedRule,     &ViewRule,    &PinRule,
                           &DecisionRule, &AbandonRule, &CommitRule};

std::optional<Time> Earlier(std::optional<Time> a, std::optional<Time> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

}  // namespace

Move NextMove(const Facts& facts) {
  std::optional<Time> wake;
  Move move;
  for (const Rule rule : kRules) {
    move = rule(facts);
    wake = Earlier(wake, move.wake);
    if (move.IsFinal()) break;
  }
  move.wake = wake;
  return move;
}

}  // namespace unreft::smp
