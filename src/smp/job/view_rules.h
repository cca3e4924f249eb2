// Which memory each node slot has, and which nodes protect each other (docs/protocol.md, rules 3
// and 19). Pure.
#pragma once

#include "smp/job/facts.h"
#include "smp/job/move.h"

namespace unreft::smp {

// Whether none of the nodes remembers anything of the job: whoever is late is waited for.
bool IsOfNewJob(const Reports& reports);

Move ViewRule(const Facts& facts);

}  // namespace unreft::smp
