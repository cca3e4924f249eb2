// What becomes of a registration before anything is captured.

#include "smp/capture/registrar.h"

#include <gmock/gmock.h>

#include <memory>
#include <vector>

#include "tests/unit/layout_testing.h"
#include "tests/unit/smp/node_state_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;

class RegistrarTest : public NodeStateFixture {
 protected:
  RegistrarTest() {
    InTurn([&] {
      MakeSlots();
      granter_ = std::make_unique<Granter>(state_);
      registrar_ = std::make_unique<Registrar>(state_, *granter_, [this] { ++rules_run_; });
      session_ = &Connect(Rank{0}, 1);
      session_->Attach(&channel_);
      session_->timeline = OpenTimeline(*state_.record, Version{});
    });
  }
  ~RegistrarTest() override {
    InTurn([&] { registrar_.reset(); });
  }

  void Register(uint64_t elements = 4096) {
    unreft::Register request;
    const std::vector<TensorSpec> specs = {Whole("w", {elements})};
    request.tensors = ToWire(specs);
    InTurn([&] { registrar_->OnRegister(*session_, std::move(request)); });
  }
  size_t Answers() {
    InTurn([&] { registrar_->AnswerOnceDecided(*session_); });
    return channel_.Told<Registered>(FrameType::kRegistered).size();
  }
  void Check(const absl::Status& status) {
    RegistrationCheck check{.status = status};
    check.layouts[Rank{0}] = session_->registration->plan.digest();
    InTurn([&] { registrar_->OnChecked(check); });
  }

  std::unique_ptr<Granter> granter_;
  std::unique_ptr<Registrar> registrar_;
  int rules_run_ = 0;
  RecordingChannel channel_;
  RankSession* session_ = nullptr;
};

TEST_F(RegistrarTest, WhatTheJobHasFoundToFitMayBeCaptured) {
  Register();
  EXPECT_EQ(rules_run_, 1);
  EXPECT_FALSE(registrar_->MayCapture(*session_));
  EXPECT_EQ(Answers(), 0U);
  Check(absl::OkStatus());
  EXPECT_EQ(rules_run_, 2);
  EXPECT_TRUE(registrar_->MayCapture(*session_));
  EXPECT_EQ(Answers(), 1U);
  Check(absl::FailedPreconditionError("tensor 'w': ranks 0 and 1 differ"));
  EXPECT_EQ(rules_run_, 3);
  EXPECT_FALSE(registrar_->MayCapture(*session_));
  Register(8192);
  Check(absl::OkStatus());
  EXPECT_TRUE(registrar_->MayCapture(*session_));
}

TEST_F(RegistrarTest, TheJobHearsHowFarARankHasCome) {
  EXPECT_TRUE(registrar_->Registrations().empty());
  Register();
  Settle();
  Slot* slot = state_.slots->Offerable(Rank{0}).front();
  slot->phase = SlotPhase::kCapturing;
  slot->version = {session_->timeline, Step{7}};
  slot->is_step_known = true;
  session_->NoteNamed(slot->version);
  const std::vector<RegisteredTrainer> trainers = registrar_->Registrations();
  ASSERT_EQ(trainers.size(), 1U);
  EXPECT_THAT(trainers[0].capturing, ElementsAre(Step{7}));
  EXPECT_EQ(trainers[0].passed, Step{7});
}

TEST_F(RegistrarTest, TheBudgetIsSaidOnceAndWhenItIsAnother) {
  Register();
  Register();
  Settle(std::chrono::seconds(1));
  EXPECT_EQ(sink_.Count("memory budget: "), 1U);
  Register();
  Settle(std::chrono::seconds(1));
  EXPECT_EQ(sink_.Count("memory budget: "), 1U);
  Register(8192);
  Settle(std::chrono::seconds(1));
  EXPECT_EQ(sink_.Count("memory budget: "), 2U);
}

}  // namespace
}  // namespace unreft::smp
