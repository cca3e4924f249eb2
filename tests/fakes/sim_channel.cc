#include "tests/fakes/sim_channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"

namespace unreft {

// Two ends, 0 the connector's and 1 the listener's, and what is on its way to each. Kept alive by
// the channels and by the events under way.
class SimLocalNetwork::Link : public std::enable_shared_from_this<Link> {
 public:
  Link(SimScheduler& scheduler, const SimChannelOptions& options, SimExecutor& connecting,
       SimExecutor& listening)
      : scheduler_(scheduler), options_(options), ends_{End{&connecting}, End{&listening}} {}

  // Nothing arrives at that end before `delay` has passed.
  void HoldBack(int end, Duration delay) { ends_[end].last_arrival = scheduler_.now() + delay; }

  void Start(int end, Channel::OnFrame on_frame, Channel::OnClose on_close) {
    End& self = ends_[end];
    UNREFT_CHECK(!std::exchange(self.started, true), "a channel is started once");
    if (self.silent) return;
    self.on_close = std::move(on_close);
    if (self.open) self.on_frame = std::move(on_frame);
  }

  void Send(int end, Frame frame) {
    if (!ends_[end].open) return;
    End& peer = ends_[1 - end];
    const absl::Status refused = CheckSend(peer, frame);
    if (!refused.ok()) return Fail(end, refused);
    peer.bytes_coming += frame.payload.size();
    Arrive(1 - end, std::move(frame));
  }

  // The end hears nothing any more, and the peer hears of it after the frames.
  void Close(int end) {
    ends_[end].silent = true;
    const auto on_close = std::exchange(ends_[end].on_close, nullptr);
    Shut(end);
  }

  // Both ends close, and some of the last frames to each are lost.
  void Cut() {
    for (int end : {0, 1}) LoseLast(end);
    Fail(0, absl::UnavailableError("the channel was cut"));
  }

  // If an end is in that process, which died: what it had queued may never have left it.
  void Die(const SimExecutor& process) {
    for (int end : {0, 1}) {
      if (ends_[end].process != &process) continue;
      if (ends_[end].open) LoseLast(1 - end);
      Close(end);
      ends_[end].process = nullptr;
    }
  }

  // The ends never hear from each other again.
  void Sever() { ends_[0].process = ends_[1].process = nullptr; }

  bool HasEndIn(const SimExecutor& process) const {
    return ends_[0].process == &process || ends_[1].process == &process;
  }

 private:
  struct End {
    SimExecutor* process;  // null when it died
    bool open = true;      // sends and takes frames
    bool silent = false;   // closed by its owner
    bool started = false;
    Channel::OnFrame on_frame;
    Channel::OnClose on_close;
    std::deque<Frame> coming;
    size_t bytes_coming = 0;
    Duration last_arrival{0};
  };

  absl::Status CheckSend(const End& peer, const Frame& frame) const {
    if (frame.payload.size() > options_.frame_bytes_max) {
      return absl::InvalidArgumentError(
          fmt::format("a frame of type {} has {} payload bytes, frame_bytes_max is {}", frame.type,
                      frame.payload.size(), options_.frame_bytes_max));
    }
    if (peer.bytes_coming + frame.payload.size() > options_.send_queue_bytes_max) {
      return absl::ResourceExhaustedError(
          fmt::format("{} bytes wait to be sent, {} more pass send_queue_bytes_max of {}",
                      peer.bytes_coming, frame.payload.size(), options_.send_queue_bytes_max));
    }
    return absl::OkStatus();
  }

  void Shut(int end) {
    if (!std::exchange(ends_[end].open, false)) return;
    const auto on_frame = std::exchange(ends_[end].on_frame, nullptr);
    Arrive(1 - end, std::nullopt);
  }

  // The end closes and hears why in a later turn.
  void Fail(int end, absl::Status why) {
    if (!ends_[end].open) return;
    Shut(end);
    if (ends_[end].process == nullptr) return;
    ends_[end].process->Post([link = shared_from_this(), end, why = std::move(why)] {
      auto on_close = std::exchange(link->ends_[end].on_close, nullptr);
      if (on_close) on_close(why);
    });
  }

  void LoseLast(int end) {
    std::deque<Frame>& coming = ends_[end].coming;
    coming.resize(coming.size() - scheduler_.random().Below(coming.size() + 1));
  }

