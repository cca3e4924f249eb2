// What a durable copy says of its run, and by that which one a round restores when nothing in
// memory can be (docs/protocol.md, rule 34), and who loads what of it. Pure.
#pragma once

#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "smp/job/durable_copies.h"
#include "smp/job/facts.h"

namespace unreft::smp {

// Whether some copy is of the job as it is recorded, or of what came after that: where no commit is
// recorded, there was one.
bool AreCopiesOfJob(const Facts& facts);

// The job's timelines, with those that the newest copy knows of beyond them: of a store that went
// back, or has nothing, the job's copies may be newer than the records.
recovery::TimelineChain ChainForCopies(const Facts& facts);

// Of the versions on the job's timelines that were not given up, the newest; none when there is no
// such copy. Where no commit is recorded, FailedPrecondition with the list when the copies are of
// several runs.
absl::StatusOr<std::optional<DurableCopy>> ChooseCopy(const Facts& facts,
                                                      std::optional<Step> at_or_before);

// Each rank's slab where that rank asks to restore from, the others evenly.
std::map<NodeSlot, std::vector<Rank>> HomesForCopy(const Facts& facts, const DurableCopy& copy);

// Has the copy that is ordered name the run that it is of, and its timelines.
void NameRun(const TimelineRecord& timelines, CopyOrder& order);

// How much is lost with it, for people.
std::string DescribeLoss(const meta::JobState& records, const DurableCopy& copy);

// Why no copy is restored, for who is told that memory has nothing; empty where nobody has looked.
std::string DescribeCopies(const Facts& facts);

}  // namespace unreft::smp
