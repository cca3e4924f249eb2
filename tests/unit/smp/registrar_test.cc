// What becomes of a registration before anything is captured.

#include "smp/capture/registrar.h"

#include <gmock/gmock.h>

#include <algorithm>
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
  Registered Last() { return channel_.Told<Registered>(FrameType::kRegistered).back(); }
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

// Guards of fewer parities may make room: a trainer that asks once would not hear of it.
TEST_F(RegistrarTest, WhatLacksMemoryIsRefusedOnceNobodyHasMadeRoom) {
  state_.options.parity_chunks = 1;
  state_.options.memory_bytes_max = 1;
  Register();
  EXPECT_EQ(Answers(), 0U);
  Settle(std::chrono::seconds(3));
  ASSERT_EQ(Answers(), 1U);
  EXPECT_TRUE(absl::IsResourceExhausted(Last().status.ToStatus()));
}

TEST_F(RegistrarTest, WhatLacksMemoryIsAnsweredWhenThereIsRoom) {
  state_.options.parity_chunks = 1;
  state_.options.memory_bytes_max = 1;
  Register();
  Settle(std::chrono::seconds(1));
  EXPECT_EQ(Answers(), 0U);
  state_.options.memory_bytes_max = 0;
  InTurn([&] { registrar_->ProvideRefused(); });
  Check(absl::OkStatus());
  ASSERT_EQ(Answers(), 1U);
  EXPECT_TRUE(Last().status.ToStatus().ok());
}

// It was made when nobody had said yet how large its part is.
TEST_F(RegistrarTest, StagingThatIsLargerThanNeededMakesRoomForSlots) {
  constexpr uint64_t kLarge = 1 << 20;
  state_.options.parity_chunks = 1;
  InTurn([&] { ASSERT_TRUE(state_.staging->Provide(kLarge).ok()); });
  state_.options.memory_bytes_max = kLarge + 1;
  Register();
  ASSERT_TRUE(absl::IsResourceExhausted(session_->registration_status));
  EXPECT_LT(state_.memory->use(SegmentKind::kStaging).bytes, kLarge);
  InTurn([&] { registrar_->ProvideRefused(); });
  EXPECT_TRUE(session_->registration_status.ok()) << session_->registration_status;
}

