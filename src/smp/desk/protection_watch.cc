#include "smp/desk/protection_watch.h"

#include <absl/strings/str_join.h>
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/format.h"

namespace unreft::smp {
namespace {

constexpr Duration kLookEvery = std::chrono::seconds(5);
// Ranks do not come, register and capture at the same moment.
constexpr Duration kObstacleAfter = std::chrono::seconds(10);
constexpr Duration kWarnAgainMax = std::chrono::hours(1);
constexpr size_t kRanksNamed = 4;
constexpr char kAdvice[] =
    "Training goes on without it; `unreft status` shows what each rank captures and what it lacks";

uint64_t WorldOf(const NodeState& state) {
  return state.sessions.empty() ? 0 : state.sessions.begin()->second->world();
}

bool AnyConnected(const NodeState& state) {
  for (const auto& [rank, session] : state.sessions) {
    if (session->connected()) return true;
  }
  return false;
}

// Why nothing can be committed that needs this rank; empty when nothing is known.
std::string Lacks(const RankSession& session, Step waiting) {
  const int64_t pid = session.life().pid;
  if (!session.connected()) return fmt::format("its process (pid {}) is not connected", pid);
  if (!session.registration) {
    return fmt::format("it is connected (pid {}) but has not registered its tensors", pid);
  }
  if (!session.capture_status().ok()) return std::string(session.capture_status().message());
  if (session.newest_step < waiting) {
    return fmt::format("it (pid {}) has called for no snapshot since step {}", pid,
                       session.newest_step);
  }
  return {};
}

// What this node sees of its own: whether it counts, and what its ranks have not done.
std::string OwnObstacle(const NodeState& state) {
  const ProtectionClock& clock = state.account.clock();
  const Time now = state.seams.executor.Now();
  if (!clock.waiting() || clock.WaitingFor(now) < kObstacleAfter) return {};
  // No leader hears of the ranks of a node that does not count, whatever it still waits for.
  if (!state.standing.problem.empty()) {
    return fmt::format("node {}: {}", state.options.node, state.standing.problem);
  }
  const uint64_t world = WorldOf(state);
  std::vector<std::string> lacking;
  for (uint64_t rank = 0; rank < world; ++rank) {
    const auto found = state.sessions.find(Rank{rank});
    const bool is_here = found != state.sessions.end();
    // Ranks of other nodes are in their daemons' words.
    if (!is_here && state.options.nodes > 1) continue;
    const std::string what =
        is_here ? Lacks(*found->second, *clock.waiting()) : "its process has ended or never came";
    if (!what.empty()) lacking.push_back(fmt::format("rank {} of {}: {}", rank, world, what));
  }
  if (lacking.empty()) return {};
  const size_t more = lacking.size() > kRanksNamed ? lacking.size() - kRanksNamed : 0;
  lacking.resize(lacking.size() - more);
  return fmt::format("a version needs every rank, and {}{}", absl::StrJoin(lacking, "; "),
                     more > 0 ? fmt::format("; and {} ranks more", more) : "");
}

}  // namespace

std::string FindObstacle(const NodeState& state) {
  if (state.standing.is_out) {
    return fmt::format("node {}: {}", state.options.node, state.standing.problem);
  }
  std::string own = OwnObstacle(state);
  // The leader knows of all nodes; of a node that is alone it knows less than the node itself.
  const bool is_alone = state.options.nodes == 1;
  if (state.job_obstacle.empty() || (is_alone && !own.empty())) return own;
  return state.job_obstacle;
}

JobProtection ProtectionOf(const NodeState& state) {
  JobProtection protection;
  if (!AnyConnected(state)) {
    const bool was = state.ranks_came || state.record->committed_world() != 0;
    protection.phase = was ? JobPhase::kEnded : JobPhase::kNotBegun;
    protection.why_not = was ? "no rank is connected: the job has ended, or its next attempt has "
                               "not begun"
                             : "the job has not begun: no rank has connected yet";
    return protection;
  }
  const Time now = state.seams.executor.Now();
  protection.phase = JobPhase::kRunning;
  protection.protecting = state.account.clock().ProtectingAt(now);
  protection.since_commit = state.account.clock().SinceCommit(now);
  protection.why_not = state.account.WhyNot(FindObstacle(state), kAdvice, now);
  return protection;
}

std::string_view ProtectionName(const JobProtection& protection) {
  switch (protection.phase) {
    case JobPhase::kNotBegun:
      return "not begun";
    case JobPhase::kEnded:
      return "ended";
    case JobPhase::kRunning:
      return protection.protecting ? "protected" : "unprotected";
  }
  return "";
}

ProtectionWatch::~ProtectionWatch() { state_.seams.executor.Cancel(timer_); }

void ProtectionWatch::Wake() {
  if (timer_ != TimerId::kNone || !AnyConnected(state_)) return;
  timer_ = state_.seams.executor.After(kLookEvery, [this] {
    timer_ = TimerId::kNone;
    Look();
    Wake();
  });
}

void ProtectionWatch::Greet(RankSession& session) {
  if (!obstacle_.empty()) session.Send(Obstacle{obstacle_});
}

void ProtectionWatch::Look() {
  const Time now = state_.seams.executor.Now();
  const JobProtection protection = ProtectionOf(state_);
  if (protection.phase != JobPhase::kRunning) {
    lost_ = false;
    obstacle_.clear();
    return;
  }
  std::string obstacle = FindObstacle(state_);
  if (obstacle != obstacle_) {
    obstacle_ = std::move(obstacle);
    state_.SendToAll(Obstacle{obstacle_});
  }
  const ProtectionClock& clock = state_.account.clock();
  if (protection.protecting) {
    if (!std::exchange(lost_, false)) return;
    state_.seams.log.Info("protected again: step {} is committed, after {} without protection",
                          *clock.committed(), ForPeople(now - lost_at_));
    return;
  }
  // A job that has not committed anything yet may still be preparing its memory.
  if (!lost_ && !clock.committed() && clock.WaitingFor(now) < clock.limit()) return;
  if (!lost_) {
    lost_ = true;
    lost_at_ = now;
    warn_again_after_ = clock.limit();
  } else if (now - warned_at_ < warn_again_after_) {
    return;
  } else {
    warn_again_after_ = std::min(2 * warn_again_after_, kWarnAgainMax);
  }
  warned_at_ = now;
  state_.seams.log.Warn("not protected: {}", protection.why_not);
}

}  // namespace unreft::smp
