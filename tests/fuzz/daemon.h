// A real Node of a job of one node, over the fakes, and a local process that speaks with it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/session_frames.h"
#include "tests/unit/smp/node_fixture.h"

namespace unreft::fuzz {

class Daemon : public smp::NodeFixture {
 protected:
  Daemon() {
    options_.pins = 2;
    options_.memory_bytes_max = 2 << 20;
    host_.set_bytes_max(4 << 20);
    StartNode();
    Settle();
  }
  ~Daemon() override { StopNode(); }

  void Connect(int64_t pid) {
    auto channel = std::make_unique<PlayedChannel>(*this);
    channel_ = channel.get();
    InTurn([&] { node_->Accept(std::move(channel), PeerIdentity{.pid = pid}); });
  }
  // False: the daemon has closed the connection.
  bool Say(Frame frame) {
    if (channel_ == nullptr) return false;
    InTurn([&] { channel_->Say(std::move(frame)); });
    return true;
  }

  std::vector<Frame> sent_;  // by the daemon

 private:
  void TestBody() override {}

  // The daemon's end of the connection.
  class PlayedChannel final : public Channel {
   public:
    explicit PlayedChannel(Daemon& daemon) : daemon_(daemon) {}
    ~PlayedChannel() override {
      if (daemon_.channel_ == this) daemon_.channel_ = nullptr;
    }
    void Start(OnFrame on_frame, OnClose) override {
      on_frame_ = std::make_shared<OnFrame>(std::move(on_frame));
    }
    void Send(Frame frame) override { daemon_.sent_.push_back(std::move(frame)); }
    void Close() override {}
    // It may be destroyed meanwhile.
    void Say(Frame frame) {
      const auto on_frame = on_frame_;
      (*on_frame)(std::move(frame));
    }

   private:
    Daemon& daemon_;
    std::shared_ptr<OnFrame> on_frame_;
  };

  PlayedChannel* channel_ = nullptr;
};

}  // namespace unreft::fuzz
