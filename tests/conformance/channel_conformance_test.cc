#include "tests/conformance/channel_conformance.h"

#include "tests/fakes/sim_channel.h"

namespace unreft {
namespace {

class SimChannelWorld final : public ChannelWorld {
 public:
  explicit SimChannelWorld(uint64_t seed) : world_(seed) {}
  World& world() override { return world_; }
  absl::StatusOr<std::unique_ptr<Listener>> Listen() override {
    return network_.Listen(world_.sim(0), "path");
  }
  std::unique_ptr<Connector> NewConnector() override {
    return network_.NewConnector(world_.sim(1), "path", identity());
  }
  PeerIdentity identity() override { return {.uid = 12, .pid = 34}; }

 private:
  SimWorld world_;
  SimLocalNetwork network_{
      world_.scheduler(),
      {.frame_bytes_max = kFrameBytesMax, .send_queue_bytes_max = kSendQueueBytesMax}};
};

INSTANTIATE_TEST_SUITE_P(Sim, ChannelConformance,
                         testing::ValuesIn(SimWorlds<ChannelWorld, SimChannelWorld>()),
                         WorldName<ChannelWorld>);

}  // namespace
}  // namespace unreft
