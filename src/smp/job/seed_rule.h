// What the leader writes again because the meta store has lost it (docs/protocol.md, rule 3). Pure.
#pragma once

#include "smp/job/facts.h"
#include "smp/job/move.h"

namespace unreft::smp {

// A store that was lost or rolled back knows less than the nodes remember: what they know is
// written again, once all of them that live have told, before anything is decided on it.
Move SeedRule(const Facts& facts);

}  // namespace unreft::smp
