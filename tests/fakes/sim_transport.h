// SimNetwork: the network of a simulated cluster.
//
// Makes a Transport per node. Messages arrive after random delays, in any order; they may be lost,
// and calls delivered twice. Addresses vanish with the process that has them and may come back in
// another one. Bytes of a Read are copied when they arrive, from memory that the message holds, and
// may be cut half-way. Everything is drawn from the scheduler's Random. Single-threaded.
//
//   caller ── request (delay; lost?, twice?) ──▶ handler
//          ◀── reply   (delay; lost?, cut?)   ──
//
// A lost message ends its call by the caller's deadline or, as drawn, as Unavailable before.
#pragma once

#include <memory>
#include <string>

#include "tests/fakes/sim_executor.h"
#include "transport/transport.h"

namespace unreft {

// "One in n": 0 is never.
struct SimTransportOptions {
  Duration delay_max = std::chrono::microseconds(200);
  uint32_t slow_one_in = 0;  // messages that take up to slow_max
  Duration slow_max = std::chrono::milliseconds(50);
  uint32_t lose_one_in = 0;          // requests and replies
  uint32_t duplicate_one_in = 0;     // call requests; the copy arrives up to slow_max later, at
                                     // whoever has the address then
  uint32_t cut_one_in = 0;           // replies to reads: some of the bytes arrive, then Unavailable
  uint32_t busy_one_in = 0;          // reads that their server answers with ResourceExhausted
  uint32_t silent_death_one_in = 2;  // killed processes whose peers hear nothing of it

  size_t message_bytes_max = size_t{64} << 20;
  size_t calls_in_flight_max = 4096;
  size_t reads_in_flight_max = 256;
};

class SimNetwork {
 public:
  explicit SimNetwork(SimScheduler& scheduler, SimTransportOptions options = {});
  ~SimNetwork();
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  // A node at that address until it is destroyed or its process killed. AlreadyExists when another
  // is there.
  absl::StatusOr<std::unique_ptr<Transport>> NewTransport(SimExecutor& process,
                                                          const std::string& address);

  // May be changed at any time; holds for messages sent from then on.
  SimTransportOptions& options();

  // Messages from one address to another vanish, replies included, until Unblock.
  void Block(const std::string& from, const std::string& to);
  void Unblock(const std::string& from, const std::string& to);
  // Whether all that one of both sends to the other arrives.
  bool AreLinked(const std::string& a, const std::string& b) const;
  // Both ways with everyone else.
  void Isolate(const std::string& address);
  void Rejoin(const std::string& address);

  // Of what the network did, for tests that must know it did something.
  struct Counts {
    uint64_t sent = 0;
    uint64_t lost = 0;  // blocked included
    uint64_t duplicated = 0;
    uint64_t cut = 0;
    uint64_t read_bytes = 0;  // of reads that have landed
  };
  const Counts& counts() const;

 private:
  class Node;
  class SimTransport;
  struct State;

  // Shared with transports and messages under way, which may outlive the network.
  const std::shared_ptr<State> state_;
};

}  // namespace unreft
