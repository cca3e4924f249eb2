// Sessions: who is connected to this node, and which lives train here.
//
// A connection says in its first frame whether it is a trainer or the command. A trainer's life has
// one session, which outlives its connections and ends with the life, or when another life or
// another attempt comes in its place. The sessions themselves are in NodeState, where all desks
// find them; they are begun and ended here and nowhere else.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <list>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "base/channel.h"
#include "base/lifetime.h"
#include "base/session_frames.h"
#include "smp/desk/node_state.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class Sessions {
 public:
  using AdminAnswer = absl::AnyInvocable<void(AdminReply)>;

  // What the node does for those who are let in.
  class Host {
   public:
    virtual ~Host() = default;

    // A session has begun; it has no connection yet.
    virtual void OnSessionBegun() = 0;
    // It has a connection and is to be welcomed. `follows` is the timeline that its trainer named.
    virtual void OnConnected(RankSession& session, Timeline follows) = 0;
    // A frame after its Hello. Where it returns an error, the connection is refused with that.
    virtual absl::Status OnTrainerFrame(RankSession& session, const Frame& frame) = 0;
    // The command asks; `answer` may be called later, when nobody listens any more.
    virtual void OnAdminRequest(const AdminRequest& request, AdminAnswer answer) = 0;
    // It is over: nobody keeps hold of it after this call.
    virtual void OnSessionEnding(RankSession& session) = 0;
    // It is not in NodeState any more.
    virtual void OnSessionEnded() = 0;
  };

  Sessions(NodeState& state, Host& host) : state_(state), host_(host) {}
  ~Sessions();
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;

  // The node has started: before that all are turned away.
  void Open() { is_open_ = true; }

  void Accept(std::unique_ptr<Channel> channel, PeerIdentity peer);

 private:
  // A connection, and the life that it turned out to belong to.
  struct Connection {
    std::unique_ptr<Channel> channel;
    PeerIdentity peer;
    std::optional<std::pair<Rank, ProcessLife>> trainer;
    bool is_silent = true;  // nothing came yet
    TimerId hello_timer = TimerId::kNone;
  };
  using ConnectionIt = std::list<Connection>::iterator;

  void CloseOldestSilent();
  void CloseSilent(ConnectionIt connection);
  void TurnAway(std::unique_ptr<Channel> channel);
  void OnFrame(ConnectionIt connection, const Frame& frame);
  void OnHello(ConnectionIt connection, const Frame& frame);
  void OnAdminRequest(ConnectionIt connection, const Frame& frame);
  void OnClosed(ConnectionIt connection);
  void Refuse(ConnectionIt connection, const absl::Status& status, bool retry);

  void EndSupersededBy(const Hello& hello);
  void Begin(const Hello& hello);
  void OnLifeEnded(Rank rank, ProcessLife life);
  void End(Rank rank, ProcessLife life, std::string_view why);

  NodeState& state_;
  Host& host_;
  bool is_open_ = false;
  std::list<Connection> connections_;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
