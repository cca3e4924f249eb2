#include "smp/desk/admission.h"

#include <fmt/format.h>

#include "base/format.h"

namespace unreft::smp {
namespace {

constexpr char kSharePids[] =
    ": they run in different pid namespaces. Let them share one (docker run --pid=host, or "
    "shareProcessNamespace: true in the Kubernetes pod), or start unreftd beside the trainer";

absl::Status AdmitBeside(NodeState& state, const RankSession& other, const Hello& hello) {
  if (other.life() == hello.life || other.attempt() < hello.attempt) return absl::OkStatus();
  absl::StatusOr<ProcessLife> now = state.seams.processes.Identify(other.life().pid);
  if (!now.ok() || *now != other.life()) return absl::OkStatus();  // it is dead
  if (other.attempt() > hello.attempt) {
    return absl::FailedPreconditionError(
        fmt::format("attempt {} is older than attempt {}, whose rank {} lives (pid {})",
                    hello.attempt, other.attempt(), other.rank(), other.life().pid));
  }
  if (other.world() != hello.world) {
    return absl::FailedPreconditionError(
        fmt::format("attempt {} has {} ranks by rank {}, {} ranks by rank {}", hello.attempt,
                    other.world(), other.rank(), hello.world, hello.rank));
  }
  if (other.rank() == hello.rank) {
    return absl::AlreadyExistsError(
        fmt::format("rank {} of attempt {} is pid {}, which lives: start each rank once, and give "
                    "each start of the job a number of its own (UNREFT_ATTEMPT)",
                    hello.rank, hello.attempt, other.life().pid));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Admit(NodeState& state, const Hello& hello, PeerIdentity peer) {
  if (hello.job != state.options.job) {
    return absl::PermissionDeniedError(
        fmt::format("this daemon serves job '{}', not '{}': give trainers UNREFT_JOB={}, or the "
                    "UNREFT_SOCKET of the daemon of their job",
                    state.options.job, hello.job, state.options.job));
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
  if (peer.pid == 0) {
    return absl::FailedPreconditionError(
        fmt::format("the trainer's pid is not visible to the daemon{}", kSharePids));
  }
  absl::StatusOr<ProcessLife> life = state.seams.processes.Identify(peer.pid);
  if (!life.ok() || *life != hello.life) {
    if (peer.pid != hello.life.pid) {
      return absl::PermissionDeniedError(
          fmt::format("the trainer calls itself pid {} and is pid {} to the daemon{}",
                      hello.life.pid, peer.pid, kSharePids));
    }
    return absl::PermissionDeniedError(
        fmt::format("pid {} says that it started at {} (ticks since boot), which it did not: it "
                    "runs in another time namespace, or is not who it says",
                    peer.pid, hello.life.start_time));
  }
  for (const auto& [rank, other] : state.sessions) {
    if (absl::Status status = AdmitBeside(state, *other, hello); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace unreft::smp
