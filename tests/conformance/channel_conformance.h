// What every Channel, Listener and Connector does.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/channel.h"
#include "tests/conformance/world.h"

namespace unreft {

// Process 0 listens, process 1 connects, both with the limits below.
class ChannelWorld {
 public:
  static constexpr size_t kFrameBytesMax = size_t{1} << 20;
  static constexpr size_t kSendQueueBytesMax = size_t{4} << 20;

  virtual ~ChannelWorld() = default;
  virtual World& world() = 0;
  virtual absl::StatusOr<std::unique_ptr<Listener>> Listen() = 0;
  virtual std::unique_ptr<Connector> NewConnector() = 0;
  // Who the connector is.
  virtual PeerIdentity identity() = 0;
};

class ChannelConformance : public testing::TestWithParam<WorldMaker<ChannelWorld>> {
 protected:
  // A channel and all that it reported.
  struct End {
    std::unique_ptr<Channel> channel;
    std::vector<Frame> frames;
    std::vector<absl::Status> closes;

    void Start() {
      channel->Start([this](Frame frame) { frames.push_back(std::move(frame)); },
                     [this](absl::Status status) { closes.push_back(std::move(status)); });
    }
  };

  ~ChannelConformance() override {
    AsClient([this] {
      connector_.reset();
      client_.channel.reset();
    });
    AsServer([this] {
      listener_.reset();
      server_.channel.reset();
    });
  }

  void AsServer(absl::FunctionRef<void()> body) { world().InTurn(world().executor(0), body); }
  void AsClient(absl::FunctionRef<void()> body) { world().InTurn(world().executor(1), body); }
  World& world() { return world_->world(); }
  bool RunUntil(absl::FunctionRef<bool()> condition) { return world().RunUntil(condition); }

  // The listener gives what it accepts to server_.
  void Listen() {
    AsServer([this] {
      auto listener = world_->Listen();
      ASSERT_TRUE(listener.ok()) << listener.status();
      listener_ = std::move(*listener);
      listener_->Start([this](std::unique_ptr<Channel> channel, PeerIdentity peer) {
        server_.channel = std::move(channel);
        peer_ = peer;
        server_.Start();
      });
    });
  }

  // Connects client_; the outcome.
  absl::Status Connect() {
    absl::StatusOr<bool> result = false;
    AsClient([&] {
      connector_ = world_->NewConnector();
      connecting_ = true;
      connector_->Connect([&](absl::StatusOr<std::unique_ptr<Channel>> channel) {
        EXPECT_FALSE(connecting_);  // never inline
        EXPECT_TRUE(world().executor(1).InTurn());
        result = channel.ok() ? absl::StatusOr<bool>(true) : channel.status();
        if (!channel.ok()) return;
        client_.channel = std::move(*channel);
        client_.Start();
      });
      connecting_ = false;
    });
    EXPECT_TRUE(RunUntil([&] { return !result.ok() || *result; }));
    return result.status();
  }

  void MakePair() {
    Listen();
    ASSERT_TRUE(Connect().ok());
    ASSERT_TRUE(RunUntil([&] { return server_.channel != nullptr; }));
  }

  static bool ClosedWith(const End& end, absl::StatusCode code) {
    return end.closes.size() == 1 && end.closes[0].code() == code;
  }

