// A rank that is connected to the desk of captures, and what it is told and granted.
#pragma once

#include <memory>
#include <vector>

#include "smp/capture/capture_desk.h"
#include "tests/unit/layout_testing.h"
#include "tests/unit/smp/node_state_fixture.h"

namespace unreft::smp {

inline constexpr Rank kRank{0};

class CaptureDeskTest : public NodeStateFixture {
 protected:
  CaptureDeskTest() {
    options_.populate_chunk_bytes = kSegmentPage;
    InTurn([&] {
      MakeSlots([this] { desk_->RunRules(); });
      desk_ = std::make_unique<CaptureDesk>(state_);
      coordinator_->check_registrations = [this] {
        if (answers_checks_) executor_->Post([this] { TellChecked(); });
      };
      session_ = &Connect(kRank, 1);
      session_->Attach(&channel_);
      session_->timeline = OpenTimeline(*state_.record, Version{});
    });
  }
  ~CaptureDeskTest() override {
    InTurn([&] { desk_.reset(); });
  }

  void Register(uint64_t extras_bytes = 0) {
    unreft::Register request;
    request.request = 1;
    request.extras_bytes = extras_bytes;
    const std::vector<TensorSpec> specs = {Whole("w", {4096})};
    request.tensors = ToWire(specs);
    desk_->OnRegister(*session_, std::move(request));
  }
  // As the job says of what is registered now.
  void TellChecked(absl::Status status = absl::OkStatus()) {
    RegistrationCheck check;
    for (const RegisteredTrainer& trainer : desk_->Registrations()) {
      check.layouts[trainer.rank] = trainer.registration->plan.digest();
    }
    check.status = std::move(status);
    desk_->OnRegistrationsChecked(check);
  }
  GrantState Granted() const { return GrantWord::Decode(session_->control()->grant.load()).state; }
  std::vector<Registered> Told() const { return channel_.Told<Registered>(FrameType::kRegistered); }
  // Registers, and leaves memory for so many of the slots that were told of.
  void RegisterWithMemoryFor(uint64_t slots) {
    InTurn([&] {
      Register();
      // The page of each header is there.
      const uint64_t missing = state_.slots->All().front()->bytes() - kSegmentPage;
      host_.set_bytes_max(host_.bytes_used() + slots * missing);
    });
    Settle();
  }

  std::unique_ptr<CaptureDesk> desk_;
  bool answers_checks_ = true;
  RecordingChannel channel_;
  RankSession* session_ = nullptr;
};

}  // namespace unreft::smp
