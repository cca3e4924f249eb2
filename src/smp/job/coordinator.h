// Coordinator: what the job as a whole decides - which version is restored, which is committed,
// which is given up - as one node sees it. The leader decides, over the meta store. In a job of one
// node the store is in that node's daemon as well.
//
// The room job is what the nodes of a job agree on: the leader's rules (leader.h, a file for each),
// a node's side of them (member.h), what is remembered (node_record.h), and calls between nodes
// (peers.h). It includes core alone, and knows of slots and guards what is reported. Start here,
// then read member.h and leader.h.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/session_frames.h"
#include "layout/manifest.h"
#include "recovery/restorable.h"
#include "recovery/version_choice.h"
#include "smp/core/registration.h"

namespace unreft::smp {

// A rank that asks, which life of it does, and with which request of that life.
struct Asker {
  Rank rank;
  ProcessLife life;
  uint64_t request = 0;
  // The node that it asks from: processes of two hosts may look like one life. None where the
  // leader is of a release that does not write it.
  std::optional<NodeSlot> home;
  std::optional<Step> at_or_before;  // the newest step that it restores; none: any
};
// Whether both are of one process.
inline bool AreOneProcess(const Asker& a, const Asker& b) {
  return a.rank == b.rank && a.life == b.life && (!a.home || !b.home || a.home == b.home);
}

// One decision for one attempt.
struct JobDecision {
  DecisionKind kind = DecisionKind::kFailed;
  absl::Status status;  // of a failed one
  Version version;      // restored
  Timeline timeline;    // opened
  Attempt attempt;      // that asked
  // Who asked, of all ranks.
  std::map<Rank, Asker> asked;
  // The nodes that they asked from; none where the leader is of a release that does not write them.
  std::map<Rank, NodeSlot> homes;
  // Where the slabs of the restored version are.
  std::vector<recovery::SlabHolder> holders;
  // The durable copy that they were loaded from; empty: memory had the version.
  std::string durable_copy;
};

// Whether that request of that life of the rank is what was decided.
inline bool IsFor(const JobDecision& decision, const Asker& asker) {
  const auto asked = decision.asked.find(asker.rank);
  return asked != decision.asked.end() && AreOneProcess(asked->second, asker) &&
         asked->second.request == asker.request;
}

// Digest of each replicated tensor that a rank captured a part of, by tensor name and box; none
// where this snapshot was not sampled.
using ReplicaDigests = std::map<std::string, std::optional<uint32_t>>;

// A rank's slab of a version, sealed in this node's memory.
struct HeldSlab {
  recovery::SealedSlab slab;
  std::shared_ptr<const layout::SlotManifest> manifest;
};

// A rank's slab that was sealed in this node's memory and does not verify any more.
struct RottenSlab {
  Version version;
  Rank rank;
  std::string problem;
};

// A node's in its job.
struct Standing {
  std::string problem;       // why nothing that it holds counts, for people; empty: it counts
  bool is_out = false;       // its slot has another memory, which lives
  bool is_starting = false;  // the job or this daemon is: no fault
  absl::Status refusal;  // why it is to end as soon as it serves nobody; ok: as a spare it waits
  bool operator==(const Standing&) const = default;
};

// Single-threaded on the node's executor. No call calls back inline.
class Coordinator {
 public:
  // The node, as the coordinator uses it; called in turns of the executor.
  class Node {
   public:
    virtual ~Node() = default;

