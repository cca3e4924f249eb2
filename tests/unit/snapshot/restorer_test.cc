// Restore: what was captured comes back byte for byte, or an error that names what is wrong.

#include "snapshot/restorer.h"

#include <gmock/gmock.h>

#include <cstring>

#include "tests/unit/snapshot/client_fixture.h"

namespace unreft::snapshot {
namespace {

using testing::HasSubstr;

class RestorerTest : public ClientFixture {
 protected:
  RestorerTest() {
    AddTensor("a", 100);
    AddTensor("b", 1000);
  }

  // Captures into slot 0 and seals it; the daemon then has a plan for all of it.
  void CaptureAndSeal(const std::string& extras = "extras") {
    Ready();
    ASSERT_TRUE(Snapshot(5, extras).ok());
    ASSERT_TRUE(RunUntil([&] { return daemon_.Count<Captured>() == 1; }));
    Fence();
    daemon_.Seal(daemon_.Got<Captured>().at(0));
    daemon_.decision = Decision{.kind = DecisionKind::kRestored,
                                .version = {Timeline{7}, Step{5}},
                                .timeline = Timeline{8},
                                .extras = daemon_.Where(0)};
    for (const BoundTensor& tensor : tensors_) {
      daemon_.decision->tensors.push_back({tensor.spec});
    }
    daemon_.plan = RestorePlan{.sources = {{.slot = daemon_.Where(0)}},
                               .pieces = {{.target = 0, .source_offset = 0, .bytes = 400},
                                          {.target = 1, .source_offset = 448, .bytes = 4000}}};
  }
  // Wipes the tensors; returns what they held.
  std::deque<std::vector<std::byte>> Wipe() {
    std::deque<std::vector<std::byte>> before = memory_;
    for (auto& bytes : memory_) std::fill(bytes.begin(), bytes.end(), std::byte{0});
    return before;
  }
  void FlipBit(uint64_t slab_offset) {
    const auto& slot = daemon_.slot(0);
    host_.FlipBit(slot.name, slot.view->geometry().data_offset + slab_offset, 3);
  }
  void ExpectBad(const absl::Status& status, const std::string& what) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    ASSERT_TRUE(RunUntil([&] { return daemon_.Count<RestoreDone>() == 1; }));
    const RestoreDone done = daemon_.Got<RestoreDone>().at(0);
    EXPECT_EQ(done.bad_slot, SlotId{0});
    EXPECT_EQ(done.bad_generation, Generation{1});
    EXPECT_TRUE(absl::IsDataLoss(done.status.ToStatus()));
  }
};

TEST_F(RestorerTest, WhatWasCapturedComesBack) {
  CaptureAndSeal();
  const auto before = Wipe();
  const auto restored = RestoreBegin();
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_FALSE(restored->fresh);
  EXPECT_EQ(restored->version, (Version{Timeline{7}, Step{5}}));
  EXPECT_EQ(restored->timeline, Timeline{8});
  EXPECT_EQ(restored->tensors, SpecsOf(tensors_));
  ASSERT_TRUE(restored->extras.has_value());
  EXPECT_EQ(restored->extras->size(), 6u);
  EXPECT_EQ(RestoreRead(tensors_), absl::OkStatus());
  EXPECT_EQ(memory_, before);
  EXPECT_EQ(status().timeline, Timeline{8});

  // The slots are let go by the first snapshot, once.
  EXPECT_EQ(daemon_.Count<RestoreDone>(), 0u);
  daemon_.timeline = Timeline{8};
  daemon_.Grant(1, 2);
  ASSERT_TRUE(Snapshot(5).ok());
  InTurn([&] { actor_->RestoreEnd(); });
  RunFor(std::chrono::milliseconds(10));
  ASSERT_EQ(daemon_.Count<RestoreDone>(), 1u);
  EXPECT_TRUE(daemon_.Got<RestoreDone>().at(0).status.ToStatus().ok());
  EXPECT_EQ(daemon_.Got<Claimed>().back().version, (Version{Timeline{8}, Step{5}}));
}

TEST_F(RestorerTest, SeveralThreadsReadTheSame) {
  options_.restore_threads = 3;
  CaptureAndSeal();
  const auto before = Wipe();
  ASSERT_TRUE(RestoreBegin().ok());
  EXPECT_EQ(RestoreRead(tensors_), absl::OkStatus());
  EXPECT_EQ(memory_, before);
}

TEST_F(RestorerTest, PiecesOfAnyCutAndOrderWillDo) {
  CaptureAndSeal();
  const auto before = Wipe();
  daemon_.plan->pieces.clear();
  for (uint64_t at : {3001, 0, 777}) {
    const uint64_t end = at == 0 ? 777 : at == 777 ? 3001 : 4000;
    daemon_.plan->pieces.push_back(
        {.target = 1, .source_offset = 448 + at, .target_offset = at, .bytes = end - at});
  }
  daemon_.plan->pieces.push_back({.target = 0, .source_offset = 0, .bytes = 400});
  ASSERT_TRUE(RestoreBegin().ok());
  EXPECT_EQ(RestoreRead(tensors_), absl::OkStatus());
  EXPECT_EQ(memory_, before);
}

TEST_F(RestorerTest, ACorruptBlockIsNamedAndReported) {
  CaptureAndSeal();
  FlipBit(1000);
  ASSERT_TRUE(RestoreBegin().ok());
  const absl::Status status = RestoreRead(tensors_);
  ExpectBad(status, "slot0: block 3 needs CRC");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("start the job again: what does not verify is put aside"));
}

