#include "smp/memory/slot_store.h"

#include <gmock/gmock.h>

#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::HasSubstr;

constexpr SlotNeeds kNeeds{.data_bytes = 4000, .extras_bytes = 100, .manifest_bytes = 500};
constexpr SlotNeeds kMore{.data_bytes = 9000, .extras_bytes = 100, .manifest_bytes = 500};
constexpr Rank kRank{1};

class SlotStoreTest : public SmpFixture {
 protected:
  SlotStoreTest() { MakeStore(); }
  ~SlotStoreTest() override { store_.reset(); }

  void MakeStore() {
    memory_.emplace(SegmentPool::Seams{*executor_, pool_, segments_, log_}, options_);
    store_ = std::make_unique<SlotStore>(SlotStore::Seams{*executor_, *memory_, processes_, log_},
                                         options_, boot_id_, incarnation_,
                                         ProcessNumber{++sessions_}, [this] { ++changes_; });
  }
  // As a daemon that was killed and came again.
  absl::Status Restart() {
    store_.reset();
    MakeStore();
    absl::Status status;
    InTurn([&] { status = store_->Adopt(); });
    return status;
  }
  absl::Status Provide(const SlotNeeds& needs) {
    absl::Status status;
    InTurn([&] { status = store_->Provide(kRank, needs); });
    Settle();
    return status;
  }
  Slot& Grant() {
    Slot* slot = nullptr;
    InTurn([&] { slot = store_->Grant(kRank, writer_, 2, Attempt{5}, Timeline{3}); });
    UNREFT_CHECK(slot != nullptr);
    return *slot;
  }
  size_t Count(SlotPhase phase) {
    size_t count = 0;
    for (Slot* slot : store_->All()) count += slot->phase == phase;
    return count;
  }
  Slot& TheOne(SlotPhase phase) {
    for (Slot* slot : store_->All()) {
      if (slot->phase == phase) return *slot;
    }
    UNREFT_CHECK(false, "no slot is {}", SlotPhaseName(phase));
  }

  RandomId incarnation_ = random_.NextId();
  ProcessLife writer_ = table_.Start();
  int changes_ = 0;
  uint64_t sessions_ = 0;
  std::optional<SegmentPool> memory_;
  std::unique_ptr<SlotStore> store_;
};

TEST_F(SlotStoreTest, ProvidesTheSlotsOfARankAndPopulatesThem) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  EXPECT_EQ(Count(SlotPhase::kFree), options_.slots_per_rank);
  ASSERT_TRUE(Provide(kNeeds).ok());
  EXPECT_EQ(store_->All().size(), options_.slots_per_rank) << "they are there already";
}

TEST_F(SlotStoreTest, EachPinIsASlotMoreOfTheBudget) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  const uint64_t without = memory_->use(SegmentKind::kSlot).bytes;
  options_.pins = 1;
  ASSERT_TRUE(Provide(kNeeds).ok());
  EXPECT_EQ(Count(SlotPhase::kFree), options_.slots_per_rank + 1);
  EXPECT_EQ(memory_->use(SegmentKind::kSlot).bytes,
            without / options_.slots_per_rank * (options_.slots_per_rank + 1));
}

TEST_F(SlotStoreTest, SaysWithNumbersThatSlotsDoNotFit) {
  options_.memory_bytes_max = 20000;
  const absl::Status status = Provide(kNeeds);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("20000 allowed by memory_bytes_max"));
}

TEST_F(SlotStoreTest, SizesThatNoMemoryHasAreRefused) {
  for (const uint64_t bytes : {uint64_t{1} << 50, uint64_t{1} << 63, ~uint64_t{0}}) {
    EXPECT_TRUE(absl::IsResourceExhausted(Provide({.data_bytes = bytes})));
    EXPECT_TRUE(absl::IsResourceExhausted(Provide({.data_bytes = 100, .extras_bytes = bytes})));
  }
  EXPECT_TRUE(store_->All().empty());
}

TEST_F(SlotStoreTest, GuardsAreCountedBeforeTheyAreThere) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  const uint64_t slots = memory_->use(SegmentKind::kSlot).bytes;
  ASSERT_TRUE(memory_->Make({SegmentKind::kGuard, 0}, 4096).ok());
  std::vector<SlotNeeds> asked;
  store_->set_guards([&](std::span<const SlotNeeds> slabs) {
    asked.assign(slabs.begin(), slabs.end());
    return GuardMemory{.guards = 4, .bytes = 4096, .lacking_bytes = 2000};
  });
  options_.memory_bytes_max = slots + 6095;
  InTurn([&] { EXPECT_TRUE(absl::IsResourceExhausted(store_->Provide(kRank, kNeeds))); });
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_EQ(asked[0].data_bytes, kNeeds.data_bytes);
  const absl::Status status = Provide(kNeeds);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("beside 4 guards of this node, 6096 bytes together, do not fit"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(fmt::format("{} bytes of shared memory needed, {} held now, {} allowed",
                                    slots + 6096, slots + 4096, slots + 6095)));
  options_.memory_bytes_max = slots + 6096;
  EXPECT_TRUE(Provide(kNeeds).ok());
  EXPECT_EQ(store_->guards().lacking_bytes, 2000U);
}

