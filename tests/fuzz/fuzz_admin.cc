// What a local process asks a daemon of one node: a verb, a line's end, arguments. The answer is
// one line of UTF-8 JSON, or a refusal.
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "smp/node.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::fuzz {
namespace {

// The daemon's end of a connection.
class PlayedChannel final : public Channel {
 public:
  explicit PlayedChannel(std::vector<Frame>& sent) : sent_(sent) {}
  void Start(OnFrame on_frame, OnClose) override {
    on_frame_ = std::make_shared<OnFrame>(std::move(on_frame));
  }
  void Send(Frame frame) override { sent_.push_back(std::move(frame)); }
  void Close() override {}
  // It may be destroyed meanwhile.
  void Say(Frame frame) {
    const auto on_frame = on_frame_;
    (*on_frame)(std::move(frame));
  }

 private:
  std::vector<Frame>& sent_;
  std::shared_ptr<OnFrame> on_frame_;
};

class Daemon final : public smp::SmpFixture {
 public:
  Daemon() {
    options_.pins = 2;
    InTurn([&] {
      node_ = std::make_unique<smp::Node>(
          smp::NodeSeams{*executor_, pool_, random_, segments_, *records_, processes_, log_},
          options_);
      node_->Start(boot_id_, [](const absl::Status& status) { UNREFT_CHECK(status.ok()); });
    });
    Settle();
    InTurn([&] {
      const Timeline timeline = node_->state().record->OpenTimeline({});
      node_->state().record->SetCommitted({timeline, Step{41}}, 1);
    });
  }
  ~Daemon() override {
    InTurn([&] { node_.reset(); });
  }

  std::vector<Frame> Ask(const AdminRequest& request) {
    sent_.clear();
    auto channel = std::make_unique<PlayedChannel>(sent_);
    PlayedChannel& played = *channel;
    InTurn([&] {
      node_->Accept(std::move(channel), PeerIdentity{.pid = 1});
      played.Say(ToFrame(request));
    });
    Settle(std::chrono::seconds(10));
    return std::exchange(sent_, {});
  }

 private:
  void TestBody() override {}

  std::vector<Frame> sent_;
  std::unique_ptr<smp::Node> node_;
};

}  // namespace

std::vector<std::string> Seeds() {
  return {"status\n",
          "cluster\n",
          "versions\n{\"limit\":3}",
          "verify\n",
          "fresh-start\n",
          "metrics\n",
          "memory\n",
          "pin\n{\"owner\":\"evaluation\",\"for_ms\":60000,\"step\":41}",
          "unpin\n{\"owner\":\"evaluation\"}",
          "pin\n{\"owner\":\"\\u00e9\\ud834\\udd1e\",\"for_ms\":1}"};
}

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace fuzz = unreft::fuzz;
  const std::string_view bytes = fuzz::Bytes(data, size);
  const size_t line = std::min(bytes.find('\n'), bytes.size());
  unreft::AdminRequest request;
  request.verb = std::string(bytes.substr(0, line));
  request.arguments = std::string(bytes.substr(std::min(line + 1, bytes.size())));
  fuzz::Daemon daemon;
  // Once more: of what the first has changed.
  for (int times = 0; times < 2; ++times) {
    const std::vector<unreft::Frame> sent = daemon.Ask(request);
    UNREFT_CHECK(sent.size() == 1, "{} answers", sent.size());
    const auto reply = unreft::FromFrame<unreft::AdminReply>(sent.front());
    UNREFT_CHECK(reply.ok());
    if (!reply->status.ToStatus().ok()) continue;
    const auto json = nlohmann::json::parse(reply->result, nullptr, /*allow_exceptions=*/false);
    UNREFT_CHECK(!json.is_discarded() && reply->result.find('\n') == std::string::npos);
  }
  return 0;
}
