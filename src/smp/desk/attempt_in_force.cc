#include "smp/desk/attempt_in_force.h"

#include <algorithm>

#include "smp/job/recorded.h"

namespace unreft::smp {
namespace {

ProcessLife LifeOf(const AskingRank& rank) { return {rank.pid(), rank.start_time()}; }

}  // namespace

AttemptInForce::AttemptInForce(const NodeState& state) : state_(state) {
  if (state_.kept != nullptr) decision_ = DecisionInForce(state_.kept->records().timeline.value);
}

bool AttemptInForce::Has(ProcessLife life) const {
  return decision_ != nullptr && std::ranges::any_of(decision_->asked(), [&](const auto& rank) {
           return IsHere(rank) && LifeOf(rank) == life;
         });
}

bool AttemptInForce::IsOver() const {
  if (decision_ == nullptr) return true;
  return state_.over_round == decision_->round() || !HaveAllLived();
}

uint64_t AttemptInForce::LivesRound() const {
  if (decision_ == nullptr) return 0;
  const bool all_live = std::ranges::all_of(decision_->asked(), [this](const AskingRank& rank) {
    return !IsHere(rank) || IsServed(rank) || Lives(rank);
  });
  return all_live ? decision_->round() : 0;
}

const AskingRank* AttemptInForce::FindInTheWayOf(const Hello& hello) const {
  if (IsOver()) return nullptr;
  const bool is_same = decision_->attempt() == hello.attempt.value &&
                       static_cast<uint64_t>(decision_->asked_size()) == hello.world;
  for (const AskingRank& rank : decision_->asked()) {
    if (!IsHere(rank) || LifeOf(rank) == hello.life) continue;
    if (!is_same || rank.rank() == hello.rank.value) return &rank;
  }
  return nullptr;
}

bool AttemptInForce::HaveAllLived() const {
  return std::ranges::all_of(
      decision_->asked(), [this](const AskingRank& rank) { return !IsHere(rank) || Lives(rank); });
}

// As soon as the daemon sees that the process has ended its session says so, or is over.
bool AttemptInForce::IsServed(const AskingRank& rank) const {
  const auto session = state_.sessions.find(Rank{rank.rank()});
  return session != state_.sessions.end() && session->second->life() == LifeOf(rank) &&
         !session->second->life_ended;
}

bool AttemptInForce::Lives(const AskingRank& rank) const {
  const absl::StatusOr<ProcessLife> now = state_.seams.processes.Identify(rank.pid());
  return now.ok() && *now == LifeOf(rank);
}

bool AttemptInForce::IsHere(const AskingRank& rank) const {
  return rank.has_slot() && NodeSlot{rank.slot()} == state_.options.node;
}

uint64_t RanksTraining(const NodeState& state) {
  const AttemptInForce in_force(state);
  const auto trains = [](const auto& of_rank) {
    return of_rank.second->timeline != Timeline{} && !of_rank.second->superseded;
  };
  const auto is_of_it = [&](ProcessLife life) { return in_force.Has(life); };
  return static_cast<uint64_t>(std::ranges::count_if(state.sessions, trains) +
                               std::ranges::count_if(state.lives_before, is_of_it));
}

}  // namespace unreft::smp
