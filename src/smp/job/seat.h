// Seat: a node's place in the job. Whether the node slot is this memory's, by the newest view, and
// the keys of the meta store by which the daemon shows it.
//
//   node/SLOT      its presence: while the view names this memory, or none that lives
//   waiting/PLACE  else: it waits for the slot, with as many ranks as it serves
//   leader         wanted while the slot is its own, or nobody is present who could lead
//
// None of them is held by a daemon that is not started like the job (JobSettings). So an empty
// memory takes a slot only when the one before it is lost, and a memory whose slot a view has given
// to another knows it after any restart of its daemon: the number of the newest view that it was in
// is in its header. A second daemon for a slot that is served is refused.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <unreft/cluster.pb.h>

#include <memory>
#include <optional>
#include <string>

#include "base/executor.h"
#include "base/ids.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "meta/job_store.h"
#include "meta/leased_key.h"
#include "smp/core/node_options.h"
#include "smp/job/coordinator.h"
#include "smp/job/job_settings.h"
#include "smp/job/node_record.h"

namespace unreft::smp {

// Whose a node slot is, for a memory that would have it.
enum class SeatOwner {
  kNobody,   // there is no view yet, or it is older than one that named this memory
  kOurs,     // the view names this memory
  kLost,     // of a memory that is lost
  kAbsent,   // of another memory, whose daemon is away
  kPresent,  // of another memory, whose daemon is there
};

// `newest_view`: of those that named this memory; 0 = none did. Pure.
SeatOwner OwnerOfSeat(const meta::JobState& job, NodeSlot slot, const std::string& incarnation,
                      uint64_t newest_view);

// Ranks that a daemon serves.
struct RanksHere {
  uint64_t served = 0;
  uint64_t training = 0;  // of them
  uint64_t asking = 0;    // of them, for a decision, all in `attempt`
  Attempt attempt;
  uint64_t world = 0;  // of that attempt
};

// What this memory is to the job that the store has.
struct KnownHere {
  meta::Stamp kept;   // how new the records of the job are that it has kept
  uint64_t view = 0;  // the newest of the job that it was in
  bool is_of_another_job = false;
};

// Single-threaded on the node's executor. Everything outlives it.
class Seat {
 public:
  struct Callbacks {
    absl::AnyInvocable<void()> on_presence;    // held, or not any more
    absl::AnyInvocable<void()> on_leadership;  // as well
    // Whether what this node holds counts, when that is another than was told.
    absl::AnyInvocable<void(const Standing&)> on_standing;
    // Another daemon of the same number serves the slot, and this memory never did:
    // FailedPrecondition. Once.
    absl::AnyInvocable<void(absl::Status)> on_refused;
    // Whether a daemon of this job answers at that address.
    absl::AnyInvocable<void(const std::string& address, absl::AnyInvocable<void(bool)> done)> probe;
  };

  Seat(meta::Kv& kv, Executor& executor, Log& log, const meta::JobStore& store, NodeRecord& record,
       const NodeOptions& options, std::string address, Callbacks callbacks);
  ~Seat();

  // The records are others than they were, or the node's ranks are. `known`: none where the store
  // has another job than this process follows, which then holds nothing there.
  void Follow(const RanksHere& ranks, std::optional<KnownHere> known);

  bool is_ours() const { return owner_ == SeatOwner::kOurs; }
  bool is_present() const { return presence_.held() && !is_leaving_; }
  bool leads() const { return leadership_.held(); }
  meta::HeldKey leadership() const { return leadership_.holding(); }
  // The daemon is about to end: nobody counts on it any more, and another one leads. `done` once
  // the meta store knows; its keys are left alone from here on. Its grace begins when its lease
  // ends: an upgrade has the same time as one that was killed.
  void Leave(absl::AnyInvocable<void()> done);

  // Nobody leads, as far as is known.
  void Campaign() { leadership_.Look(); }

  // What others are told of this daemon.
  PresenceRecord Presence() const;

 private:
  void FollowRecords();
  void TellStanding();
  Standing StandingNow() const;
  bool WasInAView() const { return known_.view != 0; }
  bool MayHoldKeys() const { return !is_leaving_ && !is_aside_ && settings_.agreed(); }
  const PresenceRecord* Other() const;
  void ConfirmKeys();
  void SayWhose(bool was_aside, bool was_of_another_job);
  void SayWhere();
  void HoldKeys();
  void Wait();
  bool IsSecond() const;
  void LookForFirst();
  std::string Problem() const;
  std::string WhoseItIs() const;

  Executor& executor_;
  Log& log_;
  const meta::JobStore& store_;
  NodeRecord& record_;
  const NodeOptions& options_;
  const std::string address_;
  Callbacks callbacks_;
  JobSettings settings_;
  meta::LeasedKey presence_;
  meta::LeasedKey waiting_;
  meta::LeasedKey leadership_;
  Standing standing_;  // as was told
  SeatOwner owner_ = SeatOwner::kNobody;
  bool was_ours_ = false;  // in this process
  RanksHere ranks_;
  KnownHere known_;
  bool is_aside_ = false;  // the store has another job
  bool is_leaving_ = false;
  bool is_refused_ = false;
  bool is_probing_ = false;
  TimerId probe_again_ = TimerId::kNone;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
