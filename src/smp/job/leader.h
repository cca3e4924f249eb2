// Leader: what the job decides - membership, what is restored, what is committed, what is given
// up.
//
// Rules on state: it collects the records of the meta store, the newest report of every node and
// what it has begun as Facts, and carries out the Move that the rules make of them (next_move.h): a
// Txn, or a question to a node. Any completion only edits that state and runs the rules again. It
// keeps nothing that a successor could not read or be told: a new leader begins with the records
// and with empty reports, which every node sends to it at once.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <unreft/cluster.pb.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/fault_points.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "base/random.h"
#include "meta/job_store.h"
#include "recovery/restorable.h"
#include "smp/core/node_options.h"
#include "smp/job/abandoning.h"
#include "smp/job/absences.h"
#include "smp/job/board.h"
#include "smp/job/durable_copies.h"
#include "smp/job/facts.h"
#include "smp/job/move.h"
#include "smp/job/peers.h"
#include "smp/job/pin_queue.h"
#include "smp/job/pins.h"
#include "smp/job/report_parts.h"
#include "smp/job/roll_call.h"
#include "smp/job/round_copies.h"
#include "smp/job/round_reading.h"
#include "smp/job/standstill.h"
#include "smp/job/world_layouts.h"

namespace unreft::smp {

// Single-threaded on the node's executor. Passes the fault points "leader.decision" and
// "leader.commit" when the Txn was applied and nobody knows of it yet.
class Leader {
 public:
  // `leadership`: our leader key. `copies`: null where the job has no directory of durable copies.
  Leader(Executor& executor, meta::JobStore& store, Peers& peers, Random& random, Log& log,
         const NodeOptions& options, meta::HeldKey leadership, DurableCopies* copies,
         FaultPoints* faults);
  ~Leader();

  // They are no more.
  void ForgetCopies() { copies_ = nullptr; }

  // A node's whole state, a NodeReport, answered by what is known of all ranks' registrations.
  // Refused (FailedPrecondition) when it is of a life that is not the one present in that slot, and
  // (InvalidArgument) when it cannot be believed.
  absl::StatusOr<ReportReply> OnReport(NodeSlot from, std::string_view encoded);

  // What was committed is given up by an explicit order that came to that node. Unavailable while
  // a decision is made, FailedPrecondition while ranks are connected and `force` is not given.
  // `done` is told the number of the timeline that the next attempt opens.
  using FreshStartDone = absl::AnyInvocable<void(absl::StatusOr<uint64_t>)>;
  void DeclareFreshStart(NodeSlot from, bool force, FreshStartDone done);

  // By an operator's order that came to that node: what the next decision restores (rewind.h).
  // Unavailable while a decision is made.
  using RewindDone = absl::AnyInvocable<void(absl::StatusOr<RewindReply>)>;
  void Rewind(NodeSlot from, const RewindRequest& request, RewindDone done);

  // By an operator's order that came to that node: on which nodes the job is to run (resize.h).
  // Unavailable while a decision is made.
  using ResizeDone = absl::AnyInvocable<void(absl::StatusOr<ResizeReply>)>;
  void Resize(NodeSlot from, const ResizeRequest& request, ResizeDone done);

  // Keeps what is committed for somebody, or lets go of it; answered when that is written.
  void AskPins(PinRequest request, PinQueue::Done done);

  // The records changed, or time has passed. What rules read grows with the nodes, so they run at
  // their pace (smp/core/pace.h), for all that has come by then.
  void RunRules();

  // Versions that were given up by the deadline, which nothing else had ended.
  uint64_t deadlines_used() const { return deadlines_used_; }

  // How many more losses each group stands, and what would be restored, by the newest reports.
  ExposureReply Exposure() const;

 private:
  // Of what is tried again until it is done.
  static constexpr Duration kWarnEvery = std::chrono::seconds(10);

