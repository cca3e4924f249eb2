// PlayedChannel: the node's end of a connection, of which a test plays the other end.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/channel.h"

namespace unreft::smp {

class PlayedChannel final : public Channel {
 public:
  // What the node says is appended to `sent`.
  explicit PlayedChannel(std::vector<Frame>& sent) : sent_(sent) {}
  void Start(OnFrame on_frame, OnClose on_close) override {
    on_frame_ = std::make_shared<OnFrame>(std::move(on_frame));
    on_close_ = std::make_shared<OnClose>(std::move(on_close));
  }
  void Send(Frame frame) override { sent_.push_back(std::move(frame)); }
  void Close() override {}
  // In both it may be destroyed meanwhile.
  void Say(Frame frame) {
    const auto on_frame = on_frame_;
    (*on_frame)(std::move(frame));
  }
  void HangUp() {
    const auto on_close = on_close_;
    (*on_close)(absl::OkStatus());
  }

 private:
  std::vector<Frame>& sent_;
  std::shared_ptr<OnFrame> on_frame_;
  std::shared_ptr<OnClose> on_close_;
};

}  // namespace unreft::smp