  // Lets a frame, or the peer's end, arrive at `end` after everything that is on its way there.
  void Arrive(int end, std::optional<Frame> frame) {
    End& to = ends_[end];
    if (to.process == nullptr) return;
    const Duration now = scheduler_.now();
    to.last_arrival =
        std::max(to.last_arrival, now + scheduler_.RandomDelay(options_.delay_max)) + Duration(1);
    const bool is_frame = frame.has_value();
    if (is_frame) to.coming.push_back(std::move(*frame));
    to.process->Deliver(to.last_arrival - now, [link = shared_from_this(), end, is_frame] {
      is_frame ? link->TakeFrame(end) : link->TakeEnd(end);
    });
  }

  void TakeFrame(int end) {
    End& to = ends_[end];
    if (to.coming.empty()) return;  // lost with its sender
    Frame frame = std::move(to.coming.front());
    to.coming.pop_front();
    to.bytes_coming -= frame.payload.size();
    if (!to.open) return;
    UNREFT_CHECK(to.started, "a channel is started in the turn it was obtained in");
    // Out of the end while it runs, since it may destroy the channel.
    auto on_frame = std::exchange(to.on_frame, nullptr);
    on_frame(std::move(frame));
    if (to.open) to.on_frame = std::move(on_frame);
  }

  void TakeEnd(int end) {
    if (!ends_[end].open) return;
    auto on_close = std::exchange(ends_[end].on_close, nullptr);
    Shut(end);
    if (on_close) on_close(absl::UnavailableError("the peer closed the channel"));
  }

  SimScheduler& scheduler_;
  const SimChannelOptions options_;
  End ends_[2];
};

struct SimLocalNetwork::State : std::enable_shared_from_this<State> {
  State(SimScheduler& s, const SimChannelOptions& o) : scheduler(s), options(o) {}
  // Nobody would tell them of a process's death any more.
  ~State() {
    for (const auto& weak : links) {
      if (const auto link = weak.lock()) link->Sever();
    }
  }

  void AddLink(const std::shared_ptr<Link>& link) {
    std::erase_if(links, [](const auto& old) { return old.expired(); });
    links.push_back(link);
  }

  std::vector<std::shared_ptr<Link>> LinksOf(const SimExecutor& process) const {
    std::vector<std::shared_ptr<Link>> found;
    for (const auto& weak : links) {
      const auto link = weak.lock();
      if (link && link->HasEndIn(process)) found.push_back(link);
    }
    return found;
  }

  // Sees to it that the channels of a process die with it.
  void Know(SimExecutor& process) {
    if (!known.insert(&process).second) return;
    process.AtKill([weak = weak_from_this(), dead = &process] {
      const auto state = weak.lock();
      if (!state) return;
      for (const auto& link : state->LinksOf(*dead)) link->Die(*dead);
      state->known.erase(dead);  // another process may get its address
    });
  }

  SimScheduler& scheduler;
  const SimChannelOptions options;
  std::map<std::string, SimListener*> listeners;
  std::vector<std::weak_ptr<Link>> links;  // in the order of connecting
  std::set<const SimExecutor*> known;
};

class SimLocalNetwork::SimChannel final : public Channel {
 public:
  SimChannel(std::shared_ptr<Link> link, int end) : link_(std::move(link)), end_(end) {}
  ~SimChannel() override { link_->Close(end_); }
  void Start(OnFrame on_frame, OnClose on_close) override {
    link_->Start(end_, std::move(on_frame), std::move(on_close));
  }
  void Send(Frame frame) override { link_->Send(end_, std::move(frame)); }
  void Close() override { link_->Close(end_); }

 private:
  const std::shared_ptr<Link> link_;
  const int end_;
};

class SimLocalNetwork::SimListener final : public Listener {
 public:
  SimListener(std::shared_ptr<State> state, SimExecutor& process, std::string path)
      : state_(std::move(state)),
        process_(process),
        path_(std::move(path)),
        self_(std::make_shared<SimListener*>(this)) {
    state_->listeners[path_] = this;
  }
  ~SimListener() override {
    const auto found = state_->listeners.find(path_);
    // A killed process's path may have another listener by now.
    if (found != state_->listeners.end() && found->second == this) state_->listeners.erase(found);
  }
  void Start(OnAccept on_accept) override {
    UNREFT_CHECK(!on_accept_, "a listener is started once");
    on_accept_ = std::move(on_accept);
  }