TEST_F(RestorerTest, ACorruptBlockThatNobodyWantsIsNotTouched) {
  CaptureAndSeal();
  FlipBit(4400);
  ASSERT_TRUE(RestoreBegin().ok());
  daemon_.plan->pieces.pop_back();
  tensors_.pop_back();
  EXPECT_EQ(RestoreRead(tensors_), absl::OkStatus());
}

TEST_F(RestorerTest, ACorruptCrcTableIsNamedAndReported) {
  CaptureAndSeal();
  daemon_.slot(0).view->crc_table()[8] ^= std::byte{1};
  daemon_.decision->extras.slot = WireSlot{};
  ASSERT_TRUE(RestoreBegin().ok());
  ExpectBad(RestoreRead(tensors_), "CRC table");
}

TEST_F(RestorerTest, CorruptExtrasAreNamedAndReported) {
  CaptureAndSeal();
  daemon_.slot(0).view->extras()[2] ^= std::byte{1};
  ExpectBad(RestoreBegin().status(), "6 bytes of extras");
}

TEST_F(RestorerTest, ACorruptHeaderIsNamedAndReported) {
  CaptureAndSeal();
  daemon_.decision->extras.slot = WireSlot{};
  ASSERT_TRUE(RestoreBegin().ok());
  daemon_.slot(0).view->header().seal.data_bytes += 1;
  ExpectBad(RestoreRead(tensors_), "seal is corrupt");
}

TEST_F(RestorerTest, AReusedSlotIsNotReadAndNotBlamed) {
  CaptureAndSeal();
  ASSERT_TRUE(RestoreBegin().ok());
  daemon_.Grant(0, 2);
  const absl::Status status = RestoreRead(tensors_);
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("found generation 2 capturing"));
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<RestoreDone>() == 1; }));
  EXPECT_EQ(daemon_.Got<RestoreDone>().at(0).bad_generation, Generation{0});
}

// Reuses the slot in the middle of the copying.
class ReusingCopier final : public HostMemoryCopier {
 public:
  explicit ReusingCopier(ScriptedDaemon& daemon) : daemon_(daemon) {}
  absl::Status CopyNow(std::span<const CopyOp>) override { return absl::OkStatus(); }
  void CopyBucket(std::vector<CopyOp>, absl::AnyInvocable<void(absl::Status)>) override {}
  absl::Status Restore(std::span<const CopyOp>) override {
    daemon_.Grant(0, 2);
    return absl::OkStatus();
  }

