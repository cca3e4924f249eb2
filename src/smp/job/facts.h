// Facts: all that the leader's rules decide by. A rule is a pure function of them (smp/job/move.h
// is what it returns); the Leader collects them for a turn and carries out what is decided.
#pragma once

#include <unreft/cluster.pb.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/executor.h"
#include "base/ids.h"
#include "meta/job_store.h"
#include "meta/record_copy.h"
#include "smp/core/node_options.h"
#include "smp/job/abandoning.h"
#include "smp/job/absences.h"
#include "smp/job/board.h"
#include "smp/job/layout_check.h"
#include "smp/job/manifest_cache.h"
#include "smp/job/roll_call.h"
#include "smp/job/round_copies.h"
#include "smp/job/round_reading.h"

namespace unreft::smp {

// What no report says of versions under way.
struct VersionNotes {
  std::map<Version, std::string> rejected;  // why, though all of it was there
  std::map<Version, Time> since;            // of those that are not given up
  std::set<Version> overdue;                // of these, those for longer than the deadline
};

// How giving up has gone.
struct AbandonNotes {
  std::optional<Time> last;
  uint64_t in_vain = 0;  // times, since the last commit
  // Since when some of the ranks that are to begin again are not there.
  std::optional<Time> ranks_away_since;
};

// Of a store that is not seeded.
struct SeedNotes {
  Time since;  // it was first read
  // Addresses of daemons that have not given the copy of the records that they say they have.
  std::set<std::string> deaf;
  // Of those whose copy is of another job than the records that there are. A release that does not
  // look says of it how new it is.
  std::set<std::string> strange;
};

// Of pins, beside their record.
struct PinNotes {
  const std::set<uint64_t>& over;  // whose time is up, by number
  const PinRequest* asked;         // the request that has waited longest; null when none waits
};

struct Facts {
  const meta::JobState& records;
  const NodeOptions& options;
  const Board& board;
  const RollCall& roll;  // of the records' view
  Time now;
  Step newest_step;  // of the ranks in the newest timeline, as is believed of them
  Timeline next_timeline;
  const Absences& absences;
  const meta::RecordCopy* kept;  // the newest that a node was asked for; null before
  const SeedNotes& seed;
  PinNotes pins;
  const std::map<uint64_t, Time>& asked_since;  // by attempt, before a round begins
  const RoundReading& reading;                  // in the round that is under way
  const RoundCopies& copies;                    // the same
  const VersionNotes& versions;
  const AbandonNotes& abandoning;
  const StepPace& pace;
  const ManifestCache& manifests;
  const LayoutCheck& layouts;
};

}  // namespace unreft::smp
