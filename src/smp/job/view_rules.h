// Which memory each node slot has, and which nodes protect each other (docs/protocol.md, rules 3
// and 19). Pure.
#pragma once

#include "smp/job/facts.h"
#include "smp/job/move.h"

namespace unreft::smp {

// Whether none of the nodes knows anything of the job: whoever is late is waited for, as long as
// fewer are there than it may begin with.
bool IsOfNewJob(const Reports& reports);

// Of a store that is seeded: who has come, is lost, or has another's slot.
Move ViewRule(const Facts& facts);

// For a store that is not (smp/job/seed_rule.h); they wait, or write the view. The first one of a
// job, once all its nodes are there and have told; or as many as it may begin with, and the others'
// grace is over.
Move FirstView(const Facts& facts);
// The next after one that nodes have kept, once each of its members has told or is lost.
Move ViewAgain(const Facts& facts, const ViewRecord& kept);

}  // namespace unreft::smp
