// What the leader does next: the first of its rules that has something to do (smp/job/move.h).
// Pure.
#pragma once

#include "smp/job/facts.h"
#include "smp/job/move.h"

namespace unreft::smp {

// What the store has lost, view, pins, decision, giving up, commit: in this order, since each
// relies on what those before it have written.
Move NextMove(const Facts& facts);

}  // namespace unreft::smp
