// The state of a node with its slots and the trainers that are connected to it, over the fakes.
#pragma once

#include <absl/functional/any_invocable.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "smp/desk/node_state.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {

// Keeps what is sent.
struct RecordingChannel final : Channel {
  void Start(OnFrame, OnClose) override {}
  void Send(Frame frame) override { sent.push_back(std::move(frame)); }
  void Close() override {}
  // What was sent of one kind of message.
  template <typename Message>
  std::vector<Message> Told(FrameType type) const {
    std::vector<Message> told;
    for (const Frame& frame : sent) {
      if (static_cast<FrameType>(frame.type) == type) told.push_back(*FromFrame<Message>(frame));
    }
    return told;
  }
  std::vector<Frame> sent;
};

// Does nothing of what it is asked.
struct RecordingCoordinator final : Coordinator {
  void AskDecision(Attempt, uint64_t, std::vector<Asker> who) override {
    ++asked;
    askers = std::move(who);
  }
  void OnRanksChange() override {}
  void CheckRegistrations() override { check_registrations(); }
  void ReportClaimed(Version, Rank) override {}
  void ReportSealed(Version, Rank) override {}
  void ReportFailed(Version, Rank, const std::string& reason) override { failed.push_back(reason); }
  void AskEverCommitted(EverCommittedDone) override {}
  void DeclareFreshStart(bool, FreshStartDone) override {}
  void AskRewind(const RewindRequest&, RewindDone) override {}
  void AskResize(const ResizeRequest&, ResizeDone) override {}
  void AskPins(PinRequest, PinDone) override {}
  uint64_t deadlines_used() const override { return 0; }
  int asked = 0;
  std::vector<Asker> askers;  // the last ones
  absl::AnyInvocable<void()> check_registrations = [] {};
  std::vector<std::string> failed;
};

class NodeStateFixture : public SmpFixture {
 protected:
  NodeStateFixture()
      : state_{NodeSeams{*executor_, pool_, random_, segments_, *records_, processes_, log_}} {
    state_.record = NewRecord();
    state_.kept = OpenKept();
    auto coordinator = std::make_unique<RecordingCoordinator>();
    coordinator_ = coordinator.get();
    state_.coordinator = std::move(coordinator);
  }

  // After the test has set `options_`, in its turn.
  void MakeSlots(absl::AnyInvocable<void()> on_change = [] {}) {
    state_.options = options_;
    state_.prefix = MemoryPrefix(options_);
    state_.memory = std::make_unique<SegmentPool>(
        SegmentPool::Seams{*executor_, pool_, segments_, log_}, state_.options);
    state_.slots = std::make_unique<SlotStore>(
        SlotStore::Seams{*executor_, *state_.memory, processes_, log_}, state_.options, boot_id_,
        state_.record->incarnation(), state_.record->session(), std::move(on_change));
    state_.staging = std::make_unique<StagingArea>(
        StagingArea::Seams{*executor_, *state_.memory, processes_, log_}, state_.options);
  }
  // A trainer of attempt 1, in its turn.
  RankSession& Connect(Rank rank, uint32_t world) {
    Hello hello;
    hello.job = "job";
    hello.rank = rank;
    hello.world = world;
    hello.attempt = Attempt{1};
    hello.life = table_.Start();
    auto session = std::make_unique<RankSession>(hello, segments_);
    return *(state_.sessions[rank] = std::move(session));
  }

  NodeState state_;
  RecordingCoordinator* coordinator_ = nullptr;
};

}  // namespace unreft::smp