    // Stop granting, claiming, sealing and retiring; `done` when everything that was completely
    // captured before is sealed.
    virtual void CloseTimeline(absl::AnyInvocable<void()> done) = 0;
    // Grant, claim, seal and retire again: the decision that the timeline was closed for is over
    // already, and nobody waits for it. OnDecision does so, too.
    virtual void ReopenTimeline() = 0;
    // Read all that this node holds of the version again; what does not verify is quarantined and
    // no longer part of the inventory.
    virtual void Verify(Version version, absl::AnyInvocable<void(absl::Status)> done) = 0;
    virtual std::vector<HeldSlab> Inventory() = 0;
    // A version that needs one of them can not become whole.
    virtual std::vector<RottenSlab> RottenSlabs() = 0;
    // What the ranks of this node are registered with now.
    virtual std::vector<RegisteredTrainer> Registrations() = 0;
    // Nothing is captured of what was not looked at, nor while it does not fit together.
    virtual void OnRegistrationsChecked(const RegistrationCheck& check) = 0;
    virtual void OnDecision(const JobDecision& decision) = 0;
    virtual void OnCommitted(Version version) = 0;
    // Give the version up.
    virtual void OnAbandoned(Version version, const std::string& reason) = 0;
    // Snapshots of earlier steps of that timeline are of no use. Also told again.
    virtual void OnCaptureFrom(Version first) = 0;
    // Replicas are not equal: every rank captures all it holds from now on.
    virtual void OnReplicasDisagree(const std::string& what) = 0;
    // What is kept for somebody, from now on.
    virtual void OnPins(const PinRecord& pins) = 0;

    // That are connected to this node, but for those that a decision for others has left behind:
    // they can commit nothing any more.
    virtual uint64_t RanksServed() = 0;
    // Of these the ones that train by the last decision; the others have yet to ask, or wait.
    virtual uint64_t RanksTraining() = 0;
    // The round of the decision in force, unless a process that it was made for and that asked from
    // this node has ended; else 0.
    virtual uint64_t LivesRound() = 0;
    // As the leader says: of the decision of that round, if it is in force, some process has ended,
    // on whatever node. 0: of none.
    virtual void OnAttemptOver(uint64_t round) = 0;
    // Whether some rank's slots, beside the guards of this node, do not fit into its memory.
    virtual bool LacksMemory() = 0;

    // What the next commit of the job waits for, for people; empty: for nothing that takes long.
    virtual void OnObstacle(const std::string& what) = 0;
    // Whether what this node holds counts in the job.
    virtual void OnStanding(const Standing& standing) = 0;
    // This daemon has no business here: it is to end, with nothing changed.
    virtual void OnRefused(const absl::Status& why) = 0;
  };

  virtual ~Coordinator() = default;

  // The ranks of this node that asked for a decision in this attempt and wait for it.
  virtual void AskDecision(Attempt attempt, uint64_t world, std::vector<Asker> askers) = 0;
  // A rank of this node is registered with something else.
  virtual void CheckRegistrations() = 0;
  // Ranks have connected or are gone.
  virtual void OnRanksChange() = 0;
  virtual void ReportClaimed(Version version, Rank rank) = 0;
  virtual void ReportSealed(Version version, Rank rank) = 0;
  virtual void ReportFailed(Version version, Rank rank, const std::string& reason) = 0;

  // Whether anything was ever committed in this job and not given up since, by what is written.
  // Decides nothing; Unavailable when that is not known within call_timeout.
  using EverCommittedDone = absl::AnyInvocable<void(absl::StatusOr<bool>)>;
  virtual void AskEverCommitted(EverCommittedDone done) = 0;

  // What was committed is given up, by an operator's order: the next restore finds nothing, and
  // opens the timeline whose number `done` is told. FailedPrecondition while ranks are connected,
  // unless `force` is given: nothing that they capture would be committed.
  using FreshStartDone = absl::AnyInvocable<void(absl::StatusOr<uint64_t>)>;
  virtual void DeclareFreshStart(bool force, FreshStartDone done) = 0;

  // Versions that nothing but version_deadline_s has ended, by this process.
  virtual uint64_t deadlines_used() const = 0;

  // Has the next attempt restore an older version, takes that back, or says what could be
  // restored.
  using RewindDone = absl::AnyInvocable<void(absl::StatusOr<RewindReply>)>;
  virtual void AskRewind(const RewindRequest& request, RewindDone done) = 0;

  // Has the job run on other nodes from some attempt on, takes that back, or says what is ordered.
  using ResizeDone = absl::AnyInvocable<void(absl::StatusOr<ResizeReply>)>;
  virtual void AskResize(const ResizeRequest& request, ResizeDone done) = 0;

  // Keeps what is committed for somebody, or lets go of it.
  using PinDone = absl::AnyInvocable<void(absl::StatusOr<PinReply>)>;
  virtual void AskPins(PinRequest request, PinDone done) = 0;
};

}  // namespace unreft::smp
