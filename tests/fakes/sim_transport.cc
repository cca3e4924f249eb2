#include "tests/fakes/sim_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"

namespace unreft {
namespace {

constexpr char kRead[] = "Read";

bool Draw(Random& random, uint32_t one_in) { return one_in > 0 && random.OneIn(one_in); }

}  // namespace

struct SimNetwork::State {
  State(SimScheduler& s, const SimTransportOptions& o) : scheduler(s), options(o) {}

  bool Blocked(const std::string& from, const std::string& to) const {
    return blocked.contains({from, to}) ||
           (from != to && (isolated.contains(from) || isolated.contains(to)));
  }

  // Whether a message from one to the other gets lost; counts it.
  bool Lose(const std::string& from, const std::string& to) {
    ++counts.sent;
    const bool lost = Blocked(from, to) || Draw(scheduler.random(), options.lose_one_in);
    if (lost) ++counts.lost;
    return lost;
  }

  Duration DrawDelay() {
    const bool slow = Draw(scheduler.random(), options.slow_one_in);
    return scheduler.RandomDelay(slow ? options.slow_max : options.delay_max);
  }

  // Null when nobody is there.
  std::shared_ptr<Node> Find(const std::string& address) const {
    const auto found = nodes.find(address);
    return found == nodes.end() ? nullptr : found->second;
  }

  SimScheduler& scheduler;
  SimTransportOptions options;
  std::map<std::string, std::shared_ptr<Node>> nodes;  // alive, by address
  std::set<std::pair<std::string, std::string>> blocked;
  std::set<std::string> isolated;
  Counts counts;
};

// One life of a node: what arrives at it, and what it waits for. Shared with messages under way;
// it does nothing any more once it is dead.
class SimNetwork::Node : public std::enable_shared_from_this<Node> {
 public:
  Node(std::shared_ptr<State> state, SimExecutor& process, std::string address)
      : state_(std::move(state)), process_(&process), address_(std::move(address)) {}

  const std::string& address() const { return address_; }
  bool alive() const { return process_ != nullptr; }

  // `killed`: the process died, and its executor with it.
  void Die(bool killed) {
    if (!alive()) return;
    const bool silent = killed && Draw(random(), state_->options.silent_death_one_in);
    process_ = nullptr;
    state_->nodes.erase(address_);
    call_handlers_.clear();
    read_handler_ = nullptr;
    // Memory of this process is nobody's any more.
    for (const auto& leaving : std::exchange(leaving_, {})) {
      if (const auto source = leaving.lock()) source->hold.reset();
    }
    // Out of the node first: what a callback owns may reach for the transport.
    const auto dropped = std::exchange(pending_, {});
    const auto callers = std::exchange(callers_, {});
    if (silent) return;
    for (const auto& [key, caller] : callers) {
      const auto node = caller.lock();
      if (node && !state_->Blocked(address_, node->address_)) {
        node->Break(key.second, "the peer went away");
      }
    }
  }

  TransferId Begin(const std::string& to, const std::string& method, std::string request,
                   std::span<std::byte> into, bool is_read, Duration timeout,
                   Transport::CallDone done) {
    UNREFT_CHECK(!alive() || process_->InTurn(), "a transport is used in turns");
    const uint64_t id = ++last_id_;
    if (!alive()) return TransferId{id};
    const absl::Status allowed =
        CheckLimits(is_read ? std::max(into.size(), request.size()) : request.size(), is_read);
    Pending& pending = pending_[id];
    pending = {.to = to, .method = method, .into = into, .is_read = is_read};
    pending.done = std::move(done);
    const auto weak = weak_from_this();
    if (!allowed.ok()) {
      EndSoon(id, Duration::zero(), allowed);
      return TransferId{id};
    }
    pending.timer = process_->After(timeout, [weak, id, timeout] {
      if (const auto self = weak.lock()) {
        self->End(id, absl::DeadlineExceededError(fmt::format(
                          "no answer within {} ms",
                          std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count())));
      }
    });
    SendRequest(id, pending, std::move(request));
    return TransferId{id};
  }

  void Cancel(TransferId transfer) {
    const auto id = static_cast<uint64_t>(transfer);
    const auto found = pending_.find(id);
    if (found == pending_.end() || !found->second.is_read) return;
    EndSoon(id, Duration::zero(), absl::CancelledError("cancelled"));
  }

