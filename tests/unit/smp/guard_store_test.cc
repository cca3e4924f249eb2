// The guards of a node: their format, and what a daemon that starts again takes over.

#include "smp/protect/guard_store.h"

#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "base/slot_header.h"
#include "tests/unit/format_testing.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {
namespace {

constexpr GuardNeeds kNeeds{.record_bytes = 300, .chunks = 2, .sources = 3, .positions = 5};
constexpr Version kVersion{Timeline{2}, Step{40}};

GuardRecord Record() {
  GuardRecord record;
  record.set_format(kGuardRecordFormat);
  record.set_min_reader(kGuardRecordMinReader);
  for (uint64_t slot = 0; slot < 5; ++slot) record.mutable_group()->add_slots(slot);
  record.mutable_group()->set_k(3);
  return record;
}

// Parities and their CRCs, as a guarding leaves them.
void Fill(GuardView& view, uint64_t positions) {
  for (uint32_t chunk = 0; chunk < kNeeds.chunks; ++chunk) {
    for (uint64_t position = 0; position < positions; ++position) {
      const auto block = view.block(chunk, position);
      for (size_t i = 0; i < block.size(); ++i) block[i] = std::byte(7 * chunk + position + i);
      view.parity_crcs(chunk, positions)[position] = Crc32c(block);
    }
  }
}

// A complete guard in ordinary memory.
class SealedGuard {
 public:
  SealedGuard()
      : geometry_(MakeGuardGeometry(3, 64, kNeeds.record_bytes, kNeeds.chunks, kNeeds.sources,
                                    kNeeds.positions)),
        pages_(GuardSegmentBytes(geometry_)),
        view_(FormatGuard(pages_.span(), geometry_)) {
    GuardGrant grant;
    grant.generation = 9;
    grant.timeline = kVersion.timeline.value;
    grant.step = kVersion.step.value;
    grant.positions = kNeeds.positions;
    grant.sources = kNeeds.sources;
    SetBodyCrc(grant);
    view_.header().grant = grant;
    view_.set_state(Generation{9}, GuardState::kFilling);
    Fill(view_, kNeeds.positions);
    UNREFT_CHECK(SealGuard(view_, Generation{9}, Record()).ok());
  }

  std::span<std::byte> bytes() { return pages_.span(); }
  GuardView& view() { return view_; }
  // As a daemon that starts reads it.
  absl::Status Read() {
    absl::StatusOr<GuardView> view = GuardView::Check(bytes());
    if (!view.ok()) return view.status();
    if (view->state() != GuardState::kComplete) return absl::NotFoundError("not complete");
    return VerifyGuard(*view);
  }