TEST_F(SlotStoreTest, ReplacesSlotsThatAreTooSmall) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  ASSERT_TRUE(Provide(kMore).ok());
  EXPECT_EQ(store_->All().size(), options_.slots_per_rank);
  EXPECT_GE(Grant().view->data().size(), kMore.data_bytes);
}

// A trainer that still mapped the first one took the grant for one of that.
TEST_F(SlotStoreTest, ASlotUnderTheNumberOfARemovedOneIsGrantedInAGreaterGeneration) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  Slot& first = Grant();
  const SlotId number = first.id;
  const Generation before = first.generation;
  InTurn([&] { store_->Free(first); });
  ASSERT_TRUE(Provide(kMore).ok());
  const Slot& anew = Grant();
  ASSERT_EQ(anew.id, number);
  EXPECT_GT(anew.generation, before);
}

TEST_F(SlotStoreTest, ALaterDaemonGrantsInGreaterGenerationsThanWhatIsGone) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  Generation before;
  for (int grants = 0; grants < 5; ++grants) {
    Slot& slot = Grant();
    before = slot.generation;
    InTurn([&] { store_->Free(slot); });
  }
  ASSERT_TRUE(Provide(kMore).ok());
  ASSERT_TRUE(Restart().ok());
  ASSERT_TRUE(Provide(kMore).ok());
  EXPECT_GT(Grant().generation, before);
}

TEST_F(SlotStoreTest, WhatIsAdoptedIsGrantedInGreaterGenerationsToo) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  const Generation before = Grant().generation;
  sessions_ = 0;  // as if the numbers of sessions came again
  ASSERT_TRUE(Restart().ok());
  ASSERT_TRUE(Provide(kNeeds).ok());
  EXPECT_GT(Grant().generation, before);
}

// It was written beyond the slot's end.
TEST_F(SlotStoreTest, ASlabIsRebuiltOnlyWhereItFits) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  auto manifest = std::make_shared<layout::SlotManifest>();
  manifest->data_bytes = kMore.data_bytes;
  const auto take = [&](uint64_t manifest_bytes) {
    Slot* slot = nullptr;
    InTurn([&] { slot = store_->TakeForRebuild(kRank, manifest, manifest_bytes); });
    return slot;
  };
  EXPECT_EQ(take(100), nullptr);
  manifest->data_bytes = kNeeds.data_bytes;
  EXPECT_EQ(take(1 << 20), nullptr);
  ASSERT_NE(take(100), nullptr);
  EXPECT_EQ(Count(SlotPhase::kRebuilding), 1U);
}

// Its rank may train elsewhere: neither other slots are made for it nor guards.
TEST_F(SlotStoreTest, ForASlabThereIsOneSlotAlthoughItsRankIsForgotten) {
  size_t guarded = 1;
  store_->set_guards([&](std::span<const SlotNeeds> slabs) {
    guarded = slabs.size();
    return GuardMemory{};
  });
  const Version version{Timeline{3}, Step{8}};
  InTurn([&] {
    store_->Forget(kRank);
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(store_->ProvideForRebuild(kRank, kNeeds, version).ok());
    }
  });
  Settle();
  EXPECT_EQ(guarded, 0U);
  EXPECT_EQ(store_->All().size(), 1U);
  auto manifest = std::make_shared<layout::SlotManifest>();
  manifest->version = version;
  manifest->data_bytes = kNeeds.data_bytes;
  Slot* slot = nullptr;
  InTurn([&] { slot = store_->TakeForRebuild(kRank, manifest, 100); });
  ASSERT_NE(slot, nullptr);
  InTurn([&] { store_->Free(*slot); });
  Settle();
  EXPECT_TRUE(store_->All().empty());
}

TEST_F(SlotStoreTest, ASlotForASlabThatNobodyDecodesGoesWithItsRank) {
  InTurn(
      [&] { EXPECT_TRUE(store_->ProvideForRebuild(kRank, kNeeds, {Timeline{3}, Step{8}}).ok()); });
  Settle();
  ASSERT_TRUE(Provide(kMore).ok());
  EXPECT_EQ(store_->All().size(), options_.slots_per_rank + 1) << "though it is too small for more";
  InTurn([&] { store_->Forget(kRank); });
  Settle();
  EXPECT_TRUE(store_->All().empty());
}