  void Serve(const std::string& method, Transport::CallHandler handler) {
    if (!handler) {
      call_handlers_.erase(method);
    } else if (alive()) {
      call_handlers_[method] = std::make_shared<Transport::CallHandler>(std::move(handler));
    }
  }
  void ServeReads(Transport::ReadHandler handler) {
    read_handler_ =
        handler && alive() ? std::make_shared<Transport::ReadHandler>(std::move(handler)) : nullptr;
  }

 private:
  struct Pending {
    std::string to;
    std::string method;
    std::span<std::byte> into;
    bool is_read = false;
    TimerId timer = TimerId::kNone;
    Transport::CallDone done;
  };
  // What an answer is to: a call of another node.
  struct Caller {
    std::weak_ptr<Node> node;
    std::string address;
    uint64_t id = 0;
  };

  Random& random() { return state_->scheduler.random(); }

  absl::Status CheckLimits(size_t message_bytes, bool is_read) const {
    const SimTransportOptions& options = state_->options;
    if (message_bytes > options.message_bytes_max) {
      return absl::ResourceExhaustedError(fmt::format("{} bytes, message_bytes_max is {}",
                                                      message_bytes, options.message_bytes_max));
    }
    const auto count = std::ranges::count_if(
        pending_, [&](const auto& entry) { return entry.second.is_read == is_read; });
    const size_t limit = is_read ? options.reads_in_flight_max : options.calls_in_flight_max;
    if (static_cast<size_t>(count) < limit) return absl::OkStatus();
    return absl::ResourceExhaustedError(fmt::format("{} {}s in flight, {}s_in_flight_max is {}",
                                                    count, is_read ? "read" : "call",
                                                    is_read ? "read" : "call", limit));
  }

  // --- The caller's side.

  void SendRequest(uint64_t id, const Pending& pending, std::string request) {
    if (state_->Lose(address_, pending.to)) return LoseFor(id, pending.to);
    const auto to = state_->Find(pending.to);
    if (!to) return EndSoon(id, state_->DrawDelay(), absl::UnavailableError("nobody is there"));
    const bool twice = !pending.is_read && Draw(random(), state_->options.duplicate_one_in);
    if (twice) SendAgain(id, pending, request);
    const Duration delay = state_->DrawDelay();
    to->callers_[{address_, id}] = weak_from_this();
    to->process_->Deliver(delay, [to, caller = Caller{weak_from_this(), address_, id},
                                  method = pending.method, is_read = pending.is_read,
                                  bytes = pending.into.size(), request = std::move(request)] {
      to->Arrive(caller, method, is_read, bytes, request);
    });
  }

  // The copy of a call, for whoever has the address when it arrives; nobody waits for its answer.
  void SendAgain(uint64_t id, const Pending& pending, const std::string& request) {
    ++state_->counts.duplicated;
    process_->RunOnThread(state_->scheduler.RandomDelay(state_->options.slow_max),
                          [state = state_, caller = Caller{{}, address_, id}, to = pending.to,
                           method = pending.method, request] {
                            const auto node = state->Find(to);
                            if (!node || state->Blocked(caller.address, to)) return;
                            node->process_->Deliver(
                                Duration::zero(), [node, caller, method, request] {
                                  node->Arrive(caller, method, /*is_read=*/false, 0, request);
                                });
                          });
  }

  // A message of that call was lost: when nothing else ends it, its deadline does.
  void LoseFor(uint64_t id, const std::string& other) {
    if (state_->Blocked(address_, other) || state_->Blocked(other, address_)) return;
    if (random().OneIn(2)) Break(id, "the connection broke");
  }

  void Break(uint64_t id, const std::string& why) {
    if (alive()) EndSoon(id, state_->DrawDelay(), absl::UnavailableError(why));
  }

  void EndSoon(uint64_t id, Duration delay, const absl::Status& status) {
    process_->Deliver(delay, [weak = weak_from_this(), id, status] {
      if (const auto self = weak.lock()) self->End(id, status);
    });
  }

  void End(uint64_t id, absl::StatusOr<std::string> result) {
    auto node = pending_.extract(id);
    if (!node) return;  // ended before
    Pending& pending = node.mapped();
    if (pending.timer != TimerId::kNone) process_->Cancel(pending.timer);
    if (const auto peer = state_->Find(pending.to)) peer->callers_.erase({address_, id});
    if (!result.ok()) {
      const absl::Status& why = result.status();
      result = absl::Status(why.code(), fmt::format("{} {}: {}", pending.to, pending.method,
                                                    std::string(why.message())));
    }
    pending.done(std::move(result));  // last: it may destroy the transport
  }

