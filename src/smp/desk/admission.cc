#include "smp/desk/admission.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/format.h"
#include "base/text.h"
#include "smp/desk/attempt_in_force.h"

namespace unreft::smp {
namespace {

// As many as the name of a job may have.
constexpr size_t kShownMax = 64;

bool Lives(NodeState& state, const RankSession& session) {
  absl::StatusOr<ProcessLife> now = state.seams.processes.Identify(session.life().pid);
  return now.ok() && *now == session.life();
}

// Whoever has not been decided for makes room for another attempt: nothing of it is lost.
bool WaitsForADecision(const RankSession& session) {
  return !session.superseded && session.timeline == Timeline{};
}

// One of the same attempt.
absl::Status AdmitBeside(NodeState& state, const RankSession& other, const Hello& hello) {
  const bool is_another = other.life() != hello.life && other.attempt() == hello.attempt;
  if (!is_another || !Lives(state, other)) return absl::OkStatus();
  // A number that came before, of an attempt that is over.
  const bool is_over = !WaitsForADecision(other) && AttemptInForce(state).IsOver();
  if (other.superseded || is_over) return absl::OkStatus();
  if (other.world() != hello.world) {
    return absl::FailedPreconditionError(
        fmt::format("attempt {} has {} ranks by rank {}, {} ranks by rank {}", hello.attempt,
                    other.world(), other.rank(), hello.world, hello.rank));
  }
  if (other.rank() == hello.rank) {
    return absl::AlreadyExistsError(
        fmt::format("rank {} of attempt {} is pid {}, which lives: one launcher at a time trains a "
                    "job, and starts each rank once; another may begin once that process has ended",
                    hello.rank, hello.attempt, other.life().pid));
  }
  return absl::OkStatus();
}

// One for which a decision was made that is not the last one.
bool IsOfThePast(const NodeState& state, const Hello& hello) {
  return hello.timeline != Timeline{0} && hello.timeline < state.record->chain().newest();
}

absl::Status AdmitAfterOthers(NodeState& state, const Hello& hello) {
  const AttemptInForce in_force(state);
  if (in_force.decision() == nullptr) return absl::OkStatus();
  const Attempt attempt{in_force.decision()->attempt()};
  const bool is_of_it = in_force.Has(hello.life);
  const bool others_wait = std::ranges::any_of(state.sessions, [&](const auto& of_rank) {
    const RankSession& other = *of_rank.second;
    return other.attempt() != hello.attempt && WaitsForADecision(other) && Lives(state, other);
  });
  const bool gives_way = is_of_it && in_force.IsOver() && others_wait;
  if (gives_way || (!is_of_it && IsOfThePast(state, hello))) {
    return absl::AbortedError(fmt::format(
        "attempt {} is over and another one has begun: end rank {} (pid {}), which trains on "
        "unprotected",
        hello.attempt, hello.rank, hello.life.pid));
  }
  if (is_of_it) return absl::OkStatus();
  const AskingRank* other = in_force.FindInTheWayOf(hello);
  if (other == nullptr) return absl::OkStatus();
  return absl::AlreadyExistsError(fmt::format(
      "all ranks of attempt {} live, as rank {} (pid {}): one launcher at a time trains "
      "a job; attempt {} may begin once one of them has ended",
      attempt, other->rank(), other->pid(), hello.attempt));
}

// Who the process is that has connected, and says that it is the one of `hello`.
absl::StatusOr<ProcessLife> Identify(NodeState& state, const Hello& hello,
                                     const PeerIdentity& peer) {
  if (peer.pid == 0) {
    return absl::FailedPreconditionError(
        "the trainer's pid is not visible to the daemon, which runs in a pid namespace that does "
        "not have it: give the daemon that of the host (hostPID: true in a Kubernetes pod, docker "
        "run --pid=host), or start it in the trainer's (shareProcessNamespace: true)");
  }
  const absl::StatusOr<PeerLife> known = state.seams.processes.IdentifyPeer(peer);
  if (!known.ok()) return known.status();
  if (known->own_pid != hello.life.pid) {
    return absl::PermissionDeniedError(
        fmt::format("the trainer calls itself pid {}, and pid {} has made its connection: each "
                    "process opens its own client, also one that was forked",
                    hello.life.pid, known->own_pid));
  }
  if (known->life.start_time != hello.life.start_time) {
    return absl::PermissionDeniedError(
        fmt::format("pid {} says that it started at {} (ticks since boot), which it did not: it "
                    "runs in another time namespace, or is not who it says",
                    peer.pid, hello.life.start_time));
  }
  return known->life;
}

}  // namespace

absl::Status Admit(NodeState& state, Hello& hello, const PeerIdentity& peer) {
  // Anybody may have sent it, and as many bytes of it as a frame may have.
  if (hello.job != state.options.job) {
    return absl::PermissionDeniedError(
        fmt::format("this daemon serves job '{}', not '{}': give trainers UNREFT_JOB={}, or the "
                    "UNREFT_SOCKET of the daemon of their job",
                    state.options.job, CleanText(hello.job, kShownMax), state.options.job));
  }
  if (hello.rank.value >= hello.world) {
    return absl::InvalidArgumentError(fmt::format("rank {} of {} ranks: needed a rank below {}",
                                                  hello.rank, hello.world, hello.world));
  }
  if (hello.world > state.options.ranks_max) {
    return absl::InvalidArgumentError(
        fmt::format("rank {} of {} ranks: this daemon serves jobs of at most {}; start it, on all "
                    "nodes, with --ranks-max {}",
                    hello.rank, hello.world, state.options.ranks_max, hello.world));
  }
  const absl::StatusOr<ProcessLife> life = Identify(state, hello, peer);
  if (!life.ok()) return life.status();
  hello.life = *life;
  for (const auto& [rank, other] : state.sessions) {
    if (absl::Status status = AdmitBeside(state, *other, hello); !status.ok()) return status;
  }
  return AdmitAfterOthers(state, hello);
}

}  // namespace unreft::smp