 private:
  const GuardGeometry geometry_;
  PageBuffer pages_;
  GuardView view_;
};

TEST(GuardFormatTest, WhatIsSealedVerifies) {
  SealedGuard guard;
  EXPECT_TRUE(guard.Read().ok());
  EXPECT_EQ(ReadGuardRecord(guard.view())->group().k(), 3U);
}

TEST(GuardFormatTest, EveryTurnedBitOfTheHeaderIsRefused) {
  SealedGuard guard;
  for (size_t bit = 0; bit < sizeof(GuardHeader) * 8; ++bit) {
    std::byte& byte = guard.bytes()[bit / 8];
    byte ^= std::byte(1 << bit % 8);
    EXPECT_FALSE(guard.Read().ok()) << "bit " << bit % 8 << " of byte " << bit / 8;
    byte ^= std::byte(1 << bit % 8);
  }
  EXPECT_TRUE(guard.Read().ok());
}

TEST(GuardFormatTest, ATurnedBitOfRecordTablesOrParityIsFound) {
  SealedGuard guard;
  const GuardGeometry& g = guard.view().geometry();
  const uint64_t record_bytes = guard.view().CheckedSeal()->record_bytes;
  const std::pair<uint64_t, uint64_t> regions[] = {
      {g.record_offset, record_bytes},
      {g.parity_crc_offset, guard.view().parity_crc_table().size()},
      {g.input_crc_offset, guard.view().input_crc_table().size()},
      {g.parity_offset, kNeeds.chunks * kNeeds.positions * 64}};
  for (const auto& [offset, length] : regions) {
    for (uint64_t at = offset; at < offset + length; ++at) {
      guard.bytes()[at] ^= std::byte{16};
      EXPECT_FALSE(guard.Read().ok()) << "byte " << at;
      guard.bytes()[at] ^= std::byte{16};
    }
  }
}

TEST(GuardFormatTest, ASegmentThatIsCutOffIsRefused) {
  SealedGuard guard;
  for (size_t size = 0; size < guard.bytes().size(); size += 512) {
    EXPECT_TRUE(absl::IsDataLoss(GuardView::Check(guard.bytes().first(size)).status())) << size;
  }
}

TEST(GuardFormatTest, ANewerFormatIsRefusedAsSuchAndIsNoLoss) {
  SealedGuard guard;
  auto* geometry = reinterpret_cast<GuardGeometry*>(guard.bytes().data());
  geometry->min_reader = kGuardFormat + 1;
  SetBodyCrc(*geometry);
  EXPECT_TRUE(absl::IsFailedPrecondition(GuardView::Check(guard.bytes()).status()));
}

TEST(GuardFormatTest, ARecordThatDoesNotFitIsRefusedWithTheNumbers) {
  SealedGuard guard;
  GuardRecord record = Record();
  record.add_descriptions()->add_slabs()->set_manifest(std::string(5000, 'm'));
  const absl::Status status = SealGuard(guard.view(), Generation{9}, record);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_NE(status.message().find("the region has 4096"), std::string::npos) << status;
}

class GuardStoreTest : public SmpFixture {
 protected:
  std::unique_ptr<GuardStore> NewStore() {
    memory_.emplace(SegmentPool::Seams{*executor_, pool_, segments_, log_}, options_);
    auto store = std::make_unique<GuardStore>(*memory_, log_, options_, boot_id_, incarnation_,
                                              [this] { ++freed_; });
    InTurn([&] { EXPECT_TRUE(store->Adopt().ok()); });
    Settle();
    return store;
  }
  void Provide(GuardStore& store, const GuardNeeds& needs, Version keep_from = {}) {
    InTurn([&] { EXPECT_TRUE(store.Provide(needs, keep_from).ok()); });
    Settle();
  }
  Guard* Complete(GuardStore& store, Version version) {
    Guard* guard = store.Take(version, kNeeds, Version{});
    UNREFT_CHECK(guard != nullptr);
    Fill(*guard->view, kNeeds.positions);
    UNREFT_CHECK(SealGuard(*guard->view, guard->generation, Record()).ok());
    store.SetComplete(*guard, std::make_shared<const GuardRecord>(Record()));
    return guard;
  }
  static Version Later(uint64_t steps) {
    return {kVersion.timeline, Step{kVersion.step.value + steps}};
  }