  // The first bytes of a read land, if it still waits for them.
  void LandSome(uint64_t id, const ReadSource& source, size_t bytes) {
    const auto found = pending_.find(id);
    if (found == pending_.end()) return;
    std::span<std::byte> into = found->second.into;
    into = into.first(std::min(bytes, into.size()));
    for (std::span<const std::byte> part : source.parts) {
      part = part.first(std::min(part.size(), into.size()));
      std::ranges::copy(part, into.begin());
      into = into.subspan(part.size());
    }
  }

  void Land(uint64_t id, const ReadSource& source) {
    const auto found = pending_.find(id);
    if (found == pending_.end()) return;
    LandSome(id, source, found->second.into.size());
    state_->counts.read_bytes += found->second.into.size();
    End(id, source.header);
  }

  // --- The handler's side.

  void Arrive(const Caller& caller, const std::string& method, bool is_read, uint64_t bytes,
              std::string request) {
    if (!alive()) return;  // Die has told the caller
    if (is_read) return ArriveRead(caller, bytes, std::move(request));
    const auto found = call_handlers_.find(method);
    if (found == call_handlers_.end()) {
      return Reply(caller, absl::UnimplementedError("no such method"));
    }
    // It may replace itself.
    const std::shared_ptr<Transport::CallHandler> handler = found->second;
    (*handler)(std::move(request),
               [weak = weak_from_this(), caller](absl::StatusOr<std::string> reply) {
                 if (const auto self = weak.lock()) self->Reply(caller, std::move(reply));
               });
  }

  void ArriveRead(const Caller& caller, uint64_t bytes, std::string request) {
    const std::shared_ptr<Transport::ReadHandler> handler = read_handler_;
    if (!handler) return Reply(caller, absl::UnimplementedError("this node serves no reads"));
    if (Draw(random(), state_->options.busy_one_in)) {
      return Reply(caller, absl::ResourceExhaustedError("all who serve reads are busy"));
    }
    (*handler)(std::move(request), bytes,
               [weak = weak_from_this(), caller, bytes](absl::StatusOr<ReadSource> source) {
                 if (const auto self = weak.lock()) {
                   self->ReplyRead(caller, bytes, std::move(source));
                 }
               });
  }

  // The caller, if a message to it gets through.
  std::shared_ptr<Node> Reach(const Caller& caller) {
    auto node = caller.node.lock();
    if (!alive() || !node || !node->alive()) return nullptr;
    callers_.erase({caller.address, caller.id});
    if (!state_->Lose(address_, caller.address)) return node;
    node->LoseFor(caller.id, address_);
    return nullptr;
  }

  void Reply(const Caller& caller, absl::StatusOr<std::string> reply) {
    const auto node = Reach(caller);
    if (!node) return;
    if (reply.ok() && reply->size() > state_->options.message_bytes_max) {
      reply = absl::ResourceExhaustedError(
          fmt::format("a reply of {} bytes, message_bytes_max is "
                      "{}",
                      reply->size(), state_->options.message_bytes_max));
    }
    node->process_->Deliver(state_->DrawDelay(), [node, id = caller.id, reply = std::move(reply)] {
      node->End(id, reply);
    });
  }

  void ReplyRead(const Caller& caller, uint64_t bytes, absl::StatusOr<ReadSource> source) {
    if (!source.ok()) return Reply(caller, source.status());
    uint64_t found = 0;
    for (const auto part : source->parts) found += part.size();
    if (found != bytes) {
      return Reply(caller, absl::DataLossError(fmt::format("the source has {} bytes, {} are wanted",
                                                           found, bytes)));
    }
    const auto node = Reach(caller);
    if (!node) return;
    SendBytes(node, caller.id, bytes, std::make_shared<ReadSource>(*std::move(source)));
  }

