// What ranks that ask for a restore are told when there is none, why a version that all have sealed
// is given up, and why a daemon does not start: the same words, wherever it is found. Pure.
#pragma once

#include <absl/status/status.h>
#include <unreft/cluster.pb.h>

#include <initializer_list>
#include <set>
#include <string>
#include <string_view>

#include "base/executor.h"
#include "base/ids.h"

namespace unreft::smp {

// DeadlineExceeded: of `world` ranks only those `asked` within `wait`.
absl::Status RanksMissing(Attempt attempt, uint64_t world, const std::set<Rank>& asked,
                          Duration wait);

// InvalidArgument: they call themselves ranks of one attempt, and are not.
absl::Status NotOneAttempt(Attempt attempt, std::string_view contradiction);

// FailedPrecondition: all ranks of an attempt ask while all of another one live, of which that is
// one.
absl::Status AttemptLives(Attempt attempt, Attempt in_force, const AskingRank& rank);

// FailedPrecondition: what is stored was saved by another number of ranks.
absl::Status OtherWorld(Version version, uint64_t saved_by, Attempt attempt, uint64_t world,
                        NodeSlot earlier);

// DataLoss: something was committed and nothing is whole any more. `memory`: whose. `details`, as
// far as they are not empty: what is missing of which version, where it may be, what was found.
absl::Status Unrecoverable(Version committed, uint64_t world, std::string_view memory,
                           std::initializer_list<std::string_view> details);

// DataLoss: a durable copy of that version was to be restored.
absl::Status CopyNotRestored(std::string_view directory, Version version, std::string_view why);

// Whether there is a durable copy to go on with is not known: to begin would be a guess. The code
// of `why` is kept.
absl::Status CopiesNotRead(const absl::Status& why);
// The same, where `leader`, which would look for one, does not know where, and `other` does.
absl::Status CopiesNotLookedFor(NodeSlot leader, NodeSlot other);

// Neither the record store nor any memory says what was committed: to begin would be a guess.
// `records`: what is the matter with the store; its code is kept.
absl::Status CommitsUnknown(const absl::Status& records);

inline constexpr std::string_view kOfNoUse =
    "a newer one is committed, or another attempt of the job has begun";

inline constexpr std::string_view kReplicasNotCompared =
    "its replicas were not compared, as those of a timeline's first must be";

// Why a version is given up at its deadline: which of `world` ranks (0: not known, as none has)
// have not completed it; all have: some node has not protected it.
std::string NotCompletedBy(const std::set<Rank>& completed, uint64_t world, Duration deadline);

std::string OverruledBy(Version committed);

}  // namespace unreft::smp