  RandomId incarnation_ = ExampleId(40);
  int freed_ = 0;
  std::optional<SegmentPool> memory_;  // of the newest store
};

TEST_F(GuardStoreTest, ProvidesAsManyAsARankHasSlots) {
  auto store = NewStore();
  Provide(*store, kNeeds);
  EXPECT_EQ(store->All().size(), options_.slots_per_rank);
  EXPECT_EQ(freed_, static_cast<int>(options_.slots_per_rank));
  Provide(*store, kNeeds);
  EXPECT_EQ(store->All().size(), options_.slots_per_rank);
}

TEST_F(GuardStoreTest, SaysBeforehandWhatItWillTake) {
  auto store = NewStore();
  const GuardMemory before = store->MemoryFor(kNeeds, Version{});
  EXPECT_EQ(before.bytes, 0U);
  EXPECT_EQ(before.guards, options_.slots_per_rank);
  Provide(*store, kNeeds);
  EXPECT_EQ(memory_->use().bytes, before.lacking_bytes);
  EXPECT_EQ(memory_->use().unpopulated, 0U);
  const GuardMemory after = store->MemoryFor(kNeeds, Version{});
  EXPECT_EQ(after.bytes, before.lacking_bytes);
  EXPECT_EQ(after.lacking_bytes, 0U);
  GuardNeeds larger = kNeeds;
  larger.positions *= 9;
  EXPECT_GT(store->MemoryFor(larger, Version{}).lacking_bytes, 0U);
}

TEST_F(GuardStoreTest, GuardsAndSlotsShareTheLimit) {
  auto store = NewStore();
  const uint64_t needed = store->MemoryFor(kNeeds, Version{}).lacking_bytes;
  constexpr SegmentId kSlot{SegmentKind::kSlot, 0};
  ASSERT_TRUE(memory_->Make(kSlot, 100).ok());
  options_.memory_bytes_max = needed + 99;
  InTurn([&] {
    const absl::Status status = store->Provide(kNeeds, Version{});
    EXPECT_TRUE(absl::IsResourceExhausted(status));
    EXPECT_NE(status.message().find("memory_bytes_max"), std::string::npos) << status;
  });
  memory_->Remove(kSlot);
  ASSERT_TRUE(memory_->Make(kSlot, 99).ok());
  Provide(*store, kNeeds);
  EXPECT_EQ(memory_->use(SegmentKind::kGuard).bytes, needed);
}

TEST_F(GuardStoreTest, ACompleteGuardIsAdoptedOneBeingFilledIsNot) {
  auto store = NewStore();
  Provide(*store, kNeeds);
  const uint64_t complete = Complete(*store, kVersion)->id;
  ASSERT_NE(store->Take(Later(1), kNeeds, Version{}), nullptr);
  store = NewStore();
  Guard* adopted = store->Complete(kVersion);
  ASSERT_NE(adopted, nullptr);
  EXPECT_EQ(adopted->id, complete);
  EXPECT_EQ(adopted->record->group().k(), 3U);
  EXPECT_EQ(adopted->grant.positions, kNeeds.positions);
  EXPECT_EQ(store->Complete(Later(1)), nullptr);
  for (Guard* guard : store->All()) {
    EXPECT_EQ(guard->phase, guard == adopted ? GuardPhase::kComplete : GuardPhase::kFree);
  }
}

TEST_F(GuardStoreTest, AGuardOfAnotherIncarnationIsNotUsed) {
  auto store = NewStore();
  Provide(*store, kNeeds);
  Complete(*store, kVersion);
  incarnation_ = ExampleId(80);
  store = NewStore();
  EXPECT_EQ(store->Complete(kVersion), nullptr);
  for (Guard* guard : store->All()) EXPECT_EQ(guard->phase, GuardPhase::kQuarantined);
}

TEST_F(GuardStoreTest, AGuardWhoseRecordHasRottedIsQuarantined) {
  auto store = NewStore();
  Provide(*store, kNeeds);
  Guard* guard = Complete(*store, kVersion);
  guard->view->record()[3] ^= std::byte{1};
  store = NewStore();
  EXPECT_EQ(store->Complete(kVersion), nullptr);
}

TEST_F(GuardStoreTest, TheOldestBelowTheCommitIsTakenWhenNoneIsFree) {
  auto store = NewStore();
  Provide(*store, kNeeds);
  for (uint64_t i = 0; i < options_.slots_per_rank; ++i) Complete(*store, Later(i));
  EXPECT_EQ(store->Take(Later(9), kNeeds, kVersion), nullptr);
  Guard* taken = store->Take(Later(9), kNeeds, Later(2));
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(store->Complete(kVersion), nullptr);
  EXPECT_NE(store->Complete(Later(1)), nullptr);
}

// What a larger one has in the place of a parity that its group has not would not verify.
TEST_F(GuardStoreTest, AGuardIsUsedForAsManyParitiesAsItWasMadeFor) {
  auto store = NewStore();
  Provide(*store, kNeeds);
  GuardNeeds fewer = kNeeds;
  fewer.chunks = kNeeds.chunks - 1;
  EXPECT_EQ(store->Take(kVersion, fewer, Version{}), nullptr);
  Provide(*store, fewer);
  Guard* const taken = store->Take(kVersion, fewer, Version{});
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->view->geometry().chunks, fewer.chunks);
}

TEST_F(GuardStoreTest, WhereNothingIsGuardedAnyMoreFreeAndOldOnesGo) {
  auto store = NewStore();
  Provide(*store, kNeeds);
  Complete(*store, kVersion);
  ASSERT_GT(store->All().size(), 1U);
  InTurn([&] { store->RemoveUnused(kVersion); });
  ASSERT_EQ(store->All().size(), 1U) << "what is restored from is not older";
  EXPECT_NE(store->Complete(kVersion), nullptr);
  InTurn([&] { store->RemoveUnused(Later(1)); });
  EXPECT_TRUE(store->All().empty());
}