  // Some bytes land first, and the rest, or the end of the connection, later. The message has the
  // source's memory until then; it reads it only while this node lives.
  void SendBytes(const std::shared_ptr<Node>& node, uint64_t id, uint64_t bytes,
                 const std::shared_ptr<ReadSource>& source) {
    const bool cut = Draw(random(), state_->options.cut_one_in);
    if (cut) ++state_->counts.cut;
    const Duration first = state_->DrawDelay();
    const size_t some = random().Below(bytes + 1);
    const auto self = shared_from_this();
    std::erase_if(leaving_, [](const auto& left) { return left.expired(); });
    leaving_.push_back(source);
    callers_[{node->address_, id}] = node;  // until all has landed it hears of this node's death
    node->process_->Deliver(first, [self, node, id, source, some] {
      if (self->alive()) node->LandSome(id, *source, some);
    });
    node->process_->Deliver(first + state_->DrawDelay(), [self, node, id, source, cut] {
      if (!self->alive()) return;
      self->callers_.erase({node->address_, id});
      if (cut) return node->End(id, absl::UnavailableError("the connection broke"));
      node->Land(id, *source);
    });
  }

  const std::shared_ptr<State> state_;
  SimExecutor* process_;  // null when this life is over
  const std::string address_;
  std::map<uint64_t, Pending> pending_;
  uint64_t last_id_ = 0;
  std::map<std::string, std::shared_ptr<Transport::CallHandler>> call_handlers_;
  std::shared_ptr<Transport::ReadHandler> read_handler_;
  std::vector<std::weak_ptr<ReadSource>> leaving_;  // on their way to other nodes
  // Who waits for something of this node and hears when it goes, by address and call.
  std::map<std::pair<std::string, uint64_t>, std::weak_ptr<Node>> callers_;
};

class SimNetwork::SimTransport final : public Transport {
 public:
  explicit SimTransport(std::shared_ptr<Node> node) : node_(std::move(node)) {}
  ~SimTransport() override { node_->Die(/*killed=*/false); }

  const std::string& address() const override { return node_->address(); }
  void Call(const std::string& address, const std::string& method, std::string request,
            Duration timeout, CallDone done) override {
    node_->Begin(address, method, std::move(request), {}, /*is_read=*/false, timeout,
                 std::move(done));
  }
  TransferId Read(const std::string& address, std::string request, std::span<std::byte> into,
                  Duration timeout, ReadDone done) override {
    return node_->Begin(address, kRead, std::move(request), into, /*is_read=*/true, timeout,
                        std::move(done));
  }
  void Cancel(TransferId transfer) override { node_->Cancel(transfer); }
  void Serve(const std::string& method, CallHandler handler) override {
    node_->Serve(method, std::move(handler));
  }
  void ServeReads(ReadHandler handler) override { node_->ServeReads(std::move(handler)); }

 private:
  const std::shared_ptr<Node> node_;
};

SimNetwork::SimNetwork(SimScheduler& scheduler, SimTransportOptions options)
    : state_(std::make_shared<State>(scheduler, options)) {}

// Nodes and the state own each other while they live.
SimNetwork::~SimNetwork() { const auto nodes = std::exchange(state_->nodes, {}); }

absl::StatusOr<std::unique_ptr<Transport>> SimNetwork::NewTransport(SimExecutor& process,
                                                                    const std::string& address) {
  if (state_->Find(address)) {
    return absl::AlreadyExistsError(fmt::format("{}: another node has the address", address));
  }
  auto node = std::make_shared<Node>(state_, process, address);
  state_->nodes[address] = node;
  process.AtKill([weak = std::weak_ptr(node)] {
    if (const auto dying = weak.lock()) dying->Die(/*killed=*/true);
  });
  return std::make_unique<SimTransport>(std::move(node));
}

SimTransportOptions& SimNetwork::options() { return state_->options; }

void SimNetwork::Block(const std::string& from, const std::string& to) {
  state_->blocked.emplace(from, to);
}

void SimNetwork::Unblock(const std::string& from, const std::string& to) {
  state_->blocked.erase({from, to});
}

bool SimNetwork::AreLinked(const std::string& a, const std::string& b) const {
  return !state_->Blocked(a, b) && !state_->Blocked(b, a) && state_->options.lose_one_in == 0 &&
         state_->options.cut_one_in == 0;
}

void SimNetwork::Isolate(const std::string& address) { state_->isolated.insert(address); }

void SimNetwork::Rejoin(const std::string& address) { state_->isolated.erase(address); }

const SimNetwork::Counts& SimNetwork::counts() const { return state_->counts; }

}  // namespace unreft
