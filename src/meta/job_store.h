// JobStore: what the nodes of a job agree on, read from the meta store and kept up to date by a
// watch; and the leader's way to change it (docs/formats/meta_keys.md).
//
// One record per key: "store", "settings", "leader", "node/SLOT", "spare/PLACE", "waiting/PLACE",
// "refused/PLACE", "view", "timeline", "commit", "abandoned", "pins", "seed", all below
// "unreft/JOB/". Only the leader writes the last six, in Txns that compare its own key, the
// settings and all six records with what it has seen (docs/protocol.md, rule 20): so a leader that
// was replaced changes nothing, nor one that is started otherwise, and an unknown outcome is read
// back by the watch.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <unreft/cluster.pb.h>

#include <compare>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "base/random.h"
#include "meta/kv.h"
#include "meta/leased_key.h"

namespace unreft::meta {

inline constexpr uint32_t kStoreFormat = 1;
inline constexpr uint32_t kStoreMinReader = 1;

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
// what the nodes have kept; the sequence is the newest revision of the records in that store.
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
  std::map<NodeSlot, Revision> present_modified;
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
  // Of what is not seeded the epoch is 0.
  Stamp stamp() const;
};

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

// Single-threaded on its executor.
class JobStore {
 public:
  // `on_change`: the state is another; in a turn of its own. `kv`, `log` outlive this.
  JobStore(Kv& kv, Executor& executor, Random& random, Log& log, std::string job,
           absl::AnyInvocable<void()> on_change);
  ~JobStore();

  // Before Start: records of that store, as new as that, are known to have been. If it has older
  // ones now it went back, and so has one that is seeded with an earlier epoch.
  void Expect(std::string store_id, Stamp newest);
  // Reads and watches from now on, until destroyed, however often the store goes away.
  void Start();

  // Somebody knows another store than we: ours may have changed unseen.
  void ReadAgain();

  const JobState& state() const { return state_; }
  // Read at least once, the store is of a format that we know, and so is each record in it, now or
  // when it last was good. A store that went back, or whose id was given up, gets a new id before
  // anything in it is believed (docs/protocol.md, rule 3).
  bool ready() const { return !state_.store_id.empty() && unread_.empty(); }
  // Why the store cannot be used, when that is so; ok before it was read.
  absl::Status status() const;

  std::string LeaderKey() const { return prefix_ + "leader"; }
  std::string PresenceKey(NodeSlot slot) const;
  std::string SpareKey(uint64_t place) const;
  std::string WaitingKey(uint64_t place) const;
  // Below which all keys of the job are.
  const std::string& prefix() const { return prefix_; }

  // Whether the leader key is that of the caller, by what was read last.
  bool IsLedBy(const HeldKey& leadership) const {
    return leadership == HeldKey{state_.leader_created, state_.leader_value};
  }

  // One Txn, guarded by the caller's leadership (its leader key as it has written it) and by the
  // settings and all six records being as in state(). Aborted when the guard does not hold, naming
  // nothing more than that: the watch brings what is there now. Unavailable, DeadlineExceeded: the
  // outcome is unknown. InvalidArgument: readers would not take such a record (CheckRecord), and
  // nothing is written. When `done` gets ok, state() has the change already.
  void Write(const HeldKey& leadership, JobChange change,
             absl::AnyInvocable<void(absl::Status)> done);

 private:
  void Read();
  // `seen`: what was known of the shared records when the store was asked.
  void OnRead(absl::StatusOr<TxnResult> result, const std::map<std::string, Revision>& seen);
  std::map<std::string, Revision> SharedRevisions() const;
  // A new id; `seen`: the revision of the present one, 0 when there is none.
  void MakeStore(Revision seen);
  bool WentBack(const KeyValue& store, const TxnResult& read,
                const std::map<std::string, Revision>& seen) const;
  bool IsOlderThanExpected(const std::string& store_id, const std::vector<KeyValue>& all) const;
  // Of a key: it gives the store another id, as one that others saw go back.
  bool IsOfAnother(const KeyValue& kv, const std::string& store_id) const;
  void Watch();
  void Refresh();
  void OnEvents(const std::vector<WatchEvent>& events);
  void Again(Duration delay);
  void Apply(const KeyValue& kv);
  void Forget(const std::string& key);
  void ForgetPresence(NodeSlot slot);
  void AddTakeover(const Takeover& takeover, Txn& txn) const;
  void ApplyStore(const std::string& value);
  template <typename Message>
  void Parse(const KeyValue& kv, Stored<Message>& into);
  template <typename Message, typename Records>
  void ParseShared(const KeyValue& kv, Shared<Message> Records::* record);
  void Changed();

  Kv& kv_;
  Executor& executor_;
  Random& random_;
  Log& log_;
  const std::string prefix_;
  absl::AnyInvocable<void()> on_change_;
  JobState state_;
  std::unique_ptr<JobState> before_;           // while all is read anew: what was known
  std::map<std::string, std::string> unread_;  // shared records without a good value: key and why
  std::deque<std::string> former_ids_;         // the last that the store had
  std::string expected_store_;
  Stamp expected_;
  absl::Status status_;
  WatchId watch_ = WatchId::kNone;
  TimerId again_ = TimerId::kNone;
  TimerId refresh_ = TimerId::kNone;
  bool change_told_ = true;
  bool went_back_ = false;  // says a watch, and it was not read since
  Lifetime lifetime_;
};

}  // namespace unreft::meta
