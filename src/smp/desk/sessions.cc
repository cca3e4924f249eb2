#include "smp/desk/sessions.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/format.h"
#include "smp/desk/admission.h"

namespace unreft::smp {
namespace {

// How long the daemon goes on listening to a trainer that is dead.
constexpr Duration kLastWords = std::chrono::seconds(1);

constexpr Duration kSilentWarnEvery = std::chrono::seconds(10);
constexpr Duration kSameRefusal = std::chrono::seconds(30);

// Why a trainer is gone.
constexpr std::string_view kEnded = "its process has ended";
constexpr std::string_view kTakenOver = "another process is this rank by now";
constexpr std::string_view kOtherAttempt = "another attempt of the job has begun";

}  // namespace

Sessions::~Sessions() {
  for (const Connection& connection : connections_) {
    state_.seams.executor.Cancel(connection.hello_timer);
  }
  for (auto& [rank, session] : state_.sessions) state_.seams.processes.Unwatch(session->watch);
}

// --- connections ---

void Sessions::Accept(std::unique_ptr<Channel> channel, PeerIdentity peer) {
  if (connections_.size() >= state_.options.sessions_max) CloseOldestSilent();
  if (!is_open_ || connections_.size() >= state_.options.sessions_max) {
    return TurnAway(std::move(channel));
  }
  connections_.push_back({std::move(channel), peer, std::nullopt});
  const ConnectionIt connection = std::prev(connections_.end());
  connection->hello_timer =
      state_.seams.executor.After(state_.options.hello_timeout, [this, connection] {
        connection->hello_timer = TimerId::kNone;
        CloseSilent(connection);
      });
  connection->channel->Start([this, connection](Frame frame) { OnFrame(connection, frame); },
                             [this, connection](absl::Status) { OnClosed(connection); });
}

// Whoever says nothing takes no place from those that do.
void Sessions::CloseOldestSilent() {
  const auto silent = std::ranges::find_if(connections_, &Connection::is_silent);
  if (silent != connections_.end()) CloseSilent(silent);
}

void Sessions::CloseSilent(ConnectionIt connection) {
  state_.seams.log.WarnEvery(
      "silent", kSilentWarnEvery, state_.seams.executor.Now(),
      "a connection of pid {} is closed: it said nothing, needed Hello or a question within {} s",
      connection->peer.pid,
      std::chrono::duration_cast<std::chrono::seconds>(state_.options.hello_timeout).count());
  connection->channel->Close();
  OnClosed(connection);
}

void Sessions::TurnAway(std::unique_ptr<Channel> channel) {
  const auto status = absl::UnavailableError(
      is_open_ ? fmt::format("node {}: {} connections are open already, the limit is "
                             "--sessions-max {}",
                             state_.options.node, connections_.size(), state_.options.sessions_max)
               : fmt::format("node {}: still starting", state_.options.node));
  channel->Start([](Frame) {}, [](absl::Status) {});
  channel->Send(ToFrame(Refused{status, true}));
  channel->Close();
}

void Sessions::OnFrame(ConnectionIt connection, const Frame& frame) {
  if (std::exchange(connection->is_silent, false)) {
    state_.seams.executor.Cancel(std::exchange(connection->hello_timer, TimerId::kNone));
  }
  if (connection->trainer) {
    RankSession* session = state_.SessionOf(connection->trainer->first);
    // A session that another life took over hears no more of its former trainer.
    if (session == nullptr || !session->IsAttachedTo(connection->channel.get())) return;
    absl::Status status = host_.OnTrainerFrame(*session, frame);
    if (!status.ok()) Refuse(connection, status, false);
    return;
  }
  switch (static_cast<FrameType>(frame.type)) {
    case FrameType::kHello:
      return OnHello(connection, frame);
    case FrameType::kAdminRequest:
      return OnAdminRequest(connection, frame);
    default:
      break;
  }
  Refuse(connection,
         absl::InvalidArgumentError(
             fmt::format("needed Hello first, found {}", FrameTypeName(FrameType{frame.type}))),
         false);
}

void Sessions::OnClosed(ConnectionIt connection) {
  const auto trainer = connection->trainer;
  RankSession* session = trainer ? state_.SessionOf(trainer->first) : nullptr;
  const bool attached = session != nullptr && session->IsAttachedTo(connection->channel.get());
  if (attached) {
    session->Detach();
    if (!session->life_ended) {
      state_.seams.log.Info("rank {} (pid {}) has closed its connection; its process may live",
                            session->rank(), session->life().pid);
    }
  }
  state_.seams.executor.Cancel(connection->hello_timer);
  connections_.erase(connection);
  if (attached && session->life_ended) End(trainer->first, trainer->second, kEnded);
}

void Sessions::Refuse(ConnectionIt connection, const absl::Status& status, bool retry) {
  ++state_.counters.sessions_refused;
  // A client tries again and again until its deadline.
  state_.seams.log.WarnEvery(
      fmt::format("refused: {} {}", connection->peer.pid, std::string(status.message())),
      kSameRefusal, state_.seams.executor.Now(), "a session of pid {} is refused: {}",
      connection->peer.pid, status.message());
  connection->channel->Send(ToFrame(Refused{status, retry}));
  connection->channel->Close();
  OnClosed(connection);
}

void Sessions::OnAdminRequest(ConnectionIt connection, const Frame& frame) {
  absl::StatusOr<AdminRequest> request = FromFrame<AdminRequest>(frame);
  if (!request.ok()) return Refuse(connection, request.status(), false);
  Channel* channel = connection->channel.get();
  // The asker may be gone when the answer is there.
  host_.OnAdminRequest(*request, lifetime_.Bind([this, channel](AdminReply answer) {
    for (Connection& open : connections_) {
      if (open.channel.get() == channel) channel->Send(ToFrame(std::move(answer)));
    }
  }));
}

void Sessions::OnHello(ConnectionIt connection, const Frame& frame) {
  absl::StatusOr<Hello> hello = FromFrame<Hello>(frame);
  if (!hello.ok()) return Refuse(connection, hello.status(), false);
  if (absl::Status status = Admit(state_, *hello, connection->peer); !status.ok()) {
    // A rank whose earlier life is about to end may come again.
    return Refuse(connection, status, absl::IsAlreadyExists(status));
  }
  connection->peer.pidfd.reset();
  EndSupersededBy(*hello);
  if (state_.SessionOf(hello->rank) == nullptr) Begin(*hello);
  RankSession& session = *state_.SessionOf(hello->rank);
  connection->trainer = {hello->rank, hello->life};
  session.Attach(connection->channel.get());
  state_.seams.log.Info("rank {} of {} (pid {}) is connected, attempt {}", session.rank(),
                        session.world(), session.life().pid, session.attempt());
  host_.OnConnected(session, hello->timeline);
}

// --- sessions ---

// The rank's earlier life, and all of other attempts.
void Sessions::EndSupersededBy(const Hello& hello) {
  std::vector<std::pair<Rank, ProcessLife>> over;
  for (const auto& [rank, session] : state_.sessions) {
    const bool same_rank = rank == hello.rank && session->life() != hello.life;
    if (same_rank || session->attempt() != hello.attempt) over.push_back({rank, session->life()});
  }
  for (const auto& [rank, life] : over) {
    End(rank, life, rank == hello.rank ? kTakenOver : kOtherAttempt);
  }
}

void Sessions::Begin(const Hello& hello) {
  std::erase(state_.lives_before, hello.life);
  auto session = std::make_unique<RankSession>(hello, state_.seams.segments);
  session->watch = state_.seams.processes.Watch(
      hello.life, [this, rank = hello.rank, life = hello.life] { OnLifeEnded(rank, life); });
  state_.sessions[hello.rank] = std::move(session);
  host_.OnSessionBegun();
}

void Sessions::OnLifeEnded(Rank rank, ProcessLife life) {
  RankSession* session = state_.SessionOf(rank);
  if (session == nullptr || session->life() != life) return;
  session->life_ended = true;
  if (!session->connected()) return End(rank, life, kEnded);
  // What it said last may still be on the way; but a forked child may hold the socket open.
  state_.seams.executor.After(kLastWords,
                              lifetime_.Bind([this, rank, life] { End(rank, life, kEnded); }));
}

void Sessions::End(Rank rank, ProcessLife life, std::string_view why) {
  RankSession* session = state_.SessionOf(rank);
  if (session == nullptr || session->life() != life) return;
  state_.seams.log.Info("rank {} (pid {}) is gone: {}", rank, life.pid, why);
  session->Send(Refused{absl::AbortedError("another process is this rank by now; this "
                                           "one trains on unprotected"),
                        false});
  host_.OnSessionEnding(*session);
  state_.seams.processes.Unwatch(session->watch);
  session->RemoveControl();
  state_.sessions.erase(rank);
  host_.OnSessionEnded();
}

}  // namespace unreft::smp