  // The channel waits for its acceptance like one in a backlog: if the listener goes, it closes.
  void Enqueue(Duration delay, std::unique_ptr<Channel> channel, PeerIdentity peer) {
    process_.Deliver(delay,
                     [self = std::weak_ptr(self_), channel = std::move(channel), peer]() mutable {
                       // Not locked meanwhile, so that Accept sees it end.
                       SimListener* listener = self.expired() ? nullptr : *self.lock();
                       if (listener != nullptr) listener->Accept(std::move(channel), peer);
                     });
  }

  SimExecutor& process() { return process_; }

 private:
  void Accept(std::unique_ptr<Channel> channel, PeerIdentity peer) {
    UNREFT_CHECK(on_accept_, "a listener is started in the turn of its construction");
    const std::weak_ptr<SimListener*> alive = self_;
    auto on_accept = std::exchange(on_accept_, nullptr);  // it may destroy the listener
    on_accept(std::move(channel), peer);
    if (!alive.expired()) on_accept_ = std::move(on_accept);
  }

  const std::shared_ptr<State> state_;
  SimExecutor& process_;
  const std::string path_;
  OnAccept on_accept_;
  const std::shared_ptr<SimListener*> self_;  // dies with the listener
};

class SimLocalNetwork::SimConnector final : public Connector {
 public:
  SimConnector(std::shared_ptr<State> state, SimExecutor& process, std::string path,
               PeerIdentity self)
      : state_(std::move(state)),
        process_(process),
        path_(std::move(path)),
        self_(self),
        pending_(std::make_shared<OnConnect>()) {}

  void Connect(OnConnect done) override {
    UNREFT_CHECK(!*pending_, "one Connect at a time");
    if (process_.killed()) return;
    *pending_ = std::move(done);
    const Duration delay = state_->scheduler.RandomDelay(state_->options.delay_max);
    process_.Deliver(delay, [pending = std::weak_ptr(pending_), result = Try(delay)]() mutable {
      const auto alive = pending.lock();
      if (alive) std::exchange(*alive, nullptr)(std::move(result));
    });
  }

 private:
  absl::StatusOr<std::unique_ptr<Channel>> Try(Duration delay) {
    const auto found = state_->listeners.find(path_);
    if (found == state_->listeners.end() || found->second->process().killed()) {
      return absl::UnavailableError(fmt::format("{}: nobody listens", path_));
    }
    SimListener& listener = *found->second;
    auto link =
        std::make_shared<Link>(state_->scheduler, state_->options, process_, listener.process());
    const Duration accept_delay = state_->scheduler.RandomDelay(state_->options.delay_max);
    link->HoldBack(0, delay);
    link->HoldBack(1, accept_delay);
    state_->AddLink(link);
    listener.Enqueue(accept_delay, std::make_unique<SimChannel>(link, 1), self_);
    return std::make_unique<SimChannel>(link, 0);
  }

  const std::shared_ptr<State> state_;
  SimExecutor& process_;
  const std::string path_;
  const PeerIdentity self_;
  const std::shared_ptr<OnConnect> pending_;  // dies with the connector
};

SimLocalNetwork::SimLocalNetwork(SimScheduler& scheduler, SimChannelOptions options)
    : state_(std::make_shared<State>(scheduler, options)) {}

SimLocalNetwork::~SimLocalNetwork() = default;

absl::StatusOr<std::unique_ptr<Listener>> SimLocalNetwork::Listen(SimExecutor& process,
                                                                  const std::string& path) {
  const auto found = state_->listeners.find(path);
  if (found != state_->listeners.end() && !found->second->process().killed()) {
    return absl::AlreadyExistsError(fmt::format("{}: another process listens there", path));
  }
  state_->Know(process);
  return std::make_unique<SimListener>(state_, process, path);
}

std::unique_ptr<Connector> SimLocalNetwork::NewConnector(SimExecutor& process,
                                                         const std::string& path,
                                                         PeerIdentity self) {
  state_->Know(process);
  return std::make_unique<SimConnector>(state_, process, path, self);
}

void SimLocalNetwork::Cut(SimExecutor& process) {
  for (const auto& link : state_->LinksOf(process)) link->Cut();
}

}  // namespace unreft
