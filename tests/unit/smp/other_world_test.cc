// What the ranks of a node are told of a version that another number of ranks has saved.

#include "tests/unit/smp/restore_desk_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::HasSubstr;
using OtherWorldRestoreTest = RestoreDeskFixture;

TEST_F(OtherWorldRestoreTest, InAnotherWorldEveryTensorIsToldWhole) {
  Ask(Rank{0}, 3, true);
  Decide(Timeline{2});
  Settle(milliseconds(100));
  const Decision answer = AnswerTo(Rank{0});
  EXPECT_EQ(answer.kind, DecisionKind::kRestored);
  EXPECT_EQ(answer.source_world, 2U);
  ASSERT_EQ(answer.tensors.size(), 2U);
  for (const WireTensor& tensor : answer.tensors) {
    EXPECT_EQ(tensor.spec.extent, tensor.spec.global_shape);
  }
  EXPECT_FALSE(answer.extras.has_remote) << "those of the rank that had its number";
}

TEST_F(OtherWorldRestoreTest, RanksAreToldOfTheDurableCopyThatTheVersionCameOutOf) {
  Ask(Rank{0}, 3, true);
  durable_copy_ = "/mnt/ckpt/step-7";
  Decide(Timeline{2});
  Settle(milliseconds(100));
  EXPECT_EQ(AnswerTo(Rank{0}).durable_copy, "/mnt/ckpt/step-7");
}

TEST_F(OtherWorldRestoreTest, InTheSameWorldEachHasWhatItSaved) {
  Ask(Rank{1}, 2, true);
  Decide(Timeline{2});
  Settle(milliseconds(100));
  const Decision answer = AnswerTo(Rank{1});
  EXPECT_EQ(answer.kind, DecisionKind::kRestored);
  EXPECT_EQ(answer.source_world, 2U);
  EXPECT_TRUE(answer.extras.has_remote);
}

// A program that knows of no other world would take the state for one without extras.
TEST_F(OtherWorldRestoreTest, WhoTakesNoOtherWorldIsToldBothNumbers) {
  Ask(Rank{0}, 3, false);
  Ask(Rank{1}, 3, true);
  Decide(Timeline{2});
  Settle(milliseconds(100));
  const Decision answer = AnswerTo(Rank{0});
  EXPECT_EQ(answer.kind, DecisionKind::kFailed);
  EXPECT_THAT(answer.status.message, AllOf(HasSubstr("saved by 2 ranks"), HasSubstr("is one of 3"),
                                           HasSubstr("any_world")));
  EXPECT_EQ(AnswerTo(Rank{1}).kind, DecisionKind::kRestored);
}

TEST_F(OtherWorldRestoreTest, TheExtrasOfEachRankThatSavedItAreGiven) {
  Ask(Rank{0}, 3, true);
  Decide(Timeline{2});
  Settle(milliseconds(100));
  for (const Rank of : {Rank{0}, Rank{1}}) {
    const Extras extras = ExtrasFor(Rank{0}, of);
    EXPECT_TRUE(extras.status.ToStatus().ok()) << extras.status.message;
    EXPECT_TRUE(extras.extras.has_remote);
    EXPECT_EQ(extras.request, 8U);
  }
  const Extras beyond = ExtrasFor(Rank{0}, Rank{2});
  EXPECT_TRUE(absl::IsOutOfRange(beyond.status.ToStatus()));
  EXPECT_THAT(beyond.status.message, HasSubstr("was saved by 2 ranks"));
}

// There is memory for the slots of one number of ranks, and these are about to register.
TEST_F(OtherWorldRestoreTest, OnlyAsManyRanksAsSavedItHaveWhatIsLostRebuilt) {
  Ask(Rank{0}, 1, true);
  JobDecision decision;
  decision.kind = DecisionKind::kRestored;
  decision.version = kVersion;
  decision.timeline = Timeline{2};
  decision.holders = {{NodeSlot{0}, {Rank{0}}, true}, {NodeSlot{2}, {Rank{1}}, false}};
  decision.asked = asked_;
  InTurn([&] { desk_->OnDecision(decision); });
  Settle(milliseconds(500));
  EXPECT_EQ(AnswerTo(Rank{0}).kind, DecisionKind::kRestored);
  InTurn([&] { EXPECT_TRUE(state_->slots->All().empty()); });
  asked_[Rank{1}] = asked_[Rank{0}];
  decision.asked = asked_;
  decision.timeline = Timeline{3};
  InTurn([&] {
    desk_ = std::make_unique<RestoreDesk>(*state_);
    desk_->Join({*own_peers_, job_, *server_, protector_.get(), [] {}});
    desk_->OnDecision(decision);
  });
  Settle(milliseconds(500));
  InTurn([&] { EXPECT_FALSE(state_->slots->All().empty()); });
}

TEST_F(OtherWorldRestoreTest, WhoRestoresNothingGetsNoExtras) {
  Ask(Rank{0}, 3, true);
  EXPECT_TRUE(absl::IsFailedPrecondition(ExtrasFor(Rank{0}, Rank{0}).status.ToStatus()));
}

}  // namespace
}  // namespace unreft::smp
