// How a meta store that knows nothing yet, or has forgotten, gets the job's records
// (docs/protocol.md, rule 3). Pure.
#pragma once

#include "smp/job/facts.h"
#include "smp/job/move.h"

namespace unreft::smp {

// Of a store that is not seeded: whether what is as new as `kept` is newer than its records. These
// are of the epoch that its seed names, whatever its id is by now.
bool IsBehind(const meta::JobState& records, const meta::Stamp& kept);

// A store is believed once its seed names it. That is written with the newest records that any node
// has kept, once all of them that live have told, with the next view and an epoch that nobody has
// kept anything of. What a store of that id has already, and nobody knows better, stays.
Move SeedRule(const Facts& facts);

}  // namespace unreft::smp
