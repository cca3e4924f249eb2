// ExportDesk: writes a committed version out of memory into a directory, every node its part, while
// training goes on (docs/durable_copy.md).
//
// Of the daemon that is asked it runs the copy, whether or not that leads the job: it pins the
// version, learns which node has which rank's slab, has each node's drain write them, and watches
// over all until the copy is complete or one has failed. On every node it is what starts and
// watches the drain. It touches no file itself.
//
//   pin ──▶ look (who has what?) ──▶ start ──▶ ask, again and again ──▶ unpin
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <unreft/copy.pb.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/lifetime.h"
#include "base/session_frames.h"
#include "smp/core/drain_process.h"
#include "smp/desk/node_state.h"
#include "smp/job/member.h"

namespace unreft::smp {

// What is exported without being asked for, by whichever daemon leads the job.
struct ExportPolicy {
  std::string directory;  // in which each copy has one of its own; empty: nothing is
  Duration every = std::chrono::minutes(30);  // from one copy to the next
  uint64_t keep = 3;                          // complete copies
  uint64_t bytes_per_s = 0;
};

// Single-threaded on the node's executor.
class ExportDesk {
 public:
  using Reply = absl::AnyInvocable<void(AdminReply)>;

  // Other nodes' questions are answered from now on. All outlive this; without a drain this node
  // writes nothing.
  ExportDesk(NodeState& state, Member& member, DrainProcess* drain, ExportPolicy policy = {});
  ~ExportDesk();

  // Of "export", "export-status" and "export-cancel". Calls `reply` once, in this turn or a later
  // one.
  void Answer(const AdminRequest& request, Reply reply);
  static bool Answers(const std::string& verb);

  // The newest complete copy in the policy's directory, of whoever leads; none while that is not
  // known.
  struct Newest {
    Version version;  // 0:0: there is no copy
    Time ordered;
  };
  const ExportPolicy& policy() const { return policy_; }
  const std::optional<Newest>& newest() const { return newest_; }
  Duration AgeOf(const Newest& newest) const;
  // Why the last copy that the policy wanted was not made, or the directory not read; empty: it
  // was.
  const std::string& last_error() const { return last_error_; }
  // Copies that this daemon has run, and what failed of it, looks at the directory counted.
  uint64_t made() const { return made_; }
  uint64_t failed() const { return failed_; }

 private:
  // What this node's drain does, and did last.
  struct Part {
    std::string id;
    CopyPartReply said;
    Time asked;  // when somebody last asked how far it is
  };
  // A copy that this daemon runs, or ran last.
  struct Run {
    enum class State { kPinning, kLooking, kWriting, kDone, kFailed };
    State state = State::kPinning;
    std::string id;
    std::string directory;
    uint64_t step = 0;  // that was asked for; 0: what is committed
    uint64_t bytes_per_s = 0;
    uint64_t keep = 0;  // of the policy's
    std::vector<std::string> map;
    Version version;
    uint64_t world = 0;
    std::map<NodeSlot, std::set<uint64_t>> ranks;  // that each node has
    std::set<NodeSlot> awaited;                    // that are yet to answer
    std::map<NodeSlot, CopyPartReply> said;        // of those that write
    std::map<NodeSlot, int> silent;                // how often one in a row did not answer
    std::string error;
    Time began;
    Time moved;  // when some node last had written more
    std::optional<Time> ended;
    Time pinned;
    TimerId timer = TimerId::kNone;
  };

  void Begin(const AdminRequest& request, Reply reply);
  void BeginRun(Run run);
  void TickLater();
  void Tick();
  void Survey();
  void OnPolicyEnded();
  std::string StatusText() const;
  std::string Owner() const;
  void Pin(absl::AnyInvocable<void(absl::Status)> done);
  void PinAgain();
  void Unpin(absl::AnyInvocable<void()> done);
  void Look();
  void OnLooked();
  void StartAll();
  void Start(NodeSlot node, const std::map<uint64_t, NodeSlot>& homes);
  void AskLater();
  void AskAll();
  void OnSaid(NodeSlot node, const absl::StatusOr<CopyPartReply>& reply);
  void CheckEnd();
  void Fail(const std::string& why);
  void End();
  bool IsUnderWay() const;
  void Call(NodeSlot node, const CopyPartRequest& request,
            absl::AnyInvocable<void(absl::StatusOr<CopyPartReply>)> done);
  void OnPartRequest(const CopyPartRequest& request,
                     absl::AnyInvocable<void(absl::StatusOr<CopyPartReply>)> done);
  CopyPartReply LookHere(Version version) const;
  absl::Status StartHere(const CopyPartRequest& request);
  void OnPartEnded();
  void StopUnasked(Time now);

  NodeState& state_;
  Member& member_;
  DrainProcess* const drain_;
  const ExportPolicy policy_;
  std::optional<Newest> newest_;
  bool is_surveying_ = false;
  Time survey_began_{};
  bool is_survey_error_ = false;  // what last_error_ is
  Time not_before_{};             // the next attempt of the policy's
  std::string last_error_;
  uint64_t made_ = 0;
  uint64_t failed_ = 0;
  TimerId tick_ = TimerId::kNone;
  std::optional<Part> part_;
  std::optional<Run> run_;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
