// What a rank is told of its slots, and which of them it is granted.

#include <gmock/gmock.h>

#include <set>
#include <vector>

#include "smp/node/admin.h"
#include "tests/unit/smp/capture_desk_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::HasSubstr;

TEST_F(CaptureDeskTest, ARankIsToldOfItsSlotsOnceWhenAllCanBeHad) {
  InTurn([&] { Register(); });
  Settle();
  ASSERT_EQ(Told().size(), 1U);
  EXPECT_TRUE(Told()[0].status.ToStatus().ok());
  EXPECT_EQ(Told()[0].slots.size(), options_.slots_per_rank);
}

// Tried again as if it waited for memory, what it had registered before would have been taken.
TEST_F(CaptureDeskTest, ATableThatIsTooLargeIsRefusedForGood) {
  InTurn([&] { Register(); });
  Settle();
  InTurn([&] {
    unreft::Register request;
    request.request = 2;
    for (uint64_t i = 0; i <= layout::kShardsMax; ++i) {
      request.tensors.push_back({Spec("w", {1 << 20}, {i}, {1})});
    }
    desk_->OnRegister(*session_, std::move(request));
  });
  Settle(2 * options_.memory_retry);
  const absl::Status status = Told().back().status.ToStatus();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("262145 shards, at most 262144"));
  EXPECT_EQ(Told().back().request, 2U);
}

// Slots that were made for a slab that is rebuilt here: whatever was granted in them was skipped.
TEST_F(CaptureDeskTest, ARankIsToldUnaskedOfSlotsThatItDoesNotKnow) {
  InTurn([&] { Register(); });
  Settle();
  InTurn([&] {
    ASSERT_TRUE(state_.slots->Provide(kRank, {1 << 16, 1 << 14, 1 << 14}).ok());
    desk_->RunRules();
  });
  Settle();
  const std::vector<Registered> answers = Told();
  ASSERT_EQ(answers.size(), 2U);
  std::set<SlotId> told;
  for (const WireSlotRegion& slot : answers[1].slots) told.insert(slot.slot);
  std::set<SlotId> offered;
  for (const Slot* slot : state_.slots->Offerable(kRank)) offered.insert(slot->id);
  EXPECT_EQ(told, offered);
  const GrantWord grant = GrantWord::Decode(session_->control()->grant.load());
  EXPECT_EQ(grant.state, GrantState::kGranted);
  EXPECT_TRUE(told.contains(grant.slot));
}

// The pages that the trainer mapped stayed taken, and nobody told it why nothing was captured.
TEST_F(CaptureDeskTest, ARankIsToldUnaskedWhenThereIsNoMemoryForItsSlots) {
  RegisterWithMemoryFor(1);
  const std::vector<Registered> told = Told();
  ASSERT_GE(told.size(), 2U);
  EXPECT_TRUE(told[0].status.ToStatus().ok());
  EXPECT_EQ(told[0].slots.size(), options_.slots_per_rank);
  const absl::Status status = told.back().status.ToStatus();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("memory for 2 versions is needed"));
  EXPECT_EQ(told.back().slots.size(), state_.slots->Offerable(kRank).size());
  EXPECT_LT(told.back().slots.size(), 2U);
  // Nothing is granted until it registers again.
  EXPECT_EQ(GrantWord::Decode(session_->control()->grant.load()).state, GrantState::kNone);
  host_.set_bytes_max(1 << 24);
  InTurn([&] { Register(); });
  Settle();
  EXPECT_TRUE(Told().back().status.ToStatus().ok());
  EXPECT_EQ(Told().back().slots.size(), options_.slots_per_rank);
  EXPECT_EQ(GrantWord::Decode(session_->control()->grant.load()).state, GrantState::kGranted);
}

TEST_F(CaptureDeskTest, WhoWasRefusedIsToldUnaskedWhenMemoryIsFree) {
  state_.options.memory_bytes_max = 1;
  InTurn([&] { Register(); });
  ASSERT_EQ(Told().size(), 1U);
  EXPECT_TRUE(absl::IsResourceExhausted(Told()[0].status.ToStatus()));
  InTurn([&] { desk_->ProvideRefused(); });
  Settle();
  EXPECT_EQ(Told().size(), 1U) << "as before";
  state_.options.memory_bytes_max = 0;
  InTurn([&] { desk_->ProvideRefused(); });
  Settle();
  ASSERT_EQ(Told().size(), 2U);
  EXPECT_TRUE(Told()[1].status.ToStatus().ok());
  EXPECT_EQ(Told()[1].slots.size(), options_.slots_per_rank);
  EXPECT_EQ(GrantWord::Decode(session_->control()->grant.load()).state, GrantState::kGranted);
}