TEST_F(SlotStoreTest, WhereARankHasAllItsSlotsASlabWaitsForOneOfThem) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  for (uint32_t i = 0; i < options_.slots_per_rank; ++i) Grant().phase = SlotPhase::kSealed;
  InTurn(
      [&] { EXPECT_TRUE(store_->ProvideForRebuild(kRank, kNeeds, {Timeline{3}, Step{8}}).ok()); });
  Settle();
  EXPECT_EQ(store_->All().size(), options_.slots_per_rank);
}

TEST_F(SlotStoreTest, AFullMemoryIsToldAndLeavesNothingHalf) {
  host_.set_bytes_max(8192);
  EXPECT_TRUE(absl::IsResourceExhausted(Provide(kNeeds)));
  host_.set_bytes_max(1 << 20);
  ASSERT_TRUE(Provide(kNeeds).ok());
  EXPECT_EQ(Count(SlotPhase::kFree), options_.slots_per_rank);
}

// There was room when it was looked at; another job took it before the pages were reserved.
TEST_F(SlotStoreTest, SlotsWhosePagesCannotBeHadAreGoneAndToldOf) {
  InTurn([&] {
    ASSERT_TRUE(store_->Provide(kRank, kNeeds).ok());
    ASSERT_EQ(store_->Offerable(kRank).size(), options_.slots_per_rank);
    host_.set_bytes_max(host_.bytes_used() + store_->All().front()->bytes());
  });
  Settle();
  EXPECT_LT(store_->Offerable(kRank).size(), options_.slots_per_rank);
  EXPECT_EQ(store_->Offerable(kRank).size(), Count(SlotPhase::kFree));
  EXPECT_TRUE(absl::IsResourceExhausted(store_->ProvisionStatus(kRank)));
  EXPECT_EQ(changes_, static_cast<int>(options_.slots_per_rank)) << "each, whether free or gone";
  host_.set_bytes_max(1 << 20);
  ASSERT_TRUE(Provide(kNeeds).ok());
  EXPECT_TRUE(store_->ProvisionStatus(kRank).ok());
  EXPECT_EQ(Count(SlotPhase::kFree), options_.slots_per_rank);
}

TEST_F(SlotStoreTest, ARankThatIsForgottenKeepsOnlyWhatIsInUse) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  Slot& granted = Grant();
  InTurn([&] { store_->Forget(kRank); });
  Settle();
  EXPECT_EQ(store_->All(), std::vector<Slot*>{&granted});
  EXPECT_EQ(store_->guards().guards, 0U);
  InTurn([&] { store_->Free(granted); });
  Settle();
  EXPECT_TRUE(store_->All().empty());
  ASSERT_TRUE(Provide(kNeeds).ok());
  EXPECT_EQ(Count(SlotPhase::kFree), options_.slots_per_rank);
}

TEST_F(SlotStoreTest, ASlotThatWasForgottenWhileItWasPopulatedGoes) {
  InTurn([&] {
    ASSERT_TRUE(store_->Provide(kRank, kNeeds).ok());
    store_->Forget(kRank);
  });
  Settle();
  EXPECT_TRUE(store_->All().empty());
  EXPECT_EQ(host_.bytes_used(), 0U);
}

// Needs that grew faster than pages are reserved left the first slots behind for ever.
TEST_F(SlotStoreTest, SlotsThatAreTooSmallGoOnceTheyArePopulated) {
  InTurn([&] {
    ASSERT_TRUE(store_->Provide(kRank, kNeeds).ok());
    ASSERT_TRUE(store_->Provide(kRank, kMore).ok());
  });
  Settle();
  EXPECT_EQ(store_->All().size(), options_.slots_per_rank);
  EXPECT_EQ(Count(SlotPhase::kFree), options_.slots_per_rank);
  EXPECT_EQ(store_->Offerable(kRank).size(), options_.slots_per_rank);
}

TEST_F(SlotStoreTest, AdoptsFreeSlotsThatWereGrantedBefore) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  Slot& slot = Grant();
  const Generation generation = slot.generation;
  InTurn([&] { store_->Free(slot); });
  ASSERT_TRUE(Restart().ok());
  Settle();
  ASSERT_EQ(Count(SlotPhase::kFree), 1u) << "the others never said whose they are";
  EXPECT_EQ(TheOne(SlotPhase::kFree).owner, kRank);
  EXPECT_EQ(TheOne(SlotPhase::kFree).generation, generation);
}

