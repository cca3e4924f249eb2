#include "tests/sim/lying_connector.h"

#include <utility>

#include "base/session_frames.h"

namespace unreft::sim {
namespace {

Frame Lie(PlantedBug bug, Frame frame) {
  if (bug == PlantedBug::kTakesRanksByNumber) return frame;
  if (bug == PlantedBug::kStaleDecision) {
    absl::StatusOr<Decision> decision = FromFrame<Decision>(frame);
    if (!decision.ok() || decision->kind != DecisionKind::kRestored) return frame;
    decision->version.step.value -= 1;
    return ToFrame(*std::move(decision));
  }
  absl::StatusOr<PlanPage> page = FromFrame<PlanPage>(frame);
  if (!page.ok()) return frame;
  for (size_t i = 1; i < page->pieces.size(); ++i) {
    PlanPiece& a = page->pieces[i - 1];
    PlanPiece& b = page->pieces[i];
    if (a.bytes != b.bytes || a.rows != b.rows) continue;
    std::swap(a.source, b.source);
    std::swap(a.source_offset, b.source_offset);
  }
  if (!page->pieces.empty() && page->pieces[0].source_offset >= 64) {
    page->pieces[0].source_offset -= 64;
  }
  if (!page->pieces.empty()) page->pieces.back().source_offset = 0;
  return ToFrame(*std::move(page));
}

// What a rank that takes its number for its predecessor's would ask.
Frame AskByNumber(Rank rank, Frame frame) {
  absl::StatusOr<ExtrasRequest> request = FromFrame<ExtrasRequest>(frame);
  if (!request.ok() || request->rank < rank) return frame;
  request->rank = rank;
  return ToFrame(*request);
}

class LyingChannel final : public Channel {
 public:
  LyingChannel(PlantedBug bug, Rank rank, std::unique_ptr<Channel> channel)
      : bug_(bug), rank_(rank), channel_(std::move(channel)) {}
  void Start(OnFrame on_frame, OnClose on_close) override {
    channel_->Start([bug = bug_, on_frame = std::move(on_frame)](
                        Frame frame) mutable { on_frame(Lie(bug, std::move(frame))); },
                    std::move(on_close));
  }
  void Send(Frame frame) override {
    if (bug_ == PlantedBug::kTakesRanksByNumber) frame = AskByNumber(rank_, std::move(frame));
    channel_->Send(std::move(frame));
  }
  void Close() override { channel_->Close(); }

 private:
  const PlantedBug bug_;
  const Rank rank_;
  const std::unique_ptr<Channel> channel_;
};

class LyingConnector final : public Connector {
 public:
  LyingConnector(PlantedBug bug, Rank rank, std::unique_ptr<Connector> connector)
      : bug_(bug), rank_(rank), connector_(std::move(connector)) {}
  void Connect(OnConnect done) override {
    connector_->Connect([bug = bug_, rank = rank_, done = std::move(done)](
                            absl::StatusOr<std::unique_ptr<Channel>> channel) mutable {
      if (!channel.ok()) return done(std::move(channel));
      done(std::make_unique<LyingChannel>(bug, rank, *std::move(channel)));
    });
  }

 private:
  const PlantedBug bug_;
  const Rank rank_;
  const std::unique_ptr<Connector> connector_;
};

}  // namespace

std::unique_ptr<Connector> PlantBug(const Machine& machine, Rank rank,
                                    std::unique_ptr<Connector> connector) {
  const bool stale = machine.bug == PlantedBug::kStaleDecision && rank.value == 0;
  const bool lies = stale || machine.bug == PlantedBug::kSwapsPieces ||
                    machine.bug == PlantedBug::kTakesRanksByNumber;
  if (!lies) return connector;
  return std::make_unique<LyingConnector>(machine.bug, rank, std::move(connector));
}

}  // namespace unreft::sim
