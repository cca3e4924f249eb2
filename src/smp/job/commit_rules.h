// What the leader commits, and what it gives up (docs/protocol.md, rules 15 and 17). Pure.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "base/ids.h"
#include "smp/job/facts.h"
#include "smp/job/move.h"

namespace unreft::smp {

// Of the newest timeline, beyond what is committed; those that are given up, too.
std::set<Version> VersionsUnderWay(const Facts& facts);

// Why the version is never committed; none while it may be.
std::optional<std::string> FailureOf(const Facts& facts, Version version);

// Why a version is given up by its deadline.
std::string NotCompletedInTime(const Facts& facts, Version version);

// Whether all nodes have told of all their ranks where these are: what all begin anew, the others
// are not there to capture.
bool AreAllRanksThere(const RollCall& roll);

Move AbandonRule(const Facts& facts);
Move CommitRule(const Facts& facts);

}  // namespace unreft::smp