  std::unique_ptr<ChannelWorld> world_ = GetParam().make();
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Connector> connector_;
  bool connecting_ = false;
  PeerIdentity peer_;
  End server_;
  End client_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ChannelConformance);

TEST_P(ChannelConformance, CarriesFramesBothWays) {
  MakePair();
  AsClient([&] { client_.channel->Send({.type = 7, .payload = "question"}); });
  ASSERT_TRUE(RunUntil([&] { return server_.frames.size() == 1; }));
  EXPECT_EQ(server_.frames[0].type, 7);
  EXPECT_EQ(server_.frames[0].payload, "question");
  AsServer([&] { server_.channel->Send({.type = 65535, .payload = {}}); });
  ASSERT_TRUE(RunUntil([&] { return client_.frames.size() == 1; }));
  EXPECT_EQ(client_.frames[0].type, 65535);
  EXPECT_EQ(client_.frames[0].payload, "");
}

TEST_P(ChannelConformance, TellsTheListenerWhoConnected) {
  MakePair();
  EXPECT_EQ(peer_.uid, world_->identity().uid);
  EXPECT_EQ(peer_.pid, world_->identity().pid);
}

TEST_P(ChannelConformance, KeepsTheOrder) {
  MakePair();
  constexpr int kFrames = 500;
  AsClient([&] {
    for (int i = 0; i < kFrames; ++i) client_.channel->Send({.payload = std::to_string(i)});
  });
  ASSERT_TRUE(RunUntil([&] { return server_.frames.size() == kFrames; }));
  for (int i = 0; i < kFrames; ++i) EXPECT_EQ(server_.frames[i].payload, std::to_string(i));
}

TEST_P(ChannelConformance, CarriesFramesUpToTheLimit) {
  MakePair();
  std::vector<std::string> payloads;
  for (const size_t size : {size_t{1}, size_t{65536}, ChannelWorld::kFrameBytesMax}) {
    payloads.emplace_back(size, static_cast<char>('a' + payloads.size()));
  }
  AsClient([&] {
    for (const auto& payload : payloads) client_.channel->Send({.payload = payload});
  });
  ASSERT_TRUE(RunUntil([&] { return server_.frames.size() == payloads.size(); }));
  for (size_t i = 0; i < payloads.size(); ++i) {
    EXPECT_TRUE(server_.frames[i].payload == payloads[i]) << i;
  }
}

// The queue is bounded, not what passes through it.
TEST_P(ChannelConformance, CarriesMoreThanTheSendQueueInTime) {
  MakePair();
  constexpr int kFrames = 20;
  const std::string payload(size_t{1} << 19, 'p');
  for (int i = 1; i <= kFrames; ++i) {
    AsClient(
        [&] { client_.channel->Send({.type = static_cast<uint16_t>(i), .payload = payload}); });
    ASSERT_TRUE(RunUntil([&] { return server_.frames.size() == static_cast<size_t>(i); }));
    ASSERT_TRUE(server_.frames.back().payload == payload);
  }
  EXPECT_TRUE(client_.closes.empty());
}

TEST_P(ChannelConformance, ClosesOnAFrameOverTheLimit) {
  MakePair();
  AsClient([&] {
    client_.channel->Send({.payload = std::string(ChannelWorld::kFrameBytesMax + 1, 'x')});
    EXPECT_TRUE(client_.closes.empty());  // never inline
  });
  ASSERT_TRUE(RunUntil([&] { return !client_.closes.empty() && !server_.closes.empty(); }));
  EXPECT_TRUE(ClosedWith(client_, absl::StatusCode::kInvalidArgument)) << client_.closes[0];
  EXPECT_TRUE(ClosedWith(server_, absl::StatusCode::kUnavailable)) << server_.closes[0];
  EXPECT_TRUE(server_.frames.empty());
}

TEST_P(ChannelConformance, ClosesWhenTheSendQueueIsFull) {
  MakePair();
  AsClient([&] {
    const std::string payload(ChannelWorld::kFrameBytesMax, 'x');
    for (int i = 0; i < 10; ++i) client_.channel->Send({.payload = payload});
    EXPECT_TRUE(client_.closes.empty());  // never inline
  });
  ASSERT_TRUE(RunUntil([&] { return !client_.closes.empty() && !server_.closes.empty(); }));
  EXPECT_TRUE(ClosedWith(client_, absl::StatusCode::kResourceExhausted)) << client_.closes[0];
  EXPECT_TRUE(ClosedWith(server_, absl::StatusCode::kUnavailable)) << server_.closes[0];
}

TEST_P(ChannelConformance, TellsAFailureBeforeTheStart) {
  Listen();
  AsClient([&] {
    connector_ = world_->NewConnector();
    connector_->Connect([&](absl::StatusOr<std::unique_ptr<Channel>> channel) {
      ASSERT_TRUE(channel.ok()) << channel.status();
      client_.channel = std::move(*channel);
      client_.channel->Send({.payload = std::string(ChannelWorld::kFrameBytesMax + 1, 'x')});
      client_.Start();
    });
  });
  ASSERT_TRUE(RunUntil([&] { return !client_.closes.empty(); }));
  EXPECT_TRUE(ClosedWith(client_, absl::StatusCode::kInvalidArgument)) << client_.closes[0];
}

TEST_P(ChannelConformance, ClosesTheOtherEndAfterTheFrames) {
  MakePair();
  AsClient([&] {
    client_.channel->Send({.payload = "last words"});
    client_.channel->Close();
    client_.channel->Close();
    client_.channel->Send({.payload = "too late"});
  });
  ASSERT_TRUE(RunUntil([&] { return !server_.closes.empty(); }));
  EXPECT_TRUE(ClosedWith(server_, absl::StatusCode::kUnavailable)) << server_.closes[0];
  ASSERT_EQ(server_.frames.size(), 1U);
  EXPECT_EQ(server_.frames[0].payload, "last words");
  AsServer([&] { server_.channel->Send({.payload = "to nobody"}); });
  world().Settle();
  EXPECT_EQ(server_.closes.size(), 1U);
  EXPECT_TRUE(client_.closes.empty());
}

TEST_P(ChannelConformance, ClosesTheOtherEndWhenDestroyed) {
  MakePair();
  AsServer([&] { server_.channel.reset(); });
  ASSERT_TRUE(RunUntil([&] { return !client_.closes.empty(); }));
  EXPECT_TRUE(ClosedWith(client_, absl::StatusCode::kUnavailable)) << client_.closes[0];
  world().Settle();
  EXPECT_TRUE(server_.closes.empty());
}

TEST_P(ChannelConformance, DeliversWhatWasSentBeforeTheOtherEndFound) {
  MakePair();
  // Both write to a peer that is gone or going: what has arrived is not lost to the writer's error.
  AsServer([&] {
    server_.channel->Send({.payload = "one"});
    server_.channel->Send({.payload = "two"});
    server_.channel->Close();
  });
  AsClient([&] {
    if (client_.closes.empty()) client_.channel->Send({.payload = "crossing"});
  });
  ASSERT_TRUE(RunUntil([&] { return !client_.closes.empty(); }));
  EXPECT_EQ(client_.frames.size(), 2U);
}

TEST_P(ChannelConformance, HearsNothingAfterClose) {
  MakePair();
  AsServer([&] {
    for (int i = 0; i < 10; ++i) server_.channel->Send({.payload = "news"});
  });
  size_t heard = 0;
  AsClient([&] {
    client_.channel->Close();
    heard = client_.frames.size();
  });
  ASSERT_TRUE(RunUntil([&] { return !server_.closes.empty(); }));
  world().Settle();
  EXPECT_EQ(client_.frames.size(), heard);
  EXPECT_TRUE(client_.closes.empty());
}

TEST_P(ChannelConformance, MayBeDestroyedByItsOwnFrame) {
  Listen();
  int frames = 0;
  AsServer([&] {
    listener_.reset();
    auto listener = world_->Listen();
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = std::move(*listener);
    listener_->Start([&](std::unique_ptr<Channel> channel, PeerIdentity) {
      server_.channel = std::move(channel);
      // Also the callback's own captures must live until it returns.
      auto text = std::make_unique<std::string>("captured");
      server_.channel->Start(
          [&, text = std::move(text)](Frame) {
            ++frames;
            server_.channel.reset();
            EXPECT_EQ(*text, "captured");
          },
          [](absl::Status) { ADD_FAILURE(); });
    });
  });
  ASSERT_TRUE(Connect().ok());
  AsClient([&] {
    for (int i = 0; i < 5; ++i) client_.channel->Send({.payload = "x"});
  });
  ASSERT_TRUE(RunUntil([&] { return !client_.closes.empty(); }));
  EXPECT_EQ(frames, 1);
}

TEST_P(ChannelConformance, MayBeDestroyedByItsOwnEnd) {
  Listen();
  int closes = 0;
  AsClient([&] {
    connector_ = world_->NewConnector();
    connector_->Connect([&](absl::StatusOr<std::unique_ptr<Channel>> channel) {
      ASSERT_TRUE(channel.ok()) << channel.status();
      client_.channel = std::move(*channel);
      auto text = std::make_unique<std::string>("captured");
      client_.channel->Start([](Frame) { ADD_FAILURE(); },
                             [&, text = std::move(text)](absl::Status) {
                               ++closes;
                               client_.channel.reset();
                               EXPECT_EQ(*text, "captured");
                             });
    });
  });
  ASSERT_TRUE(RunUntil([&] { return server_.channel && client_.channel; }));
  AsServer([&] { server_.channel.reset(); });
  EXPECT_TRUE(RunUntil([&] { return closes == 1; }));
}

TEST_P(ChannelConformance, IsUnavailableWhereNobodyListens) {
  const absl::Status never = Connect();
  EXPECT_EQ(never.code(), absl::StatusCode::kUnavailable) << never;
  Listen();
  AsServer([&] { listener_.reset(); });
  const absl::Status no_longer = Connect();
  EXPECT_EQ(no_longer.code(), absl::StatusCode::kUnavailable) << no_longer;
}

TEST_P(ChannelConformance, ConnectsAgainToANewListener) {
  MakePair();
  AsServer([&] {
    server_ = {};
    listener_.reset();
  });
  ASSERT_TRUE(RunUntil([&] { return !client_.closes.empty(); }));
  AsClient([&] { client_ = {}; });
  MakePair();
  AsClient([&] { client_.channel->Send({.payload = "again"}); });
  EXPECT_TRUE(RunUntil([&] { return server_.frames.size() == 1; }));
}

TEST_P(ChannelConformance, ListensOnceAtOnePath) {
  Listen();
  AsServer([&] { EXPECT_EQ(world_->Listen().status().code(), absl::StatusCode::kAlreadyExists); });
  ASSERT_TRUE(Connect().ok());  // the first one is unharmed
  EXPECT_TRUE(RunUntil([&] { return server_.channel != nullptr; }));
}

TEST_P(ChannelConformance, KeepsChannelsApart) {
  Listen();
  End servers[3];
  End clients[3];
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Connect().ok());
    ASSERT_TRUE(RunUntil([&] { return server_.channel != nullptr; }));
    AsServer([&] { servers[i].channel = std::move(server_.channel); });
    AsClient([&] { clients[i].channel = std::move(client_.channel); });
  }
  AsClient([&] {
    clients[0].channel->Send({.type = 1});
    clients[1].channel.reset();
    clients[2].channel->Send({.type = 3});
  });
  // All were started with the callbacks of server_.
  ASSERT_TRUE(RunUntil([&] { return server_.frames.size() == 2 && server_.closes.size() == 1; }));
  AsServer([&] {
    for (End& end : servers) end.channel.reset();
  });
  AsClient([&] {
    for (End& end : clients) end.channel.reset();
  });
}

