#include "tests/sim/launcher.h"

#include <absl/strings/match.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/session_frames.h"

namespace unreft::sim {
namespace {

using std::chrono::milliseconds;

// A daemon that is suspended, or asked twice, may carry it out later than it answers.
constexpr Duration kOrderHolds = std::chrono::seconds(5);

constexpr Duration kLookAgain = milliseconds(1);
// No two of a run are the same.
constexpr uint64_t kNumbersDrawn = uint64_t{1} << 60;

}  // namespace

Launcher::Launcher(std::vector<Machine*> homes, Random random, TrainerOptions like)
    : homes_(std::move(homes)),
      machine_(*homes_.front()),
      random_(random),
      like_(std::move(like)),
      numbers_(static_cast<Numbers>(random_.Below(3))),
      world_(like_.world) {}

Launcher::~Launcher() {
  for (const auto& trainer : trainers_) trainer->Kill(Duration{});
}

void Launcher::Start() { StartAttempt(); }

void Launcher::StartAttempt() {
  if (stopped_) return;
  attempt_ = Attempt{++begun_};
  told_[attempt_] = NumberFor(attempt_);
  machine_.history.OnAttempt(attempt_, told_[attempt_]);
  stopping_ = false;
  present_world_ = next_world_ != 0 ? std::exchange(next_world_, 0) : world_;
  present_at_or_before_ = std::exchange(next_at_or_before_, std::nullopt);
  if (std::exchange(next_goes_astray_, false)) {
    machine_.history.OnAstray(attempt_, Rank{random_.Below(present_world_)});
  }
  StartRanks(attempt_, present_world_);
}

// By its number alone it would not be told from what is left of the one before.
bool Launcher::HasToWait(Attempt attempt) const {
  return numbers_ == Numbers::kAllTheSame && attempt == attempt_ &&
         std::ranges::any_of(
             trainers_, [attempt](const auto& trainer) { return trainer->attempt() < attempt; });
}

void Launcher::StartRanks(Attempt attempt, uint64_t world) {
  if (HasToWait(attempt)) {
    machine_.kernel->Deliver(kLookAgain, [this, alive = std::weak_ptr(alive_), attempt, world] {
      if (!alive.expired() && attempt == attempt_ && !stopping_) StartRanks(attempt, world);
    });
    return;
  }
  auto barrier = std::make_shared<StepBarrier>(machine_.scheduler, world, like_.steps_apart_max);
  for (uint64_t rank = 0; rank < world; ++rank) {
    const Duration delay = Duration(random_.Below(Duration(milliseconds(5)).count()));
    machine_.kernel->Deliver(
        delay, [this, alive = std::weak_ptr(alive_), rank, barrier, attempt, world] {
          if (alive.expired() || stopped_) return;
          const bool is_wanted = attempt == second_ || (attempt == attempt_ && !stopping_);
          if (is_wanted) StartRank(attempt, Rank{rank}, world, barrier);
        });
  }
}

bool Launcher::StartSecond(Duration how_long, std::function<bool()> is_over) {
  if (!Trains() || stopping_ || stopped_) return false;
  second_ = Attempt{++begun_};
  told_[second_] = Attempt{random_.Below(kNumbersDrawn)};
  machine_.history.OnAttempt(second_, told_[second_]);
  second_began_in_ = attempt_;
  is_over_ = std::move(is_over);
  StartRanks(second_, 1 + random_.Below(present_world_));
  machine_.kernel->Deliver(how_long, [this, alive = std::weak_ptr(alive_), second = second_] {
    if (alive.expired()) return;
    if (second == second_) second_ = Attempt{};
    for (const auto& trainer : trainers_) {
      if (trainer->attempt() == second) trainer->Kill(MemoryLag());
    }
  });
  return true;
}

// A decision for it would have ended the timeline of those that train.
void Launcher::CheckSecond() {
  if (second_ == Attempt{} || second_began_in_ != attempt_ || !Trains()) return;
  const bool trains = std::ranges::any_of(trainers_, [this](const auto& trainer) {
    return trainer->attempt() == second_ && trainer->training();
  });
  if (!trains || is_over_()) return;
  machine_.trace.Fail("attempt {} restores while all ranks of attempt {} live", second_, attempt_);
}

Attempt Launcher::NumberFor(Attempt attempt) {
  switch (numbers_) {
    case Numbers::kCounted:
      return attempt;
    case Numbers::kAllTheSame:
      return Attempt{0};
    case Numbers::kDrawn:
      return Attempt{random_.Below(kNumbersDrawn)};
  }
  return attempt;
}

void Launcher::StartRank(Attempt attempt, Rank rank, uint64_t world,
                         std::shared_ptr<StepBarrier> barrier) {
  TrainerOptions options = like_;
  options.rank = rank;
  options.world = world;
  options.attempt = attempt;
  options.told = told_.at(attempt);
  if (attempt == attempt_) options.at_or_before = present_at_or_before_;
  if (machine_.bug == PlantedBug::kNoFence) options.client.capture.probe_lines = 0;
  options.device.says_done_early = machine_.bug == PlantedBug::kCopiesTooEarly;
  trainers_.push_back(std::make_unique<TrainerProcess>(
      *homes_[rank.value % homes_.size()], std::move(options), std::move(barrier),
      [this, attempt, rank](absl::Status status) {
        machine_.kernel->Deliver(Duration{}, [this, alive = std::weak_ptr(alive_), attempt, rank,
                                              status = std::move(status)] {
          if (!alive.expired()) OnExit(attempt, rank, status);
        });
      }));
}

void Launcher::OnExit(Attempt attempt, Rank rank, const absl::Status& status) {
  for (const auto& trainer : trainers_) {
    if (trainer->attempt() == attempt && trainer->rank() == rank) trainer->Kill(MemoryLag());
  }
  // Of the last attempt: a later one may have found what this one did not.
  if (attempt == attempt_ && IsGivenUp(status)) wants_fresh_start_ = true;
  OnEnd(attempt);
}

bool Launcher::IsGivenUp(const absl::Status& status) const {
  if (!absl::IsDataLoss(status)) return false;
  return absl::StrContains(status.message(), "unrecoverable") ||
         (gives_up_copies_ && absl::StrContains(status.message(), "no durable copy could be"));
}

void Launcher::OnEnd(Attempt attempt) {
  if (attempt != attempt_ || stopping_ || stopped_) return;
  StopRest();
  const Duration delay = milliseconds(1 + random_.Below(40));
  machine_.kernel->Deliver(delay, [this, alive = std::weak_ptr(alive_), attempt] {
    if (alive.expired() || attempt != attempt_) return;
    wants_fresh_start_ ? DeclareFreshStart() : StartAttempt();
  });
}

void Launcher::StopRest() {
  stopping_ = true;
  for (TrainerProcess* trainer : Present()) {
    const bool late = late_kills_ && random_.OneIn(6);
    if (late && random_.OneIn(2)) trainer->RunAway();
    KillLater(*trainer,
              late ? milliseconds(100 + random_.Below(900)) : milliseconds(random_.Below(20)));
  }
}

void Launcher::KillLater(TrainerProcess& trainer, Duration delay) {
  machine_.kernel->Deliver(delay, [this, alive = std::weak_ptr(alive_), rank = trainer.rank(),
                                   attempt = trainer.attempt()] {
    if (alive.expired()) return;
    for (const auto& other : trainers_) {
      if (other->rank() == rank && other->attempt() == attempt) other->Kill(MemoryLag());
    }
  });
}

// How long a killed process takes to let go of its memory after its last copy.
Duration Launcher::MemoryLag() {
  return Duration(random_.Below(Duration(milliseconds(random_.OneIn(4) ? 60 : 1)).count()));
}

void Launcher::DeclareFreshStart() {
  if (stopped_) return;
  admin_channel_.reset();
  admin_connector_ = homes_.front()->network.NewConnector(*machine_.kernel, kSocketPath);
  admin_connector_->Connect([this](absl::StatusOr<std::unique_ptr<Channel>> channel) {
    if (!channel.ok()) return;  // tried again below
    admin_channel_ = *std::move(channel);
    admin_channel_->Start(
        [this](const Frame& frame) {
          const absl::StatusOr<AdminReply> reply = FromFrame<AdminReply>(frame);
          if (!reply.ok() || !reply->status.ToStatus().ok() || !wants_fresh_start_) return;
          wants_fresh_start_ = false;
          StartAttempt();
        },
        [](const absl::Status&) {});
    machine_.history.OnFreshStartAsked(attempt_);
    admin_channel_->Send(ToFrame(AdminRequest{"fresh-start", R"({"force":true})"}));
  });
  machine_.kernel->Deliver(milliseconds(50),
                           [this, alive = std::weak_ptr(alive_), attempt = attempt_] {
                             if (!alive.expired() && attempt == attempt_ && wants_fresh_start_)
                               DeclareFreshStart();
                           });
}

void Launcher::OrderFreshStart(Machine& at, bool force, OrderDone done) {
  Order(at, {"fresh-start", force ? R"({"force":true})" : "{}"}, std::move(done));
}

void Launcher::OrderRewind(Machine& at, std::optional<Step> to, OrderDone done) {
  std::string arguments = to ? fmt::format(R"({{"step":{}}})", to->value) : R"({"cancel":true})";
  Order(at, {"rewind", std::move(arguments)}, std::move(done));
}

void Launcher::OrderResize(Machine& at, const std::string& order, OrderDone done) {
  Order(at, {"resize", order.empty() ? R"({"cancel":true})" : order}, std::move(done));
}

void Launcher::Order(Machine& at, AdminRequest request, OrderDone done) {
  OrderLink& link = orders_[request.verb];
  link.channel.reset();
  link.connector = at.network.NewConnector(*machine_.kernel, kSocketPath);
  auto shared = std::make_shared<OrderDone>(std::move(done));
  link.connector->Connect([this, &link, request = std::move(request),
                           shared](absl::StatusOr<std::unique_ptr<Channel>> channel) {
    if (!channel.ok()) return (*shared)(channel.status());
    link.channel = *std::move(channel);
    link.channel->Start(
        [shared](const Frame& frame) {
          const absl::StatusOr<AdminReply> reply = FromFrame<AdminReply>(frame);
          if (reply.ok()) (*shared)(reply->status.ToStatus());
        },
        [](const absl::Status&) {});
    if (request.verb == "fresh-start") {
      machine_.history.OnFreshStartOrdered(machine_.scheduler.now() + kOrderHolds);
    }
    link.channel->Send(ToFrame(request));
  });
}

void Launcher::AfterEvent() {
  std::erase_if(trainers_, [](const auto& trainer) { return trainer->gone(); });
  for (const auto& trainer : trainers_) trainer->CheckDeadline();
  CheckSecond();
}

bool Launcher::KillOne() {
  std::vector<TrainerProcess*> present = Present();
  if (present.empty()) return false;
  present[random_.Below(present.size())]->Kill(MemoryLag());
  OnEnd(attempt_);
  return true;
}

void Launcher::SuspendOne(Duration pause) {
  TrainerProcess* trainer = Any();
  if (trainer == nullptr) return;
  trainer->Suspend();
  machine_.kernel->Deliver(pause, [this, alive = std::weak_ptr(alive_),
                                   attempt = trainer->attempt(), rank = trainer->rank()] {
    if (alive.expired()) return;
    for (const auto& other : trainers_) {
      if (other->rank() == rank && other->attempt() == attempt) other->Resume();
    }
  });
}

void Launcher::KillAll() {
  stopped_ = true;
  for (const auto& trainer : trainers_) trainer->Kill(MemoryLag());
}

void Launcher::KillForReboot() {
  for (const auto& trainer : trainers_) trainer->Kill(Duration{});
  OnEnd(attempt_);
}

void Launcher::KillOn(const Machine& machine) {
  for (const auto& trainer : trainers_) {
    if (&trainer->machine() == &machine) trainer->Kill(Duration{});
  }
  OnEnd(attempt_);
}

std::vector<TrainerProcess*> Launcher::Present() {
  std::vector<TrainerProcess*> present;
  for (const auto& trainer : trainers_) {
    if (trainer->attempt() == attempt_ && !trainer->killed()) present.push_back(trainer.get());
  }
  return present;
}

TrainerProcess* Launcher::Any() {
  std::vector<TrainerProcess*> present = Present();
  return present.empty() ? nullptr : present[random_.Below(present.size())];
}

bool Launcher::Trains() const {
  uint64_t training = 0;
  for (const auto& trainer : trainers_) {
    training += trainer->attempt() == attempt_ && trainer->training();
  }
  return training > 0 && training == present_world_;
}

}  // namespace unreft::sim
