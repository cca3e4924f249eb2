// What the next commit waits for, in words. Pure.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "smp/job/facts.h"

namespace unreft::smp {

// All that stands in the way of the next commit, the nearest cause first: a store that takes
// nothing (`last_write` is what became of the last), nodes that are not there, ranks that are
// nowhere or far apart, and what the oldest version lacks that may still be committed. Empty when
// nothing does.
std::string DescribeObstacles(const Facts& facts, const absl::Status& last_write);

}  // namespace unreft::smp