TEST_F(GuardStoreTest, AVersionThatIsKeptIsNotTakenHoweverOld) {
  auto store = NewStore();
  Provide(*store, kNeeds);
  for (uint64_t i = 0; i < options_.slots_per_rank; ++i) Complete(*store, Later(i));
  store->Keep({kVersion});
  ASSERT_NE(store->Take(Later(9), kNeeds, Later(2)), nullptr);
  EXPECT_NE(store->Complete(kVersion), nullptr);
  EXPECT_EQ(store->Complete(Later(1)), nullptr);
  EXPECT_EQ(store->Take(Later(9), kNeeds, Later(2)), nullptr);
  store->Keep({});
  EXPECT_NE(store->Take(Later(9), kNeeds, Later(2)), nullptr);
}

TEST_F(GuardStoreTest, EachPinHasAGuardMore) {
  options_.pins = 2;
  auto store = NewStore();
  Provide(*store, kNeeds);
  EXPECT_EQ(store->All().size(), options_.slots_per_rank + 2);
}

TEST_F(GuardStoreTest, WhatIsReadIsFreedWhenTheReadEnds) {
  auto store = NewStore();
  Provide(*store, kNeeds);
  Guard* guard = Complete(*store, kVersion);
  store->Use(*guard);
  store->Free(*guard);
  EXPECT_EQ(guard->phase, GuardPhase::kComplete);
  EXPECT_EQ(store->Complete(kVersion), nullptr);
  store->EndUse(guard->id, guard->generation);
  EXPECT_EQ(guard->phase, GuardPhase::kFree);
}

// Extras that grow made new guards beside all the old ones.
TEST_F(GuardStoreTest, GuardsThatAreTooSmallGoOnceTheyAreOld) {
  auto store = NewStore();
  Provide(*store, kNeeds);
  for (uint64_t i = 0; i < options_.slots_per_rank; ++i) Complete(*store, Later(i));
  GuardNeeds larger = kNeeds;
  larger.record_bytes = 3 * 4096;
  Provide(*store, larger, Later(2));
  EXPECT_EQ(store->Complete(kVersion), nullptr);
  EXPECT_NE(store->Complete(Later(2)), nullptr);
  EXPECT_EQ(store->All().size(), options_.slots_per_rank) << "one that is in use counts";
}

// A node whose memory is exactly what it needs registers ranks with larger slabs than the version
// that they have restored, which stays until one of theirs is committed.
TEST_F(GuardStoreTest, LargerOnesTakeTheMemoryOfThoseThatGo) {
  auto store = NewStore();
  Provide(*store, kNeeds);
  for (uint64_t i = 0; i < options_.slots_per_rank; ++i) Complete(*store, Later(i));
  GuardNeeds larger = kNeeds;
  larger.positions *= 9;
  const uint64_t small = GuardBytes(options_.block_bytes, kNeeds);
  const uint64_t large = GuardBytes(options_.block_bytes, larger);
  for (const uint64_t in_use : {3, 2, 1, 0}) {
    const Version keep_from = Later(options_.slots_per_rank - in_use);
    const uint64_t made = std::max<uint64_t>(1, options_.slots_per_rank - in_use) * large;
    const GuardMemory memory = store->MemoryFor(larger, keep_from);
    EXPECT_EQ(memory.bytes, options_.slots_per_rank * small);
    EXPECT_EQ(memory.lacking_bytes, made - (options_.slots_per_rank - in_use) * small) << in_use;
  }
  // Two are old, one is in use.
  options_.memory_bytes_max = small + 2 * large;
  const Version keep_from = Later(options_.slots_per_rank - 1);
  Provide(*store, larger, keep_from);
  EXPECT_EQ(memory_->use(SegmentKind::kGuard).bytes, options_.memory_bytes_max);
  EXPECT_NE(store->Complete(keep_from), nullptr);
  // The last of them goes with the next commit.
  options_.memory_bytes_max = 3 * large;
  Provide(*store, larger, Later(9));
  EXPECT_EQ(store->Complete(keep_from), nullptr);
  EXPECT_EQ(memory_->use(SegmentKind::kGuard).bytes, options_.memory_bytes_max);
}

