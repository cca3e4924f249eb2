#include "tests/conformance/channel_conformance.h"

#include <unistd.h>

#include <filesystem>

#include "base/unix_connector.h"
#include "base/unix_listener.h"
#include "tests/fakes/sim_channel.h"

namespace unreft {
namespace {

class UnixChannelWorld final : public ChannelWorld {
 public:
  UnixChannelWorld() {
    directory_ = testing::TempDir() + "unreft_channel_XXXXXX";
    UNREFT_CHECK(mkdtemp(directory_.data()) != nullptr);
  }
  ~UnixChannelWorld() override { std::filesystem::remove_all(directory_); }
  World& world() override { return world_; }
  absl::StatusOr<std::unique_ptr<Listener>> Listen() override {
    return UnixListener::Create(world_.asio(), path(), kOptions, [](PeerIdentity) {});
  }
  std::unique_ptr<Connector> NewConnector() override {
    return std::make_unique<UnixConnector>(world_.asio(), path(), kOptions);
  }
  PeerIdentity identity() override { return {.uid = geteuid(), .pid = getpid()}; }

 private:
  static constexpr UnixChannelOptions kOptions{.frame_bytes_max = kFrameBytesMax,
                                               .send_queue_bytes_max = kSendQueueBytesMax};
  std::string path() const { return directory_ + "/socket"; }

  AsioWorld world_;
  std::string directory_;
};

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

INSTANTIATE_TEST_SUITE_P(Unix, ChannelConformance,
                         testing::Values(WorldMaker<ChannelWorld>{
                             "Unix", [] { return std::make_unique<UnixChannelWorld>(); }}),
                         WorldName<ChannelWorld>);
INSTANTIATE_TEST_SUITE_P(Sim, ChannelConformance,
                         testing::ValuesIn(SimWorlds<ChannelWorld, SimChannelWorld>()),
                         WorldName<ChannelWorld>);

}  // namespace
}  // namespace unreft
