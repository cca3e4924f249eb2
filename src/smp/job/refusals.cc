#include "smp/job/refusals.h"

#include <fmt/format.h>

#include "base/format.h"
#include "base/text.h"
#include "recovery/missing_ranks.h"

namespace unreft::smp {

absl::Status RanksMissing(Attempt attempt, uint64_t world, const std::set<Rank>& asked,
                          Duration wait) {
  return absl::DeadlineExceededError(fmt::format(
      "attempt {}: of {} ranks, {} asked for the restore within {} s; missing: rank {}", attempt,
      world, asked.size(), std::chrono::duration_cast<std::chrono::seconds>(wait).count(),
      recovery::FindMissing(asked, world).Text()));
}

absl::Status NotOneAttempt(Attempt attempt, std::string_view contradiction) {
  return absl::InvalidArgumentError(fmt::format(
      "attempt {}: {}: all ranks of an attempt have the same number of ranks and each its own, "
      "ask for the same newest step, and each start of the job has another attempt's number "
      "(UNREFT_ATTEMPT)",
      attempt, contradiction));
}

absl::Status AttemptLives(Attempt attempt, Attempt in_force, const AskingRank& rank) {
  return absl::FailedPreconditionError(
      fmt::format("attempt {} restores nothing while all ranks of attempt {} live, as rank {} (pid "
                  "{} on node {}): one launcher at a time trains a job; end the other one first",
                  attempt, in_force, rank.rank(), rank.pid(), rank.slot()));
}

absl::Status OtherWorld(Version version, uint64_t saved_by, Attempt attempt, uint64_t world,
                        NodeSlot earlier) {
  return absl::FailedPreconditionError(fmt::format(
      "version {} was saved by {} ranks, attempt {} has {}, and the daemon of node {} is of an "
      "earlier release, which restores no other number of ranks: start the present one in its "
      "place, or restart with {} ranks",
      version, saved_by, attempt, world, earlier, saved_by));
}

absl::Status Unrecoverable(Version committed, uint64_t world, std::string_view memory,
                           std::initializer_list<std::string_view> details) {
  std::string message = fmt::format(
      "unrecoverable: version {} of {} ranks was committed, and no version is whole in {} memory",
      committed, world, memory);
  for (const std::string_view detail : details) {
    if (!detail.empty()) fmt::format_to(std::back_inserter(message), ": {}", detail);
  }
  return absl::DataLossError(message + "; 'unreft fresh-start' gives the state up");
}

absl::Status CopyNotRestored(std::string_view directory, Version version, std::string_view why) {
  return absl::DataLossError(
      fmt::format("the durable copy {} of version {} is not restored: {}; start again, or give it "
                  "up with 'unreft fresh-start'",
                  CleanText(directory, kTextBytesMax), version, why));
}

absl::Status CopiesNotLookedFor(NodeSlot leader, NodeSlot other) {
  return absl::FailedPreconditionError(fmt::format(
      "nothing is whole in memory, and node {}, which leads, was started without the --export-dir "
      "that node {} has, where a durable copy may be: start the daemon of node {} with it, or "
      "begin without any by 'unreft fresh-start'",
      leader, other, leader));
}

absl::Status CopiesNotRead(const absl::Status& why) {
  return absl::Status(
      why.code(),
      fmt::format(
          "nothing is whole in memory, and no durable copy could be loaded: {}; start again "
          "once that is mended, or give the state up with 'unreft fresh-start'",
          std::string(why.message())));
}

absl::Status CommitsUnknown(const absl::Status& records) {
  return absl::Status(
      records.code(),
      fmt::format("{}; and no memory of this boot says what was committed. Mend the disk; if there "
                  "is nothing to go back to, remove the records",
                  records.message()));
}

std::string NotCompletedBy(const std::set<Rank>& completed, uint64_t world, Duration deadline) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(deadline).count();
  if (completed.empty()) return fmt::format("no rank completed it within {} s", seconds);
  const recovery::MissingRanks missing = recovery::FindMissing(completed, world);
  if (missing.none()) {
    return fmt::format("all {} ranks completed it, but some node did not protect it within {} s",
                       world, seconds);
  }
  return fmt::format("rank {} of {} did not complete it within {} s", missing.Text(), world,
                     seconds);
}

std::string OverruledBy(Version committed) { return fmt::format("{} was committed", committed); }

}  // namespace unreft::smp
