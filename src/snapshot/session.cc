#include "snapshot/session.h"

#include <algorithm>
#include <utility>

namespace unreft::snapshot {
namespace {

// More than a rank has slots; only bounds what a daemon may make the client remember.
constexpr size_t kDoorbellsMax = 64;

// The answer to what was asked, if it is asked still.
template <typename Answer, typename Request, typename Handler>
absl::Status TakeAnswer(const Frame& frame, std::optional<Request>& asked, Handler handler) {
  absl::StatusOr<Answer> answer = FromFrame<Answer>(frame);
  if (!answer.ok()) return answer.status();
  if (!asked || asked->request != answer->request) return absl::OkStatus();
  asked.reset();
  handler(*std::move(answer));
  return absl::OkStatus();
}

}  // namespace

Session::Session(Executor& executor, Connector& connector, Random random, Hello identity,
                 const SessionOptions& options, Events& events)
    : executor_(executor),
      connector_(connector),
      random_(random),
      identity_(std::move(identity)),
      options_(options),
      events_(events),
      problem_(absl::UnavailableError("not connected yet")) {}

void Session::Start() { Connect(); }

void Session::Close() {
  ended_ = true;
  problem_ = absl::CancelledError("closed");
  if (channel_) channel_->Close();
  Detach();
}

std::string Session::Connection() const {
  if (welcomed_) return "connected to the daemon";
  return fmt::format("not connected to the daemon: {}", std::string(problem_.message()));
}

void Session::Connect() {
  if (ended_) return;
  connector_.Connect(lifetime_.Bind([this](absl::StatusOr<std::unique_ptr<Channel>> channel) {
    if (ended_) return;
    if (!channel.ok()) return Lose(channel.status());
    Attach(*std::move(channel));
  }));
}

void Session::ConnectLater() {
  backoff_ = std::clamp(backoff_ * 2, options_.backoff_first, options_.backoff_max);
  const auto half = static_cast<uint64_t>(backoff_.count() / 2);
  executor_.After(Duration(half + random_.Below(half + 1)), lifetime_.Bind([this] { Connect(); }));
}

void Session::Attach(std::unique_ptr<Channel> channel) {
  channel_ = std::move(channel);
  const uint64_t epoch = ++epoch_;
  channel_->Start(lifetime_.Bind([this, epoch](const Frame& frame) {
    if (epoch == epoch_) OnFrame(frame);
  }),
                  lifetime_.Bind([this, epoch](const absl::Status& why) {
                    if (epoch == epoch_) Lose(why);
                  }));
  channel_->Send(ToFrame(identity_));
  welcome_timer_ = executor_.After(options_.welcome_timeout, lifetime_.Bind([this, epoch] {
    if (epoch != epoch_ || welcomed_) return;
    Lose(absl::UnavailableError("the daemon accepted and did not answer Hello"));
  }));
}

void Session::Detach() {
  ++epoch_;
  welcomed_ = false;
  doorbells_open_ = false;
  plan_came_ = false;
  plan_pieces_.clear();
  executor_.Cancel(std::exchange(welcome_timer_, TimerId::kNone));
  // Not destroyed here: this may be one of its own callbacks.
  if (channel_) executor_.Post([channel = std::move(channel_)] {});
}

void Session::Lose(const absl::Status& why) {
  const bool was_welcomed = welcomed_;
  problem_ = why.ok() ? absl::UnavailableError("the daemon left") : why;
  Detach();
  ConnectLater();
  if (was_welcomed) events_.OnLost(problem_);
}

void Session::OnFrame(const Frame& frame) {
  if (absl::Status status = Handle(frame); !status.ok()) Lose(status);
}

template <typename Message>
absl::Status Session::Deliver(const Frame& frame, void (Session::*handler)(const Message&)) {
  absl::StatusOr<Message> message = FromFrame<Message>(frame);
  if (message.ok()) (this->*handler)(*message);
  return message.status();
}

absl::Status Session::Handle(const Frame& frame) {
  switch (static_cast<FrameType>(frame.type)) {
    case FrameType::kWelcome:
      return Deliver<Welcome>(frame, &Session::Accept);
    case FrameType::kRefused:
      return Deliver<Refused>(frame, &Session::Refuse);
    case FrameType::kVersionState:
      return Deliver<VersionState>(frame, &Session::Note);
    case FrameType::kDecision:
      return TakeAnswer<Decision>(
          frame, restore_, [this](Decision answer) { events_.OnDecision(std::move(answer)); });
    case FrameType::kPlanPage: {
      absl::StatusOr<PlanPage> page = FromFrame<PlanPage>(frame);
      return page.ok() ? Take(*std::move(page)) : page.status();
    }
    case FrameType::kPlan: {
      absl::StatusOr<Plan> plan = FromFrame<Plan>(frame);
      if (plan.ok()) Take(*std::move(plan));
      return plan.status();
    }
    case FrameType::kStaged: {
      absl::StatusOr<Staged> staged = FromFrame<Staged>(frame);
      if (!staged.ok()) return staged.status();
      if (!plan_ || plan_->request != staged->request || !plan_came_) return absl::OkStatus();
      events_.OnStaged(*std::move(staged));
      return absl::OkStatus();
    }
    case FrameType::kRegistered: {
      absl::StatusOr<Registered> registered = FromFrame<Registered>(frame);
      if (!registered.ok()) return registered.status();
      if (registration_ && registration_->request == registered->request) {
        events_.OnRegistered(*std::move(registered));
      }
      return absl::OkStatus();
    }
    case FrameType::kEverCommitted:
      return TakeAnswer<EverCommitted>(frame, ever_committed_, [this](const EverCommitted& answer) {
        events_.OnEverCommitted(answer);
      });
    case FrameType::kExtras:
      return TakeAnswer<Extras>(frame, extras_,
                                [this](Extras answer) { events_.OnExtras(std::move(answer)); });
    case FrameType::kObstacle: {
      absl::StatusOr<Obstacle> obstacle = FromFrame<Obstacle>(frame);
      if (obstacle.ok()) events_.OnObstacle(*std::move(obstacle));
      return obstacle.status();
    }
    default:
      return absl::OkStatus();  // of a newer daemon
  }
}

absl::Status Session::Take(PlanPage page) {
  if (!plan_ || plan_->request != page.request || plan_came_) return absl::OkStatus();
  const uint64_t pieces = plan_pieces_.size() + page.pieces.size();
  if (pieces > kPlanPiecesMax) {
    return absl::InvalidArgumentError(
        fmt::format("a plan has at most {} pieces, found {}", kPlanPiecesMax, pieces));
  }
  plan_pieces_.insert(plan_pieces_.end(), page.pieces.begin(), page.pieces.end());
  return absl::OkStatus();
}

void Session::Take(Plan plan) {
  if (!plan_ || plan_->request != plan.request || plan_came_) return;
  plan_came_ = true;
  if (!plan.status.ToStatus().ok() || plan.staged_bytes == 0) plan_.reset();
  events_.OnPlan(std::move(plan), std::exchange(plan_pieces_, {}));
}

void Session::Accept(const Welcome& welcome) {
  if (welcomed_) return;
  welcomed_ = true;
  newest_frame_ = welcome.newest_frame;
  backoff_ = Duration{};
  executor_.Cancel(std::exchange(welcome_timer_, TimerId::kNone));
  SayAgain();
  events_.OnWelcome(welcome);
}

void Session::Refuse(const Refused& refused) {
  absl::Status why = refused.status.ToStatus();
  if (why.ok()) why = absl::PermissionDeniedError("refused without a reason");
  if (refused.retry) return Lose(why);
  ended_ = true;
  problem_ = why;
  Detach();
  events_.OnRefused(why);
}

void Session::Note(const VersionState& state) {
  if (state.phase == VersionPhase::kCommitted) {
    std::erase_if(doorbells_, [&](const auto& item) {
      return item.second.claimed.version == state.version && item.second.captured.has_value();
    });
  }
  events_.OnVersionState(state);
}

void Session::SayAgain() {
  if (restore_) Send(*restore_);
  if (plan_) Send(*plan_);
  if (restore_done_) Send(*std::exchange(restore_done_, std::nullopt));
  if (registration_) Send(*registration_);
  if (ever_committed_ && knows(ever_committed_->kType)) Send(*ever_committed_);
  if (extras_ && knows(extras_->kType)) Send(*extras_);
}

void Session::Ask(RestoreRequest request) {
  restore_ = request;
  Send(request);
}

void Session::Ask(PlanRequest request) {
  plan_ = std::move(request);
  plan_came_ = false;
  plan_pieces_.clear();
  Send(*plan_);
}

void Session::Ask(Register registration) {
  registration_ = std::move(registration);
  Send(*registration_);
}

void Session::Ask(EverCommittedRequest request) {
  ever_committed_ = request;
  if (knows(request.kType)) Send(request);
}

void Session::Ask(ExtrasRequest request) {
  extras_ = request;
  if (knows(request.kType)) Send(request);
}

void Session::Tell(RestoreDone done) {
  plan_.reset();
  if (!welcomed_) {
    restore_done_ = std::move(done);
    return;
  }
  Send(done);
}

void Session::Tell(const StagedDone& done) { Send(done); }

void Session::Ring(const Claimed& claimed, const RandomId& memory) {
  if (memory != memory_) return;
  if (doorbells_.size() >= kDoorbellsMax) doorbells_.erase(doorbells_.begin());
  doorbells_[claimed.slot] = Doorbells{.claimed = claimed};
  SendDoorbell(claimed);
}

void Session::Ring(const Progress& progress) {
  if (Find(progress.slot, progress.generation) != nullptr) SendDoorbell(progress);
}

void Session::Ring(Captured captured) {
  Doorbells* doorbells = Find(captured.slot, captured.generation);
  if (doorbells == nullptr) return;
  SendDoorbell(captured);
  doorbells->captured = std::move(captured);
}

void Session::Ring(GaveUp gave_up) {
  Doorbells* doorbells = Find(gave_up.slot, gave_up.generation);
  if (doorbells == nullptr) return;
  SendDoorbell(gave_up);
  doorbells->gave_up = std::move(gave_up);
}

// Also while the rank's registration is refused: the version can be given up at once, and the other
// ranks' memory for it used for another.
void Session::Ring(Skipped skipped) {
  if (welcomed_) return Send(skipped);
  skipped_ = std::move(skipped);
}

void Session::RepeatDoorbells(const RandomId& memory) {
  if (memory_ != memory) doorbells_.clear();
  memory_ = memory;
  if (doorbells_open_ || !welcomed_) return;
  doorbells_open_ = true;
  for (const auto& [slot, doorbells] : doorbells_) Repeat(doorbells);
  if (skipped_) Send(*std::exchange(skipped_, std::nullopt));
}

void Session::Repeat(const Doorbells& doorbells) {
  Send(doorbells.claimed);
  if (doorbells.captured) return Send(*doorbells.captured);
  if (doorbells.gave_up) return Send(*doorbells.gave_up);
  Send(Progress{.slot = doorbells.claimed.slot, .generation = doorbells.claimed.generation});
}

Session::Doorbells* Session::Find(SlotId slot, Generation generation) {
  auto it = doorbells_.find(slot);
  if (it == doorbells_.end() || it->second.claimed.generation != generation) return nullptr;
  return &it->second;
}

template <typename Message>
void Session::Send(const Message& message) {
  if (welcomed_) channel_->Send(ToFrame(message));
}

template <typename Message>
void Session::SendDoorbell(const Message& message) {
  if (doorbells_open_) Send(message);
}

}  // namespace unreft::snapshot
