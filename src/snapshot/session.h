// Session: the client's end of the local session with the daemon (base/session_frames.h).
//
//   Start ─▶ connecting ─▶ hello said ─▶ welcomed ──lost──▶ waiting (backoff) ─▶ connecting ...
//                                                └─Refused, no retry─▶ refused: it stays so
//
// Holds what is still owed to the daemon as state, not as a queue: at most one request of each
// kind, the registration, and the doorbells of one snapshot per slot. All of it is said again after
// each reconnect. Doorbells wait for RepeatDoorbells, because the daemon that answers may keep
// other memory under the same names than the one that granted the slot.
//
// Never blocks. Single-threaded on its executor.
#pragma once

#include <absl/status/status.h>

#include <map>
#include <memory>
#include <optional>

#include "base/channel.h"
#include "base/executor.h"
#include "base/lifetime.h"
#include "base/random.h"
#include "base/session_frames.h"
#include "snapshot/client_options.h"

namespace unreft::snapshot {

class Session {
 public:
  // Called in turns. An answer comes at most once per request; other messages whenever they come.
  class Events {
   public:
    virtual ~Events() = default;
    virtual void OnWelcome(const Welcome& welcome) = 0;
    virtual void OnLost(const absl::Status& why) = 0;
    // For good: no further attempt is made.
    virtual void OnRefused(const absl::Status& why) = 0;
    virtual void OnDecision(Decision decision) = 0;
    virtual void OnExtras(Extras extras) = 0;
    // Comes again, after each reconnect, while its staging is under way.
    // With the pieces of the pages that came before it.
    virtual void OnPlan(Plan plan, std::vector<PlanPiece> pieces) = 0;
    // Of the plan that came last, on the same connection.
    virtual void OnStaged(Staged staged) = 0;
    virtual void OnRegistered(Registered registered) = 0;
    virtual void OnVersionState(VersionState state) = 0;
    virtual void OnEverCommitted(const EverCommitted& answer) = 0;
    virtual void OnObstacle(Obstacle obstacle) = 0;
  };

  Session(Executor& executor, Connector& connector, Random random, Hello identity,
          const SessionOptions& options, Events& events);

  void Start();
  // The timeline that this life follows from now on, said in every Hello.
  void Follow(Timeline timeline) { identity_.timeline = timeline; }
  // Leaves the daemon and makes no further attempt.
  void Close();

  bool connected() const { return welcomed_; }
  // Whether the daemon of this connection knows messages of the type.
  bool knows(FrameType type) const {
    return welcomed_ && newest_frame_ >= static_cast<uint16_t>(type);
  }
  // "connected", or why not.
  std::string Connection() const;
  // What the last connection ended with, or was refused for.
  const absl::Status& problem() const { return problem_; }

  // Each replaces what was asked of its kind before.
  void Ask(RestoreRequest request);
  void Ask(PlanRequest request);
  void Ask(Register registration);
  // These two are not sent to a daemon that does not know them, see `knows`.
  void Ask(EverCommittedRequest request);
  void Ask(ExtrasRequest request);
  void Tell(RestoreDone done);
  void Tell(const StagedDone& done);
  // Nothing more is wanted of the plan: it is not asked for again.
  void EndPlan() { plan_.reset(); }
  // What was registered is not there any more.
  void EndRegistration() { registration_.reset(); }

  // The doorbells of a snapshot.
  // `memory`: the incarnation that the slot belongs to. Nothing is said of a snapshot in another
  // than the daemon's.
  void Ring(const Claimed& claimed, const RandomId& memory);
  void Ring(const Progress& progress);
  void Ring(Captured captured);
  void Ring(GaveUp gave_up);
  void Ring(Skipped skipped);

  // To be called once the daemon has answered the registration of this connection: says again what
  // it may have missed about the snapshots in `memory`, its incarnation by now, and forgets others.
  // Slots that it offers no more are among them: nobody else knows what was captured there.
  void RepeatDoorbells(const RandomId& memory);

 private:
  // What was rung about the last snapshot in a slot.
  struct Doorbells {
    Claimed claimed;
    std::optional<Captured> captured;
    std::optional<GaveUp> gave_up;
  };

  void Connect();
  void ConnectLater();
  void Attach(std::unique_ptr<Channel> channel);
  void Detach();
  void Lose(const absl::Status& why);
  void OnFrame(const Frame& frame);
  absl::Status Handle(const Frame& frame);
  void Accept(const Welcome& welcome);
  void Refuse(const Refused& refused);
  void Note(const VersionState& state);
  void SayAgain();
  Doorbells* Find(SlotId slot, Generation generation);
  void Repeat(const Doorbells& doorbells);
  absl::Status Take(PlanPage page);
  void Take(Plan plan);
  template <typename Message>
  void Send(const Message& message);
  template <typename Message>
  void SendDoorbell(const Message& message);
  template <typename Message>
  absl::Status Deliver(const Frame& frame, void (Session::*handler)(const Message&));

  Executor& executor_;
  Connector& connector_;
  Random random_;
  Hello identity_;
  const SessionOptions options_;
  Events& events_;

  std::unique_ptr<Channel> channel_;
  uint64_t epoch_ = 0;  // counts channels, so that a callback of an earlier one is known
  bool welcomed_ = false;
  uint16_t newest_frame_ = 0;    // that the daemon knows
  bool doorbells_open_ = false;  // RepeatDoorbells was called on this connection
  bool plan_came_ = false;       // the answer to plan_, on this connection: its staging goes on
  bool ended_ = false;           // closed or refused
  absl::Status problem_;         // why it is not connected
  Duration backoff_{};
  TimerId welcome_timer_ = TimerId::kNone;

  // Owed to the daemon.
  std::optional<RestoreRequest> restore_;
  std::optional<PlanRequest> plan_;  // until all that it brings is there
  std::vector<PlanPiece> plan_pieces_;  // of it, on this connection, until it came
  std::optional<RestoreDone> restore_done_;
  std::optional<Register> registration_;
  std::optional<EverCommittedRequest> ever_committed_;
  std::optional<ExtrasRequest> extras_;
  std::optional<Skipped> skipped_;
  std::map<SlotId, Doorbells> doorbells_;
  RandomId memory_ = {};  // the daemon's

  Lifetime lifetime_;
};

}  // namespace unreft::snapshot
