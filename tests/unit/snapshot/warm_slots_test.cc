// Mapping ahead: it may speed up a restore, and must never change what a restore finds.

#include "snapshot/warm_slots.h"

#include <gmock/gmock.h>

#include <cstring>

#include "tests/unit/snapshot/client_fixture.h"

namespace unreft::snapshot {
namespace {

using testing::HasSubstr;

class WarmSlotsTest : public ClientFixture {
 protected:
  WarmSlotsTest() { AddTensor("a", 1000); }

  // What a daemon makes of slot `id` when its trainer captured the tensors in that generation.
  void MakeVersion(uint64_t id, uint64_t generation) {
    daemon_.Grant(id, generation);
    const std::span<std::byte> slab = daemon_.slot(id).view->data();
    std::memcpy(slab.data(), memory_[0].data(), memory_[0].size());
    daemon_.Seal({.slot = SlotId{id},
                  .generation = Generation{generation},
                  .version = {Timeline{7}, Step{generation}},
                  .data_bytes = memory_[0].size()});
  }
  // Decides that the version in slot `id`, as it is now, is restored.
  void Decide(uint64_t id) {
    daemon_.decision = Decision{.kind = DecisionKind::kRestored,
                                .version = {Timeline{7}, Step{1}},
                                .timeline = Timeline{8},
                                .tensors = {{tensors_[0].spec}},
                                .extras = daemon_.Where(id)};
    daemon_.plan = RestorePlan{.sources = {{.slot = daemon_.Where(id)}},
                               .pieces = {{.bytes = memory_[0].size()}}};
  }
  void Fill(int value) { std::memset(memory_[0].data(), value, memory_[0].size()); }
  // A client that had time to map slot 0 ahead of the decision.
  void StartMapped() {
    daemon_.sealed = {daemon_.Where(0)};
    options_.map_ahead_chunk_bytes = 1000;
    StartClient();
    ASSERT_TRUE(Connect().ok());
    RunFor(std::chrono::milliseconds(10));
  }
  void ExpectRestores(int value) {
    Fill(0);
    const auto restored = RestoreBegin();
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_EQ(RestoreRead(tensors_), absl::OkStatus());
    EXPECT_EQ(memory_[0], std::vector<std::byte>(4000, static_cast<std::byte>(value)));
  }
  // Whether the client maps the slot. Takes it away from the daemon: the last thing to ask of it.
  bool ClientMaps(uint64_t id) {
    RunFor(std::chrono::milliseconds(10));
    const uint64_t before = host_.bytes_used();
    EXPECT_TRUE(segments_.Remove(daemon_.slot(id).name).ok());
    daemon_.slot(id).segment.reset();
    return host_.bytes_used() == before;
  }
};

TEST_F(WarmSlotsTest, AMappedSlotIsRestored) {
  Fill(1);
  MakeVersion(0, 1);
  Decide(0);
  StartMapped();
  ExpectRestores(1);
  EXPECT_TRUE(ClientMaps(0)) << "until the restore ends";
}

TEST_F(WarmSlotsTest, WhatIsSealedIsMappedBeforeItIsAskedFor) {
  MakeVersion(0, 1);
  StartMapped();
  EXPECT_TRUE(ClientMaps(0));
}

TEST_F(WarmSlotsTest, TheMappingGoesWhenTheRestoreEnds) {
  MakeVersion(0, 1);
  Decide(0);
  StartMapped();
  ASSERT_TRUE(RestoreBegin().ok());
  EXPECT_EQ(RestoreRead(tensors_), absl::OkStatus());
  InTurn([&] { actor_->RestoreEnd(); });
  EXPECT_FALSE(ClientMaps(0));
}

TEST_F(WarmSlotsTest, TheMappingGoesWhenNothingIsRestored) {
  MakeVersion(0, 1);
  StartMapped();
  EXPECT_TRUE(RestoreBegin()->fresh);
  EXPECT_FALSE(ClientMaps(0));
}

TEST_F(WarmSlotsTest, TheMappingGoesWhenTheRestoreFails) {
  MakeVersion(0, 1);
  Decide(0);
  daemon_.decision->kind = DecisionKind::kFailed;
  StartMapped();
  EXPECT_FALSE(RestoreBegin().ok());
  EXPECT_FALSE(ClientMaps(0));
}

TEST_F(WarmSlotsTest, TheMappingGoesBeforeARegistration) {
  MakeVersion(0, 1);
  StartMapped();
  daemon_.answers_register = false;
  InTurn([&] { actor_->Register(tensors_, 0, [](const absl::Status&) {}); });
  EXPECT_FALSE(ClientMaps(0));
}

TEST_F(WarmSlotsTest, ADaemonThatTellsOfNoSlotsIsRestoredFrom) {
  Fill(1);
  MakeVersion(0, 1);
  Decide(0);
  StartClient();
  ASSERT_TRUE(Connect().ok());
  ExpectRestores(1);
}

TEST_F(WarmSlotsTest, ASlotThatIsReusedBeforeTheDecisionIsReadAnew) {
  Fill(1);
  MakeVersion(0, 1);
  StartMapped();
  Fill(2);
  MakeVersion(0, 2);
  Decide(0);
  ExpectRestores(2);
}

TEST_F(WarmSlotsTest, ASlotThatIsReusedAfterTheDecisionIsNotRead) {
  MakeVersion(0, 1);
  Decide(0);
  StartMapped();
  ASSERT_TRUE(RestoreBegin().ok());
  daemon_.Grant(0, 2);
  const absl::Status status = RestoreRead(tensors_);
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("found generation 2 capturing"));
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<RestoreDone>() == 1; }));
  EXPECT_EQ(daemon_.Got<RestoreDone>().at(0).bad_generation, Generation{0});
  EXPECT_FALSE(ClientMaps(0));
}