  void RunRulesNow();
  void CheckRegistrations(const RollCall& roll, const DecisionRecord* in_force);
  void ForgetReportsOfAnotherStore();
  // Whether the report is of the life that is present in that slot.
  bool IsOfPresentLife(NodeSlot slot, const NodeReport& report);
  // What the rules read, as it is in this turn.
  RollCall CallRoll() const;
  Timeline NextTimeline();  // another one each time
  Facts FactsOf(const RollCall& roll);
  // What has become of what is under way, by the records and the reports as they are.
  void Follow(const RollCall& roll);
  void FollowAsking(const RollCall& roll);
  void FollowVersions(const Facts& facts);
  void WatchCommits(const Facts& facts);

  // Carries out what the rules have decided. Whether they say something else at once.
  bool Do(Move move);
  void WakeAt(std::optional<Time> time);
  void AskReading(const ReadingQuestion& question);
  void SearchCopies();
  void LoadCopy(CopyLoad load);
  void EndCopies();
  bool IsOfAnotherJob(const meta::RecordCopy& copy) const;
  void AskKept(const Keeper& keeper);
  void OnKept(const Keeper& keeper, const absl::StatusOr<KeptReply>& reply);
  void OnRead(const RoundReading::Life& life, Version version, VerifyReply reply);
  void AnswerPin(absl::StatusOr<PinReply> answer, std::optional<meta::JobChange> change);
  void Write(meta::JobChange change, const char* fault_point = nullptr);
  // An operator's order. They are carried out in the order in which they come, each once nothing is
  // being written and unless a decision is being made: what `make` makes of the records is written.
  // `done` is told Unavailable when this is gone by then, or whoever asked has given up waiting.
  using MakeOrder = absl::AnyInvocable<absl::StatusOr<meta::JobChange>()>;
  using OrderDone = absl::AnyInvocable<void(absl::Status)>;
  struct WaitingOrder {
    Time since;
    MakeOrder make;
    OrderDone done;
  };
  void Order(MakeOrder make, OrderDone done);
  void CarryOutOrders();
  void CarryOut(WaitingOrder order);
  void EndOrders();
  // What an operator has ordered. `done` is told also when this is gone by then.
  void WriteOrder(meta::JobChange change, absl::AnyInvocable<void(const absl::Status&)> done);
  // Says what is about to be written, once until it is.
  void Announce(LogLevel level, const std::string& line);

  Executor& executor_;
  meta::JobStore& store_;
  Peers& peers_;
  Random& random_;
  Log& log_;
  const NodeOptions& options_;
  const meta::HeldKey leadership_;
  DurableCopies* copies_;
  FaultPoints* faults_;

  Board board_;
  // What is present was compared with reports at this revision of it, and found to be of this life.
  struct ComparedLife {
    meta::Revision present;
    size_t life = 0;  // its hash
    friend bool operator==(const ComparedLife&, const ComparedLife&) = default;
  };
  absl::flat_hash_map<NodeSlot, ComparedLife> compared_lives_;
  ReportParts report_;  // the one that is looked at; the next one uses its memory again
  std::optional<Time> ran_rules_at_;
  TimerId rules_timer_ = TimerId::kNone;
  std::string store_id_;                  // of the store that the reports are of
  std::optional<meta::RecordCopy> kept_;  // the newest that a node was asked for
  bool asking_kept_ = false;
  SeedNotes seed_notes_;
  std::map<NodeSlot, uint64_t> refused_;  // reports of lives that we do not see
  bool writing_ = false;
  absl::Status write_failure_;       // ok: the last write was taken, or another came between
  std::set<std::string> announced_;  // since the last write

  std::optional<Time> wakes_at_;
  TimerId wake_ = TimerId::kNone;

  Absences absences_;
  std::map<uint64_t, Time> asked_since_;  // by attempt
  uint64_t over_round_ = 0;               // of the decision in force, once it is over
  RoundReading reading_;                  // in the round that is under way
  RoundCopies round_copies_;              // the same

  std::deque<WaitingOrder> orders_;

  PinClock pin_clock_;
  PinQueue pin_requests_;

  VersionNotes versions_;
  AbandonNotes abandoning_;
  StepPace pace_;
  uint64_t deadlines_used_ = 0;
  Standstill standstill_;
  WorldLayouts layouts_;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