// It was skipped until it registered again, or a version was given up.
TEST_F(CaptureDeskTest, MemoryThatIsFreeAgainIsFoundUnaskedAndSoon) {
  RegisterWithMemoryFor(1);
  ASSERT_TRUE(absl::IsResourceExhausted(Told().back().status.ToStatus()));
  Settle(std::chrono::seconds(60));
  ASSERT_TRUE(absl::IsResourceExhausted(Told().back().status.ToStatus())) << "as before";
  host_.set_bytes_max(1 << 24);
  Settle(std::chrono::seconds(5));
  EXPECT_TRUE(Told().back().status.ToStatus().ok());
  EXPECT_EQ(Told().back().slots.size(), options_.slots_per_rank);
  EXPECT_EQ(GrantWord::Decode(session_->control()->grant.load()).state, GrantState::kGranted);
}

// Twice as much room is made for extras as they take. One page more of that did not fit beside the
// slots that were there, and a job in exactly the memory that it needs never had a snapshot again.
TEST_F(CaptureDeskTest, ExtrasThatHaveGrownAndFitInTheSlotsThatAreThereNeedNoMemory) {
  InTurn([&] { Register(40'000); });
  Settle();
  const uint64_t bytes = state_.memory->use(SegmentKind::kSlot).bytes;
  state_.options.memory_bytes_max = bytes;
  InTurn([&] { Register(60'000); });
  Settle();
  EXPECT_TRUE(Told().back().status.ToStatus().ok()) << Told().back().status.ToStatus();
  EXPECT_EQ(Told().back().slots.size(), options_.slots_per_rank);
  EXPECT_EQ(state_.memory->use(SegmentKind::kSlot).bytes, bytes);
  InTurn([&] { Register(100'000); });
  Settle();
  EXPECT_TRUE(absl::IsResourceExhausted(Told().back().status.ToStatus()));
  EXPECT_THAT(std::string(Told().back().status.ToStatus().message()),
              HasSubstr(fmt::format("{} held now, {} allowed by memory_bytes_max", bytes, bytes)));
}

// One snapshot of large extras, and nothing was captured any more: memory was looked for again and
// again for as many as it had.
TEST_F(CaptureDeskTest, WithoutMemoryForExtrasThatHaveGrownSnapshotsOfSmallerOnesGoOn) {
  InTurn([&] { Register(40'000); });
  Settle();
  state_.options.memory_bytes_max = state_.memory->use(SegmentKind::kSlot).bytes;
  const auto give_up = [&](uint64_t step) {
    InTurn([&] {
      const GrantWord grant = GrantWord::Decode(session_->control()->grant.load());
      ASSERT_EQ(grant.state, GrantState::kGranted);
      session_->control()->grant.store(
          GrantWord{GrantState::kClaimed, grant.slot, grant.generation}.Encode());
      const Version version{session_->timeline, Step{step}};
      desk_->OnClaimed(*session_, {grant.slot, grant.generation, version});
      desk_->OnGaveUp(*session_, {.slot = grant.slot,
                                  .generation = grant.generation,
                                  .version = version,
                                  .extras_bytes_needed = 100'000});
    });
    Settle(2 * options_.memory_retry);
  };
  for (const uint64_t step : {1, 2}) {
    give_up(step);
    EXPECT_EQ(session_->registration_status, absl::OkStatus());
    EXPECT_EQ(session_->extras_bytes, 40'000U);
    EXPECT_EQ(Granted(), GrantState::kGranted);
  }
  EXPECT_EQ(Told().size(), 1U) << "what it knows is as it was";
  EXPECT_EQ(sink_.Count("extras of 100000 bytes, where 40000 were expected"), 1U);
  state_.options.memory_bytes_max = 0;
  give_up(3);
  ASSERT_GE(Told().size(), 2U);
  const Registered last = Told().back();
  EXPECT_TRUE(last.status.ToStatus().ok()) << last.status.ToStatus();
  ASSERT_FALSE(last.slots.empty());
  for (const WireSlotRegion& slot : last.slots) {
    EXPECT_GE(slot.extras_capacity, 100'000U);
  }
  EXPECT_EQ(Granted(), GrantState::kGranted);
}

TEST_F(CaptureDeskTest, TheStepBackSlotIsMadeWhenThereIsMemoryForIt) {
  RegisterWithMemoryFor(2);
  ASSERT_EQ(Told().back().slots.size(), 2U);
  host_.set_bytes_max(1 << 24);
  Settle(std::chrono::seconds(5));
  EXPECT_TRUE(Told().back().status.ToStatus().ok());
  EXPECT_EQ(Told().back().slots.size(), 3U);
}

TEST_F(CaptureDeskTest, WithoutTheStepBackSlotSnapshotsGoOn) {
  RegisterWithMemoryFor(2);
  const std::vector<Registered> told = Told();
  ASSERT_EQ(told.size(), 2U);
  EXPECT_TRUE(told[1].status.ToStatus().ok()) << told[1].status.ToStatus();
  EXPECT_EQ(told[1].slots.size(), 2U);
  EXPECT_EQ(GrantWord::Decode(session_->control()->grant.load()).state, GrantState::kGranted);
}

// A trainer's page is its own to write.
TEST_F(CaptureDeskTest, AForgedGrantFreesNoOtherRanksSlot) {
  InTurn([&] { Register(); });
  Settle();
  constexpr Rank kOther{1};
  ASSERT_NE(kOther, kRank);
  Slot* slot = nullptr;
  InTurn([&] {
    RankSession& other = Connect(kOther, 2);
    UNREFT_CHECK(state_.slots->Provide(kOther, {1 << 12, 1 << 12, 1 << 12}).ok());
    other.timeline = session_->timeline;
  });
  Settle();
  InTurn([&] {
    slot = state_.slots->Grant(kOther, state_.SessionOf(kOther)->life(), 2, Attempt{1},
                               session_->timeline);
  });
  ASSERT_NE(slot, nullptr);
  for (const SlotPhase phase : {SlotPhase::kGranted, SlotPhase::kCapturing}) {
    slot->phase = phase;
    InTurn([&] {
      session_->control()->grant.store(
          GrantWord{GrantState::kGranted, slot->id, slot->generation}.Encode());
      Register();  // takes back what was offered
    });
    Settle();
    EXPECT_EQ(slot->phase, phase);
  }
}

// --- after a restart of the daemon ---

// Told of the earlier one again, the daemon took the later for over and granted its slot anew while
// it was written: the next attempt's version was sealed with the bytes of this one.
TEST_F(CaptureDeskTest, WhatIsToldAgainEndsNothingThatIsStillWritten) {
  InTurn([&] { Register(); });
  Settle();
  // Adopted: which versions they are of, nobody has said yet.
  std::vector<Slot*> slots;
  InTurn([&] {
    for (int i = 0; i < 2; ++i) {
      Slot* slot = state_.slots->Grant(kRank, session_->life(), 1, Attempt{1}, session_->timeline);
      UNREFT_CHECK(slot != nullptr);
      slot->phase = SlotPhase::kCapturing;
      slot->registration = session_->registration;
      slots.push_back(slot);
    }
  });
  const auto tell = [&](const Slot& slot, uint64_t step) {
    InTurn([&] {
      desk_->OnClaimed(*session_, {slot.id, slot.generation, {session_->timeline, Step{step}}});
    });
  };
  tell(*slots[0], 8);
  EXPECT_EQ(slots[1]->phase, SlotPhase::kCapturing);
  tell(*slots[1], 9);
  EXPECT_EQ(slots[1]->phase, SlotPhase::kCapturing);
  EXPECT_NE(slots[0]->phase, SlotPhase::kCapturing) << "it is over, as a later one was begun";
  // A new one begins only after all others.
  const GrantWord word = GrantWord::Decode(session_->control()->grant.load());
  ASSERT_EQ(word.state, GrantState::kGranted);
  tell(*state_.slots->Find(word.slot), 10);
  EXPECT_NE(slots[1]->phase, SlotPhase::kCapturing);
}

TEST_F(CaptureDeskTest, GivingUpASlotThatIsFreeAsksForNothing) {
  InTurn([&] { Register(); });
  Settle();
  GaveUp gave_up{.version = {session_->timeline, Step{1}}, .extras_bytes_needed = 1 << 20};
  InTurn([&] {
    Slot* slot = state_.slots->Grant(kRank, session_->life(), 1, Attempt{1}, session_->timeline);
    gave_up.slot = slot->id;
    gave_up.generation = slot->generation;
    slot->phase = SlotPhase::kCapturing;
    state_.slots->Abandon(*slot, true);
    desk_->OnGaveUp(*session_, gave_up);
  });
  Settle();
  EXPECT_EQ(session_->extras_bytes, 0u);
  EXPECT_EQ(Told().size(), 1U);
}

TEST_F(CaptureDeskTest, GivingUpBeforeRegisteringAsksForNothing) {
  InTurn([&] { desk_->OnGaveUp(*session_, {.extras_bytes_needed = 1 << 20}); });
  Settle();
  EXPECT_TRUE(Told().empty());
}

// Else its ranks captured a part of what others capture all of, until the store answered.
TEST_F(CaptureDeskTest, ALaterProcessKnowsThatReplicasDiffer) {
  InTurn([&] { Register(); });
  Settle();
  InTurn([&] { desk_->OnReplicasDisagree("replicas of w differ"); });
  Settle();
  InTurn([&] {
    desk_ = std::make_unique<CaptureDesk>(state_);
    Register();
  });
  Settle();
  ASSERT_EQ(Told().size(), 3U);
  const auto mode = [](const Registered& told) { return layout::CaptureMode{told.capture_mode}; };
  EXPECT_EQ(mode(Told()[0]), layout::CaptureMode::kSharded);
  EXPECT_EQ(mode(Told()[1]), layout::CaptureMode::kFull);
  EXPECT_EQ(mode(Told()[2]), layout::CaptureMode::kFull);
}

// --- whether the ranks' registrations fit together ---

TEST_F(CaptureDeskTest, NothingIsCapturedOfWhatTheJobHasNotLookedAt) {
  answers_checks_ = false;
  InTurn([&] { Register(); });
  EXPECT_TRUE(Told().empty());
  Settle(std::chrono::seconds(1));
  ASSERT_EQ(Told().size(), 1U) << "the trainer is not kept waiting";
  EXPECT_TRUE(Told()[0].status.ToStatus().ok());
  EXPECT_EQ(Granted(), GrantState::kNone);
  InTurn([&] { TellChecked(); });
  EXPECT_EQ(Granted(), GrantState::kGranted);
  // The same once more is known.
  InTurn([&] { Register(); });
  EXPECT_EQ(Granted(), GrantState::kGranted);
}

TEST_F(CaptureDeskTest, TheFirstSlotIsGrantedBeforeARegistrationIsAnswered) {
  answers_checks_ = false;
  InTurn([&] { Register(); });
  Settle(std::chrono::milliseconds(100));
  EXPECT_TRUE(Told().empty());
  InTurn([&] { TellChecked(); });
  EXPECT_EQ(Told().size(), 1U);
  EXPECT_EQ(Granted(), GrantState::kGranted);
}

TEST_F(CaptureDeskTest, WhatDoesNotFitIsNotCapturedAndSaidOnceItLasts) {
  const absl::Status misfit = absl::FailedPreconditionError("tensor 'w': ranks 0 and 1 differ");
  InTurn([&] { Register(); });
  Settle();
  ASSERT_EQ(Granted(), GrantState::kGranted);
  InTurn([&] { TellChecked(misfit); });
  EXPECT_EQ(Granted(), GrantState::kNone) << "at once";
  EXPECT_EQ(Told().size(), 1U) << "others may be about to register anew";
  Settle(std::chrono::seconds(3));
  ASSERT_EQ(Told().size(), 2U);
  EXPECT_EQ(Told()[1].status.ToStatus(), misfit);
  Settle(std::chrono::seconds(10));
  EXPECT_EQ(Told().size(), 2U) << "once";
  InTurn([&] { TellChecked(); });
  ASSERT_EQ(Told().size(), 3U);
  EXPECT_TRUE(Told()[2].status.ToStatus().ok());
  EXPECT_EQ(Granted(), GrantState::kGranted);
}

TEST_F(CaptureDeskTest, AMisfitThatPassesIsNotSaid) {
  InTurn([&] { Register(); });
  Settle();
  InTurn([&] { TellChecked(absl::FailedPreconditionError("for a moment")); });
  InTurn([&] { TellChecked(); });
  Settle(std::chrono::seconds(5));
  EXPECT_EQ(Told().size(), 1U);
  EXPECT_EQ(Granted(), GrantState::kGranted);
}

// The trainer computed its blocks' CRCs on the device, and one is not what came to host memory.
TEST_F(CaptureDeskTest, ASnapshotThatIsNotWhatTheDeviceHadIsGivenUpAndCounted) {
  InTurn([&] { Register(); });
  Settle();
  const Version version{session_->timeline, Step{1}};
  InTurn([&] {
    const GrantWord grant = GrantWord::Decode(session_->control()->grant.load());
    ASSERT_EQ(grant.state, GrantState::kGranted);
    desk_->OnClaimed(*session_, {grant.slot, grant.generation, version});
    const layout::CapturePlan& plan = session_->registration->plan;
    Captured captured{.slot = grant.slot,
                      .generation = grant.generation,
                      .version = version,
                      .layout_digest = plan.digest(),
                      .data_bytes = plan.data_bytes()};
    captured.block_crcs.resize(BlockCount(plan.data_bytes(), options_.block_bytes), 0x5ee);
    desk_->OnCaptured(*session_, std::move(captured));
  });
  Settle();
  EXPECT_EQ(state_.counters.slots_sealed, 0u);
  EXPECT_EQ(state_.counters.device_checksum_mismatches, 1u);
  EXPECT_THAT(MetricsText(state_, nullptr),
              HasSubstr("unreft_device_checksum_mismatches_total{job=\"job\",node=\"0\"} 1\n"));
  const auto& failed = coordinator_->failed;
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_THAT(failed[0], testing::AllOf(HasSubstr("block 0 (tensor w) has CRC"),
                                        HasSubstr("on the device it had 000005ee")));
}

}  // namespace
}  // namespace unreft::smp
