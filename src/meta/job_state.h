// What the records in the meta store say, as they were read last, and what one Txn of the leader
// changes of it. Plain values: JobStore reads and writes them.
#pragma once

#include <absl/container/btree_map.h>
#include <absl/status/status.h>
#include <unreft/cluster.pb.h>

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "meta/kv.h"

namespace unreft::meta {

// A record, and the revision that wrote it; 0 = there is none.
template <typename Message>
struct Stored {
  Message value;
  Revision modified;
  bool exists() const { return modified.value != 0; }
};

// One that is kept whole on each node: as the store has it, byte for byte.
template <typename Message>
struct Shared : Stored<Message> {
  std::string bytes;
};

// How new the shared records are. The epoch is another one each time that a store is written from
// what the nodes have kept, and from a new job's first decision on; the sequence is the newest
// revision of the records in that store.
struct Stamp {
  uint64_t epoch = 0;
  uint64_t sequence = 0;
  auto operator<=>(const Stamp&) const = default;
};

// What the job has decided, of which each node keeps a copy.
struct JobRecords {
  Shared<ViewRecord> view;
  Shared<TimelineRecord> timeline;
  Shared<CommitRecord> commit;
  Shared<AbandonRecord> abandoned;
  Shared<PinRecord> pins;
};

struct JobState : JobRecords {
  Revision revision;     // up to which it was read; 0 = not read yet
  std::string store_id;  // 16 bytes; empty = not read yet
  Stored<PresenceRecord> leader;
  Revision leader_created;
  std::string leader_value;  // of its key
  std::map<NodeSlot, PresenceRecord> present;
  absl::btree_map<NodeSlot, Revision> present_modified;  // read through at every change
  std::set<NodeSlot> leaving;  // not present: its daemon has said so, and its lease runs yet
  std::map<uint64_t, Stored<SpareRecord>> spares;  // by place
  std::map<uint64_t, Stored<WaitingRecord>> waiting;
  Stored<SettingsRecord> settings;
  std::map<uint64_t, Stored<RefusedRecord>> refused;
  Shared<SeedRecord> seed;

  // Whether a leader has made sure that nothing which a node has kept is newer (docs/protocol.md,
  // rule 3).
  bool IsSeeded() const {
    return seed.exists() && seed.value.store_id() == store_id && view.exists();
  }
  // Null when nobody is present in that slot.
  const PresenceRecord* PresenceOf(NodeSlot slot) const {
    const auto found = present.find(slot);
    return found == present.end() ? nullptr : &found->second;
  }
  // Of what is not seeded the epoch is 0.
  Stamp stamp() const;
};

// Whether what a store has decided is of another job than what a node knows. Not, where either
// knows of no decision.
bool IsOfAnotherJob(const TimelineRecord& decided, const TimelineRecord& known);

// A spare that becomes a node slot's daemon, or one that waits for the slot which was its own: its
// presence moves there, lease and all.
struct Takeover {
  uint64_t place = 0;
  NodeSlot slot;
  bool returns = false;  // from "waiting/PLACE", to where another is present
};

// What one Txn of the leader writes; what is absent stays as it is.
struct JobChange {
  std::optional<ViewRecord> view;
  std::optional<TimelineRecord> timeline;
  std::optional<CommitRecord> commit;
  std::optional<AbandonRecord> abandoned;
  std::optional<PinRecord> pins;
  std::optional<SeedRecord> seed;
  // Written only while that daemon waits, and nobody is present in the slot of a spare, or who was
  // in that of one that returns.
  std::optional<Takeover> takeover;
  // Written only while none of them is present: our watch may be behind.
  std::vector<NodeSlot> absent;
};

// InvalidArgument, naming the record, when readers would not take one of them (CheckRecord):
// everybody, its writer too, would stay with what was there before.
absl::Status CheckChange(const JobChange& change);

// Calls visit(name, &JobState::record, &JobChange::record) for each record that only the leader
// writes; its key is the name below the job's prefix.
template <typename Visit>
void ForEachShared(Visit visit) {
  visit("view", &JobState::view, &JobChange::view);
  visit("timeline", &JobState::timeline, &JobChange::timeline);
  visit("commit", &JobState::commit, &JobChange::commit);
  visit("abandoned", &JobState::abandoned, &JobChange::abandoned);
  visit("pins", &JobState::pins, &JobChange::pins);
  visit("seed", &JobState::seed, &JobChange::seed);
}

}  // namespace unreft::meta
