// SimLocalNetwork: the Unix sockets of a simulated machine.
//
// Listeners by path, connectors, and channels whose frames arrive in order after random delays.
// When one end closes, is destroyed, or its process is killed, the other closes with Unavailable
// after what was on its way; of the frames a killed process sent, a random number of the last are
// lost, as if it had died before. Channels that outlive the network are silent. Single-threaded.
#pragma once

#include <memory>
#include <string>

#include "base/channel.h"
#include "tests/fakes/sim_executor.h"

namespace unreft {

struct SimChannelOptions {
  Duration delay_max = std::chrono::microseconds(100);
  size_t frame_bytes_max = size_t{64} << 20;
  size_t send_queue_bytes_max = size_t{256} << 20;
};

class SimLocalNetwork {
 public:
  explicit SimLocalNetwork(SimScheduler& scheduler, SimChannelOptions options = {});
  ~SimLocalNetwork();
  SimLocalNetwork(const SimLocalNetwork&) = delete;
  SimLocalNetwork& operator=(const SimLocalNetwork&) = delete;

  // AlreadyExists when another listens there.
  absl::StatusOr<std::unique_ptr<Listener>> Listen(SimExecutor& process, const std::string& path);

  // `self` is who the listener's process will see.
  std::unique_ptr<Connector> NewConnector(SimExecutor& process, const std::string& path,
                                          PeerIdentity self = {});

  // Breaks every channel that has an end in that process: both ends close with Unavailable, and
  // some of the last frames are lost.
  void Cut(SimExecutor& process);

 private:
  class Link;
  class SimChannel;
  class SimListener;
  class SimConnector;
  struct State;

  // Shared with listeners and connectors, which may outlive the network.
  std::shared_ptr<State> state_;
};

}  // namespace unreft