TEST_F(RegistrarTest, WithoutParitiesWhatLacksMemoryIsRefusedAtOnce) {
  state_.options.memory_bytes_max = 1;
  Register();
  EXPECT_EQ(Answers(), 1U);
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

// --- after a restart with another number of ranks ---

// Rank 0 was one of two, and has the versions 1:3 and 1:6 of that time; 1:6 is restored by one
// rank.
class OtherWorldTest : public RegistrarTest {
 protected:
  OtherWorldTest() {
    InTurn([&] {
      const SlotNeeds needs{
          .data_bytes = 8000, .extras_bytes = 100, .manifest_bytes = 500, .world = 2};
      UNREFT_CHECK(state_.slots->Provide(Rank{0}, needs).ok());
    });
    Settle();
    InTurn([&] {
      for (const uint64_t step : {3, 6}) {
        Slot* slot =
            state_.slots->Grant(Rank{0}, table_.Start(), 2, Attempt{1}, session_->timeline);
        slot->phase = SlotPhase::kSealed;
        slot->version = At(step);
      }
      state_.record->SetCommitted(At(6), 2);
    });
  }
  Version At(uint64_t step) const { return {session_->timeline, Step{step}}; }
  void Commit(uint64_t step) {
    InTurn([&] {
      Slot* slot = state_.slots->Offerable(Rank{0}).front();
      ASSERT_EQ(slot->phase, SlotPhase::kFree);
      slot->phase = SlotPhase::kSealed;
      slot->version = At(step);
      OnCommitted(At(step));
    });
    Settle();
    InTurn([&] { registrar_->ProvideRefused(); });
    Settle();
  }
  void OnCommitted(Version version) {
    state_.commit_before = state_.record->committed();
    state_.record->SetCommitted(version, 1);
    registrar_->ProvideRefused();
  }
  size_t Slots() { return state_.slots->Offerable(Rank{0}).size(); }
  bool Holds(uint64_t step) { return !state_.slots->Sealed(At(step)).empty(); }
};

// Each of them goes with a commit, and makes room for one slot more: the memory never has to hold
// more versions than it is made for.
TEST_F(OtherWorldTest, ThereAreAsManySlotsAsOtherVersionsLeaveRoomFor) {
  Register();
  Settle();
  EXPECT_EQ(state_.slots->OfRank(Rank{0}).size(), 3U) << "the two versions, and one slot";
  EXPECT_EQ(Slots(), 1U);
  Commit(9);
  EXPECT_FALSE(Holds(3));
  EXPECT_TRUE(Holds(6)) << "the step-back version";
  EXPECT_EQ(Slots(), 2U);
  InTurn([&] {
    // Of the two the one that is free.
    for (Slot* slot : state_.slots->Offerable(Rank{0})) {
      if (slot->phase != SlotPhase::kFree) continue;
      slot->phase = SlotPhase::kSealed;
      slot->version = At(12);
    }
    OnCommitted(At(12));
  });
  Settle();
  InTurn([&] { registrar_->ProvideRefused(); });
  Settle();
  EXPECT_FALSE(Holds(6));
  EXPECT_EQ(Slots(), 3U);
  EXPECT_EQ(state_.slots->OfRank(Rank{0}).size(), 3U);
}

// Else the second snapshot would wait for its slot for ever.
TEST_F(OtherWorldTest, WhereRanksHaveTwoSlotsTheStepBackVersionGivesWay) {
  state_.options.slots_per_rank = 2;
  Register();
  Settle();
  EXPECT_EQ(Slots(), 1U);
  Commit(9);
  EXPECT_FALSE(Holds(6));
  EXPECT_EQ(Slots(), 2U);
}

// There would be room for no slot beside the two versions.
TEST_F(OtherWorldTest, WhereRanksHaveTwoSlotsOnlyWhatIsRestoredStays) {
  state_.options.slots_per_rank = 2;
  InTurn([&] { registrar_->ProvideRefused(); });
  EXPECT_TRUE(Holds(3)) << "nobody has restored yet";
  Register();
  InTurn([&] { registrar_->ProvideRefused(); });
  EXPECT_FALSE(Holds(3));
  EXPECT_TRUE(Holds(6));
}

// It is used again with the next commit; until then there is no memory for another in its place.
TEST_F(OtherWorldTest, ASlotWhoseContentHasRottedCountsToo) {
  Register();
  Settle();
  Commit(9);
  EXPECT_EQ(Slots(), 2U) << "one is of the step-back version";
  InTurn([&] {
    for (Slot* slot : state_.slots->Sealed(At(9))) {
      state_.slots->Quarantine(*slot, "block 4 has another CRC");
      slot->reusable = true;
    }
    registrar_->ProvideRefused();
  });
  Settle();
  EXPECT_EQ(Slots(), 1U);
  EXPECT_EQ(state_.slots->OfRank(Rank{0}).size(), 3U);
}

TEST_F(OtherWorldTest, NothingGoesBeforeTheFirstCommitNorWhileADecisionIsMade) {
  Register();
  Settle();
  InTurn([&] { registrar_->ProvideRefused(); });
  EXPECT_TRUE(Holds(3)) << "the step-back version";
  state_.timeline_closed = true;
  Commit(9);
  EXPECT_TRUE(Holds(3));
}

TEST_F(OtherWorldTest, WhatIsPinnedStays) {
  PinRecord pins;
  pins.add_pins()->set_timeline(session_->timeline.value);
  pins.mutable_pins(0)->set_step(3);
  state_.pins = pins;
  Register();
  Settle();
  Commit(9);
  EXPECT_TRUE(Holds(3));
}

// --- after ranks have moved to another node ---

// Ranks 1 and 2 were here, and rank 0 alone is by now; 1:6 is restored.
class MovedAwayTest : public RegistrarTest {
 protected:
  MovedAwayTest() {
    InTurn([&] {
      session_ = &Connect(Rank{0}, 3);
      session_->Attach(&channel_);
      session_->timeline = state_.record->chain().newest();
      state_.decided = session_->timeline;
      state_.homes = {{Rank{0}, NodeSlot{0}}, {Rank{1}, NodeSlot{1}}, {Rank{2}, NodeSlot{1}}};
      state_.record->SetCommitted(At(6), 3);
    });
  }
  Version At(uint64_t step) const { return {session_->timeline, Step{step}}; }
  void Save(Rank rank, std::vector<uint64_t> steps) {
    InTurn([&] { UNREFT_CHECK(state_.slots->Provide(rank, kNeeds, steps.size()).ok()); });
    Settle();
    InTurn([&] {
      for (const uint64_t step : steps) {
        Slot* slot = state_.slots->Grant(rank, table_.Start(), 3, Attempt{1}, session_->timeline);
        slot->phase = SlotPhase::kSealed;
        slot->version = At(step);
      }
      if (rank != Rank{0}) state_.slots->Forget(rank);
    });
  }
  void Rebuild(Rank rank) {
    InTurn([&] { UNREFT_CHECK(state_.slots->ProvideForRebuild(rank, kNeeds, At(6)).ok()); });
    Settle();
  }
  size_t SlotsOf(Rank rank) { return state_.slots->OfRank(rank).size(); }
  bool Holds(Rank rank, uint64_t step) {
    return std::ranges::any_of(state_.slots->Sealed(At(step)),
                               [&](const Slot* slot) { return slot->owner == rank; });
  }

  static constexpr SlotNeeds kNeeds{
      .data_bytes = 1 << 15, .extras_bytes = 1 << 16, .manifest_bytes = 1 << 12, .world = 3};
};

// Its own slab of what is restored takes one, and the next version needs another.
TEST_F(MovedAwayTest, ThereAreAsManySlotsAsTheirVersionsLeaveRoomForAndOneToCapture) {
  Save(Rank{0}, {6});
  for (const Rank rank : {Rank{1}, Rank{2}}) Save(rank, {3, 6});
  Register();
  Settle();
  EXPECT_EQ(session_->registration_status, absl::OkStatus());
  EXPECT_EQ(SlotsOf(Rank{0}), 2U);
  InTurn([&] {
    for (Slot* slot : state_.slots->Sealed(At(3))) state_.slots->Free(*slot);
  });
  Settle();
  InTurn([&] { registrar_->ProvideRefused(); });
  EXPECT_EQ(SlotsOf(Rank{0}), 2U) << "1:6 of the others";
  InTurn([&] {
    for (Slot* slot : state_.slots->Sealed(At(6))) {
      if (slot->owner != Rank{0}) state_.slots->Free(*slot);
    }
  });
  Settle();
  InTurn([&] { registrar_->ProvideRefused(); });
  EXPECT_EQ(SlotsOf(Rank{0}), 3U);
}

// Rank 0 was where rank 1 is now: the two nodes have memory for one rank each.
TEST_F(MovedAwayTest, WhoComesInTheirPlaceNeedsNoMoreMemory) {
  Save(Rank{1}, {3, 6});
  const uint64_t bytes = state_.memory->use(SegmentKind::kSlot).bytes;
  state_.options.memory_bytes_max = bytes + bytes / 2;
  Register();
  Settle();
  EXPECT_EQ(session_->registration_status, absl::OkStatus());
  ASSERT_EQ(SlotsOf(Rank{0}), 1U);
  InTurn([&] {
    Slot* slot = state_.slots->Offerable(Rank{0}).front();
    slot->phase = SlotPhase::kSealed;
    slot->version = At(9);
    state_.commit_before = At(6);
    state_.record->SetCommitted(At(9), 3);
    registrar_->ProvideRefused();
  });
  Settle();
  InTurn([&] { registrar_->ProvideRefused(); });
  EXPECT_FALSE(Holds(Rank{1}, 3));
  EXPECT_TRUE(Holds(Rank{1}, 6)) << "the step-back version";
  EXPECT_EQ(SlotsOf(Rank{0}), 2U);
}

TEST_F(MovedAwayTest, SlotsForSlabsThatAreYetToBeDecodedCountToo) {
  for (const Rank rank : {Rank{0}, Rank{1}, Rank{2}}) Rebuild(rank);
  Register();
  Settle();
  EXPECT_EQ(session_->registration_status, absl::OkStatus());
  EXPECT_EQ(SlotsOf(Rank{0}), 2U);
  EXPECT_EQ(SlotsOf(Rank{1}), 1U);
}

// No rank here takes its slot for another version.
TEST_F(MovedAwayTest, WhatIsOlderThanTheStepBackVersionGoesOnceARankHasRegistered) {
  for (const Rank rank : {Rank{1}, Rank{2}}) Save(rank, {2, 3, 6});
  InTurn([&] { registrar_->ProvideRefused(); });
  EXPECT_TRUE(Holds(Rank{1}, 2)) << "nobody has restored yet";
  Register();
  Settle();
  EXPECT_FALSE(Holds(Rank{1}, 2));
  EXPECT_TRUE(Holds(Rank{1}, 3));
  EXPECT_TRUE(Holds(Rank{2}, 6));
  EXPECT_EQ(SlotsOf(Rank{1}), 2U);
}

TEST_F(MovedAwayTest, WhatIsPinnedOrRestoredStays) {
  state_.options.slots_per_rank = 2;
  state_.options.pins = 1;
  state_.pins.emplace().add_pins()->set_timeline(session_->timeline.value);
  state_.pins->mutable_pins(0)->set_step(2);
  Save(Rank{0}, {2, 6});
  Save(Rank{1}, {2, 3, 6});
  Register();
  Settle();
  EXPECT_TRUE(Holds(Rank{1}, 2));
  EXPECT_FALSE(Holds(Rank{1}, 3));
  EXPECT_TRUE(Holds(Rank{1}, 6));
  EXPECT_EQ(SlotsOf(Rank{0}), 3U) << "one to capture in";
}

// It is of a timeline before, and says nothing of this one.
TEST_F(MovedAwayTest, WhereNobodyKnowsWhereRanksAreNoneHasMoved) {
  Save(Rank{1}, {2, 3, 6});
  state_.decided = Timeline{};
  Register();
  Settle();
  EXPECT_TRUE(Holds(Rank{1}, 2));
  EXPECT_EQ(SlotsOf(Rank{0}), 3U);
}

}  // namespace
}  // namespace unreft::smp