// The old memory still says that this generation is sealed in it.
TEST_F(WarmSlotsTest, OtherMemoryUnderTheSameNameIsReadAnew) {
  for (const RandomId incarnation : {RandomId{2}, RandomId{1}}) {
    Fill(1);
    MakeVersion(0, 1);
    StartMapped();
    daemon_.MakeSlots(2, 16 * 1024, incarnation);
    Fill(2);
    MakeVersion(0, 1);
    Decide(0);
    ExpectRestores(2);
  }
}

TEST_F(WarmSlotsTest, ASlotThatIsGoneIsNamed) {
  MakeVersion(0, 1);
  Decide(0);
  StartMapped();
  ASSERT_TRUE(segments_.Remove(daemon_.slot(0).name).ok());
  const absl::Status status = RestoreBegin().status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(daemon_.slot(0).name));
}

TEST_F(WarmSlotsTest, BytesThatRotAfterTheyWereMappedAreFound) {
  MakeVersion(0, 1);
  Decide(0);
  StartMapped();
  ASSERT_TRUE(RestoreBegin().ok());
  daemon_.slot(0).view->data()[300] ^= std::byte{1};
  const absl::Status status = RestoreRead(tensors_);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("block 1 needs CRC"));
}

// --- the mappings alone ---

size_t MapAll(WarmSlots& slots) {
  size_t turns = 1;
  while (slots.MapSome(4096)) ++turns;
  return turns;
}

TEST_F(WarmSlotsTest, MapsInTurnsOfSoManyBytes) {
  MakeVersion(0, 1);
  MakeVersion(1, 1);
  WarmSlots slots(segments_);
  EXPECT_FALSE(slots.MapSome(4096));
  slots.Expect({daemon_.Where(0), daemon_.Where(1)});
  const uint64_t end = daemon_.slot(0).view->geometry().data_offset + 4096;
  EXPECT_EQ(MapAll(slots), 2 * (end / 4096));
  EXPECT_EQ(slots.mapped(), 2u);
  slots.Clear();
  EXPECT_EQ(slots.mapped(), 0u);
}

TEST_F(WarmSlotsTest, PassesByWhatIsGoneOrReused) {
  MakeVersion(0, 1);
  MakeVersion(1, 1);
  WarmSlots slots(segments_);
  slots.Expect({{SlotId{9}, Generation{1}, "/unreft.job.0.slot9"},
                {SlotId{0}, Generation{3}, daemon_.slot(0).name},
                daemon_.Where(1)});
  MapAll(slots);
  EXPECT_EQ(slots.mapped(), 1u);
}

TEST_F(WarmSlotsTest, LetsGoOfASlotThatIsReusedInTheMiddle) {
  MakeVersion(0, 1);
  WarmSlots slots(segments_);
  slots.Expect({daemon_.Where(0)});
  EXPECT_TRUE(slots.MapSome(4096));
  EXPECT_EQ(slots.mapped(), 1u);
  daemon_.Grant(0, 2);
  EXPECT_FALSE(slots.MapSome(4096));
  EXPECT_EQ(slots.mapped(), 0u);
}

TEST_F(WarmSlotsTest, SlotsOpenedTwiceShareTheirMapping) {
  MakeVersion(0, 1);
  WarmSlots slots(segments_);
  const auto first = slots.Open(daemon_.Where(0));
  const auto second = slots.Open(daemon_.Where(0));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->mapping(), second->mapping());
}

}  // namespace
}  // namespace unreft::snapshot
