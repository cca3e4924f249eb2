// StoreObserver: what is written to the meta store of a simulated cluster, seen in the store
// itself, revision by revision.
//
// It fails the trace when
//   * a record of the job is written by a node that does not hold the leader key at that revision:
//     so two leaders never both commit (docs/protocol.md, rule 20); or by one that is not started
//     like it,
//   * the store holds more than the job's records, a record is larger than digests, holders and
//     names of versions need, or a version is written as committed or as given up twice, in a life
//     of the store, though nothing had forgotten it (rule 24),
//   * a version is committed or decided that was given up, or given up that was committed,
//   * a decision has a node in a group that an operator's order leaves out, and from which no rank
//     asks (rule 32).
// Single-threaded.
#pragma once

#include <unreft/cluster.pb.h>

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "meta/job_store.h"
#include "tests/fakes/fake_kv.h"
#include "tests/sim/machine.h"

namespace unreft::sim {

// The daemon that has written something.
struct StoreWriter {
  PresenceRecord presence;
  bool is_odd = false;  // it is not started like the job
};

class StoreObserver {
 public:
  // None of a process that has not joined.
  using WhoIs = std::function<std::optional<StoreWriter>(const SimExecutor&)>;

  StoreObserver(World& world, FakeKvStore& store, uint64_t nodes, uint64_t ranks, WhoIs who_is);
  ~StoreObserver();

  // What is pinned, as it is written; `is_first`: as a start of the store finds it.
  using OnPins = std::function<void(const PinRecord& pins, bool is_first)>;
  void set_on_pins(OnPins on_pins) { on_pins_ = std::move(on_pins); }

  // What the store has: each record as a start finds it, and as it is written.
  using OnRecord = std::function<void(const std::string& name, meta::Revision modified,
                                      const std::string& value)>;
  void set_on_record(OnRecord on_record) { on_record_ = std::move(on_record); }

  using OnSettings = std::function<void(const SettingsRecord& settings)>;
  void set_on_settings(OnSettings on_settings) { on_settings_ = std::move(on_settings); }

  // After each event of the store's process at least.
  void AfterEvent();

  uint64_t writes() const { return writes_; }
  uint64_t bytes_max() const { return bytes_max_; }
  // Whether that id is one that the store had before, and has another now.
  bool IsOver(const std::string& store_id) const;
  // Times that replicas were found to differ, and that versions were given up.
  uint64_t disagreements() const { return disagreements_; }
  uint64_t given_up() const { return given_up_; }

 private:
  struct Event {
    bool is_put = false;
    meta::KeyValue kv;
  };

  void Attach();
  void OnTxn(const SimExecutor& node, const meta::StoreReply& reply);
  void OnId(const std::string& value);
  void TellRecord(const meta::KeyValue& kv) const;
  void Look(const std::vector<Event>& revision);
  void CheckWriter(const std::string& name, meta::Revision revision);
  void CheckSizes(const std::string& name, const meta::KeyValue& kv);
  void CountWrites(const std::vector<Event>& revision);
  // The version, if it is known already.
  std::optional<Version> RememberCommit(const std::string& value);
  void CountCommit(const std::string& value);
  void CountGivenUp(const std::string& value, bool seeds);
  void FollowTimeline(const std::string& value);
  void CheckHeeds(const TimelineRecord& decided) const;

  World& world_;
  FakeKvStore& store_;
  const uint64_t record_bytes_max_;
  const uint64_t keys_max_;
  const WhoIs who_is_;
  OnPins on_pins_;
  OnRecord on_record_;
  OnSettings on_settings_;
  uint64_t attached_to_ = 0;  // which start of the store
  std::deque<std::vector<Event>> unseen_;
  std::map<meta::Revision, std::optional<StoreWriter>> writers_;
  std::string id_;  // of the store, once it is known
  std::set<std::string> ids_;
  std::set<std::string> keys_;
  std::optional<PresenceRecord> leader_;
  ViewRecord view_;
  TimelineRecord timeline_;
  std::set<Version> commits_;
  AbandonRecord abandoned_;
  uint64_t writes_ = 0;
  uint64_t bytes_max_ = 0;
  uint64_t disagreements_ = 0;
  uint64_t given_up_ = 0;
};

}  // namespace unreft::sim
