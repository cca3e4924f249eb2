// The copies in a directory, each in a directory of its own: which there are, and which of them go
// when a newer one is complete.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "durable/cold_store.h"
#include "durable/copy_record.h"

namespace unreft::durable {

struct ShelvedCopy {
  std::string name;  // of its directory
  CopyOrder order;
  bool is_complete = false;
};

// Those of that job from which it can go on, the newest first, by when they were ordered. What is
// no copy, has the weights alone, or is of another job, is left out; so is an order that is
// damaged, since nobody knows whose copy that was.
absl::StatusOr<std::vector<ShelvedCopy>> ListCopies(ColdStore& shelf, std::string_view job);

// The directories of copies that look complete, and whose orders cannot be read.
absl::StatusOr<std::vector<std::string>> UnreadableCopies(ColdStore& shelf);

// Takes a copy away: first what makes it one.
absl::Status RemoveCopy(ColdStore& shelf, const std::string& name);

// Of the copies that the job has written without being asked, removes all complete ones but the
// `keep` newest, and those that were begun before the newest complete one and never completed;
// never the one of that id. Their names, also of those removed before a failure.
struct PrunedCopies {
  std::vector<std::string> removed;
  absl::Status status;
};
PrunedCopies PruneCopies(ColdStore& shelf, std::string_view job, std::string_view id,
                         uint64_t keep);
// Of the same, removes those that were never completed. For who is about to write one: nobody else
// does, and what a leader that died has left is not to take its room.
PrunedCopies RemoveUnfinished(ColdStore& shelf, std::string_view job);

// When the next of them is ordered, by a clock that says `now_ms`: later than all that are there.
absl::StatusOr<uint64_t> NextWrittenMs(ColdStore& shelf, std::string_view job, uint64_t now_ms);

}  // namespace unreft::durable