 private:
  ScriptedDaemon& daemon_;
};

TEST_F(RestorerTest, ASlotThatIsReusedMeanwhileIsNoticed) {
  CaptureAndSeal();
  for (BoundTensor& tensor : tensors_) tensor.cuda_device = 0;  // whose bytes the copier is given
  ReusingCopier copier(daemon_);
  WarmSlots slots(segments_);
  const Restorer restorer(slots, copier, 1);
  const RestoreReport report = restorer.Read(*daemon_.plan, tensors_);
  EXPECT_TRUE(absl::IsAborted(report.status)) << report.status;
  EXPECT_EQ(report.bad_generation, Generation{0});
}

TEST_F(RestorerTest, APlanThatIsWrongInItselfIsRefused) {
  CaptureAndSeal();
  WarmSlots slots(segments_);
  const Restorer restorer(slots, copier_, 1);
  const auto status_of = [&](auto change) {
    RestorePlan plan = *daemon_.plan;
    change(plan.pieces);
    return restorer.Read(plan, tensors_).status;
  };
  using Pieces = std::vector<PlanPiece>;
  for (const auto& [name, change] : std::vector<std::pair<std::string, void (*)(Pieces&)>>{
           {"no such source", [](Pieces& pieces) { pieces[0].source = 1; }},
           {"no such tensor", [](Pieces& pieces) { pieces[0].target = 2; }},
           {"missing", [](Pieces& pieces) { pieces.pop_back(); }},
           {"too short", [](Pieces& pieces) { pieces[1].bytes = 3999; }},
           {"too long", [](Pieces& pieces) { pieces[1].bytes = 4001; }},
           {"twice", [](Pieces& pieces) { pieces.push_back(pieces[0]); }},
           {"a hole", [](Pieces& pieces) { pieces[0].target_offset = 4; }},
           {"huge", [](Pieces& pieces) { pieces[1].bytes = UINT64_MAX; }},
           {"no rows", [](Pieces& pieces) { pieces[1].rows = 0; }},
           {"a row too many",
            [](Pieces& pieces) {
              pieces[1] = {.target = 1,
                           .source_offset = 448,
                           .bytes = 400,
                           .rows = 11,
                           .source_pitch = 400,
                           .target_pitch = 400};
            }},
           {"rows beyond the slab",
            [](Pieces& pieces) {
              pieces[1] = {.target = 1,
                           .source_offset = 448,
                           .bytes = 400,
                           .rows = 10,
                           .source_pitch = 401,
                           .target_pitch = 400};
            }},
           {"beyond the slab", [](Pieces& pieces) { pieces[0].source_offset = 5000; }},
           {"overflow", [](Pieces& pieces) { pieces[0].source_offset = UINT64_MAX; }}}) {
    EXPECT_TRUE(absl::IsInternal(status_of(change))) << name << ": " << status_of(change);
  }
  EXPECT_TRUE(status_of([](Pieces&) {}).ok());
}

TEST_F(RestorerTest, ASegmentThatIsGoneIsNamed) {
  CaptureAndSeal();
  daemon_.plan->sources[0].slot.segment = "/unreft.job.0.gone";
  ASSERT_TRUE(RestoreBegin().ok());
  const absl::Status status = RestoreRead(tensors_);
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("/unreft.job.0.gone"));
}

TEST_F(RestorerTest, ThePlansStatusIsPassedOn) {
  CaptureAndSeal();
  ASSERT_TRUE(RestoreBegin().ok());
  daemon_.plan_status = absl::NotFoundError("tensor z is not stored");
  EXPECT_EQ(RestoreRead(tensors_), absl::NotFoundError("tensor z is not stored"));
}

}  // namespace
}  // namespace unreft::snapshot