// Each growth left as many behind as were being filled, for versions that nobody said were over.
TEST_F(GuardStoreTest, HoweverOftenTheSlabsGrowThereIsALimit) {
  auto store = NewStore();
  GuardNeeds needs = kNeeds;
  uint64_t taken = 0;
  for (uint64_t growth = 1; taken < 3 * options_.SlotsPerRank(); ++growth) {
    needs.record_bytes = growth * 2 * kSegmentPage;
    Provide(*store, needs);
    const uint64_t before = taken;
    while (store->Take(Later(taken), needs, Version{}) != nullptr) ++taken;
    ASSERT_GT(taken, before);
  }
  needs.record_bytes += 2 * kSegmentPage;
  absl::Status status;
  InTurn([&] { status = store->Provide(needs, Version{}); });
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(status.message().find("the other 9 are in use, the limit is 9"), std::string::npos)
      << status;
  EXPECT_EQ(store->All().size(), 3 * options_.SlotsPerRank());
  // One is over.
  store->Free(*store->All().front());
  Provide(*store, needs);
  EXPECT_NE(store->Take(Later(40), needs, Version{}), nullptr);
  EXPECT_EQ(store->All().size(), 3 * options_.SlotsPerRank());
}

// Each guard that had rotted stayed beside the one that was made in its place.
TEST_F(GuardStoreTest, AQuarantinedGuardGoesWhenAnotherIsMade) {
  auto store = NewStore();
  Provide(*store, kNeeds);
  Guard* guard = Complete(*store, kVersion);
  store->Use(*guard);
  store->Quarantine(*guard, "it has rotted");
  Provide(*store, kNeeds);
  EXPECT_EQ(store->All().size(), options_.SlotsPerRank() + 1) << "while it is read";
  store->EndUse(guard->id, guard->generation);
  Provide(*store, kNeeds);
  EXPECT_EQ(store->All().size(), options_.SlotsPerRank());
  for (Guard* other : store->All()) EXPECT_EQ(other->phase, GuardPhase::kFree);
}

// A daemon that started again quarantined the guard of a version that was whole.
TEST_F(GuardStoreTest, ATurnedBitOfTheGeometryIsMendedWhenTheGuardIsTaken) {
  auto store = NewStore();
  Provide(*store, kNeeds);
  for (Guard* guard : store->All()) guard->view->header().geometry.record_offset ^= 1;
  Complete(*store, kVersion);
  store = NewStore();
  EXPECT_NE(store->Complete(kVersion), nullptr);
}

// It was counted on by a decision, and quarantined or forgotten by the next process.
TEST_F(GuardStoreTest, TurnedBitsOfTheHeaderThatNobodyReadsAreMended) {
  auto store = NewStore();
  Provide(*store, kNeeds);
  Guard* guard = Complete(*store, kVersion);
  guard->view->header().geometry.record_offset ^= 1;
  guard->view->header().state.fetch_xor(1);
  store->MendHeader(*guard);
  store = NewStore();
  EXPECT_NE(store->Complete(kVersion), nullptr);
}

// Needs that grew faster than pages are reserved left a set of guards behind each time.
TEST_F(GuardStoreTest, GuardsThatAreTooSmallGoWhileTheyArePopulated) {
  options_.populate_chunk_bytes = 4 * kSegmentPage;
  auto store = NewStore();
  GuardNeeds larger = kNeeds;
  larger.positions = 600;
  InTurn([&] {
    EXPECT_TRUE(store->Provide(kNeeds, {}).ok());
    EXPECT_TRUE(store->Provide(larger, {}).ok());
  });
  EXPECT_EQ(store->All().size(), options_.slots_per_rank);
  Settle();
  // The pages that were reserved for the first one count for nothing in its successor's.
  for (Guard* guard : store->All()) {
    EXPECT_EQ(guard->phase, GuardPhase::kFree);
    EXPECT_GE(*host_.ReservedBytes(guard->segment->name()), guard->segment->bytes().size());
  }
  EXPECT_EQ(memory_->use().unpopulated, 0U);
  EXPECT_EQ(segments_.List("")->size(), options_.slots_per_rank);
}

}  // namespace
}  // namespace unreft::smp
