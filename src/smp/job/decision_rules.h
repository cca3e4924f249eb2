// What the leader decides that is restored, and when (docs/protocol.md, rule 21). Pure.
#pragma once

#include "smp/job/facts.h"
#include "smp/job/move.h"

namespace unreft::smp {

Move DecisionRule(const Facts& facts);

}  // namespace unreft::smp
