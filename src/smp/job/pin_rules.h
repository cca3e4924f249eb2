// Which versions the leader keeps because somebody has pinned them (docs/design_notes.md, "A
// version that is kept"). Pure.
#pragma once

#include "smp/job/facts.h"
#include "smp/job/move.h"

namespace unreft::smp {

// One Txn at a time, as for all that the leader writes: so no newer version is committed, and none
// retired for it, between the look at the record and the pin.
Move PinRule(const Facts& facts);

}  // namespace unreft::smp