TEST_F(SlotStoreTest, AdoptsACaptureWhileItsWriterLives) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  Grant();
  ASSERT_TRUE(Restart().ok());
  Settle();
  Slot& slot = TheOne(SlotPhase::kCapturing);
  EXPECT_EQ(slot.writer, writer_);
  EXPECT_EQ(slot.attempt, Attempt{5});
  table_.End(writer_);
  Settle();
  EXPECT_EQ(Count(SlotPhase::kCapturing), 0u);
  EXPECT_EQ(Count(SlotPhase::kFree), 1u);
}

TEST_F(SlotStoreTest, AnAbandonedSlotIsNotUsedBeforeItsWriterEnds) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  Slot& slot = Grant();
  slot.phase = SlotPhase::kCapturing;
  InTurn([&] { store_->Abandon(slot, false); });
  EXPECT_EQ(Count(SlotPhase::kDraining), 1u);
  ASSERT_TRUE(Restart().ok());
  Settle();
  EXPECT_EQ(Count(SlotPhase::kDraining), 1u) << "nor by a restarted daemon";
  table_.End(writer_);
  Settle();
  EXPECT_EQ(Count(SlotPhase::kDraining), 0u);
}

TEST_F(SlotStoreTest, QuarantinesWhatDoesNotVerify) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  Slot& sealed_falsely = Grant();
  sealed_falsely.view->set_state(sealed_falsely.generation, SlotState::kSealed);
  Slot& corrupt = Grant();
  host_.FlipBit(corrupt.segment->name(), 100, 3);
  ASSERT_TRUE(Restart().ok());
  EXPECT_EQ(Count(SlotPhase::kQuarantined), 2u);
}

TEST_F(SlotStoreTest, QuarantinesTheMemoryOfAnotherIncarnation) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  incarnation_ = random_.NextId();
  ASSERT_TRUE(Restart().ok());
  EXPECT_EQ(Count(SlotPhase::kQuarantined), options_.slots_per_rank);
}

TEST_F(SlotStoreTest, RefusesAnUnknownFormatAndTouchesNothing) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  SlotGeometry& geometry = Grant().view->header().geometry;
  geometry.format = geometry.min_reader = kSlotFormat + 1;
  SetBodyCrc(geometry);
  const auto names = host_.Names();
  EXPECT_TRUE(absl::IsFailedPrecondition(Restart()));
  EXPECT_EQ(host_.Names(), names);
}

TEST_F(SlotStoreTest, MendsTheGeometryOfASlotThatItGrants) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  for (Slot* slot : store_->All()) host_.FlipBit(slot->segment->name(), 40, 1);
  Slot& slot = Grant();
  EXPECT_TRUE(SlotView::Check(slot.segment->bytes()).ok());
}

TEST_F(SlotStoreTest, AReplacedQuarantinedSlotIsGivenUp) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  Slot& slot = Grant();
  const SlotId id = slot.id;
  InTurn([&] {
    store_->Quarantine(slot, "its content");
    slot.reusable = true;
  });
  ASSERT_TRUE(Provide(kNeeds).ok());
  EXPECT_EQ(store_->All().size(), options_.slots_per_rank + 1);
  InTurn([&] { store_->Reuse(*store_->Find(id)); });
  EXPECT_EQ(store_->All().size(), options_.slots_per_rank);
  EXPECT_EQ(store_->Find(id), nullptr);
}

// They can never be used again, and would hold their memory as long as the daemon lives.
TEST_F(SlotStoreTest, SlotsWithAWrongHeaderGoWhenSlotsAreMade) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  Grant().view->header().grant.rank ^= 1;
  Grant().view->header().geometry.data_capacity ^= 1;
  options_.memory_bytes_max = memory_->use().bytes;
  ASSERT_TRUE(Restart().ok());
  EXPECT_EQ(Count(SlotPhase::kQuarantined), 2U);
  ASSERT_TRUE(Provide(kNeeds).ok());
  EXPECT_EQ(store_->All().size(), options_.slots_per_rank);
  EXPECT_EQ(Count(SlotPhase::kQuarantined), 0U);
  EXPECT_EQ(store_->quarantined(), 2U) << "it is still told of";
}

TEST_F(SlotStoreTest, WhatAnotherMemoryHasMadeStays) {
  ASSERT_TRUE(Provide(kNeeds).ok());
  incarnation_ = random_.NextId();
  ASSERT_TRUE(Restart().ok());
  ASSERT_TRUE(Provide(kNeeds).ok());
  EXPECT_EQ(Count(SlotPhase::kQuarantined), options_.slots_per_rank);
  EXPECT_EQ(store_->All().size(), 2 * options_.slots_per_rank);
}

}  // namespace
}  // namespace unreft::smp