TEST_P(ChannelConformance, ListenerMayBeDestroyedByAnAcceptance) {
  AsServer([&] {
    auto listener = world_->Listen();
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = std::move(*listener);
    listener_->Start([&](std::unique_ptr<Channel> channel, PeerIdentity) {
      server_.channel = std::move(channel);
      server_.Start();
      listener_.reset();
    });
  });
  ASSERT_TRUE(Connect().ok());
  AsClient([&] { client_.channel->Send({.payload = "still here"}); });
  EXPECT_TRUE(RunUntil([&] { return server_.frames.size() == 1; }));
}

TEST_P(ChannelConformance, ConnectorForgetsWhatItIsDestroyedWith) {
  Listen();
  AsClient([&] {
    connector_ = world_->NewConnector();
    connector_->Connect([](absl::StatusOr<std::unique_ptr<Channel>>) { ADD_FAILURE(); });
    connector_.reset();
  });
  world().Settle();
  // A channel that was made is closed, not leaked.
  if (server_.channel) {
    EXPECT_TRUE(RunUntil([&] { return !server_.closes.empty(); }));
  }
}

TEST_P(ChannelConformance, ConnectorMayBeDestroyedByItsOutcome) {
  Listen();
  AsClient([&] {
    connector_ = world_->NewConnector();
    connector_->Connect([&](absl::StatusOr<std::unique_ptr<Channel>> channel) {
      connector_.reset();
      ASSERT_TRUE(channel.ok()) << channel.status();
      client_.channel = std::move(*channel);
      client_.Start();
    });
  });
  EXPECT_TRUE(RunUntil([&] { return client_.channel != nullptr; }));
}

}  // namespace unreft
