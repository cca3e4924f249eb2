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

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "base/random.h"
#include "meta/job_state.h"
#include "meta/kv.h"
#include "meta/leased_key.h"

namespace unreft::meta {

inline constexpr uint32_t kStoreFormat = 1;
inline constexpr uint32_t kStoreMinReader = 1;

// Single-threaded on its executor.
class JobStore {
 public:
  // `on_change`: the state is another; in a turn of its own. `kv`, `log` outlive this.
  JobStore(Kv& kv, Executor& executor, Random& random, Log& log, std::string job,
           absl::AnyInvocable<void()> on_change);
  ~JobStore();

  // Before Start: records of that store, as new as that, are known to have been. If it has older
  // ones now it went back, and so has one that is seeded with an earlier epoch, unless what it has
  // decided is of another job.
  void Expect(std::string store_id, Stamp newest, TimelineRecord timelines);
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
  // The bytes of the records that a Txn writes, by name.
  using Written = std::map<std::string_view, std::string>;

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
  void ReadAfter(Duration delay);
  void OnEvents(const std::vector<WatchEvent>& events);
  void Again(Duration delay);
  void Apply(const KeyValue& kv);
  void Forget(const std::string& key);
  void ForgetPresence(NodeSlot slot);
  void AddTakeover(const Takeover& takeover, Txn& txn) const;
  // What a Txn has written, at that revision: its event may still be to come.
  void Take(JobChange change, Written written, Revision revision);
  void ApplyStore(const std::string& value);
  template <typename Message>
  void Parse(const KeyValue& kv, Stored<Message>& into);
  template <typename Message, typename Records>
  void ParseShared(const KeyValue& kv, Shared<Message> Records::* record);
  void Changed();
  // What another job had is expected of this one no longer.
  void KnowJob();

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
  TimelineRecord expected_timelines_;
  bool is_job_known_ = false;  // a store that was seeded has been read
  absl::Status status_;
  WatchId watch_ = WatchId::kNone;
  TimerId again_ = TimerId::kNone;
  bool change_told_ = true;
  bool went_back_ = false;  // says a watch, and it was not read since
  Lifetime lifetime_;
};

}  // namespace unreft::meta
