// Restoring bytes of other nodes: blocks that the daemon stages.

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/unit/snapshot/restore_fixture.h"
#include "tests/unit/snapshot/scripted_staging.h"

namespace unreft::snapshot {
namespace {

using testing::HasSubstr;

class StagedRestoreTest : public RestoreFixture {
 protected:
  static constexpr uint64_t kPlaces = 2;

  // Tensor b is 4000 bytes, of which the first half lies in slot 0, as does a.
  StagedRestoreTest() {
    AddTensor("a", 100);
    AddTensor("b", 1000);
    daemon_.Grant(0, 1);
    const std::span<std::byte> slab = daemon_.slot(0).view->data();
    std::copy(memory_[0].begin(), memory_[0].end(), slab.begin());
    std::copy_n(memory_[1].begin(), 2000, slab.begin() + 448);
    daemon_.Seal({.slot = SlotId{0},
                  .generation = Generation{1},
                  .version = {Timeline{7}, Step{5}},
                  .data_bytes = 2448});
    before_ = memory_;
  }

  void Begin() {
    StartClient();
    ASSERT_TRUE(Connect().ok());
    ASSERT_TRUE(RestoreBegin().ok());
    Wipe();
  }
  void Wipe() {
    for (auto& bytes : memory_) std::ranges::fill(bytes, std::byte{0});
  }
  void PlanStaged() {
    staging_.Clear();
    staging_.Add(0, before_[0], 0, 400);
    staging_.Add(1, before_[1], 0, 4000);
    daemon_.plan = RestorePlan{};
    staging_.Announce(*daemon_.plan);
  }
  void PlanMixed() {
    staging_.Clear();
    staging_.Add(1, before_[1], 2000, 4000);
    daemon_.plan = RestorePlan{.sources = {{.slot = daemon_.Where(0)}},
                               .pieces = {{.target = 0, .bytes = 400},
                                          {.target = 1, .source_offset = 448, .bytes = 2000}}};
    staging_.Announce(*daemon_.plan);
  }
  void StartRead() {
    read_.reset();
    InTurn([&] {
      actor_->RestoreRead(tensors_, [&](absl::Status status) { read_ = std::move(status); });
    });
  }
  // Begins a mixed read and returns as soon as so many blocks are in place; no more are staged.
  void ReadUntilBlock(size_t blocks) {
    PlanMixed();
    staging_.pause_after = blocks;
    Begin();
    StartRead();
    ASSERT_TRUE(RunUntil([&] { return daemon_.Count<StagedDone>() == blocks; }));
  }
  absl::Status AwaitRead() {
    UNREFT_CHECK(RunUntil([&] { return read_.has_value(); }), "the read ends");
    return *read_;
  }
  void ExpectRestores() {
    EXPECT_EQ(RestoreRead(tensors_), absl::OkStatus());
    EXPECT_EQ(memory_, before_);
    RunFor(std::chrono::milliseconds(10));
    EXPECT_EQ(daemon_.Count<RestoreDone>(), 0u);
  }
  size_t BadBlocks() const {
    const auto answers = daemon_.Got<StagedDone>();
    return static_cast<size_t>(std::ranges::count_if(
        answers, [](const StagedDone& d) { return absl::IsDataLoss(d.status.ToStatus()); }));
  }

  ScriptedStaging staging_{daemon_, segments_, kPlaces};
  std::deque<std::vector<std::byte>> before_;
  std::optional<absl::Status> read_;
};

TEST_F(StagedRestoreTest, SeveralBlocksComeThroughASmallRing) {
  PlanStaged();
  Begin();
  ExpectRestores();
  const auto answers = daemon_.Got<StagedDone>();
  ASSERT_EQ(answers.size(), staging_.blocks());
  ASSERT_GT(answers.size(), 4 * kPlaces);
  for (const StagedDone& done : answers) {
    EXPECT_EQ(done.request, daemon_.Got<PlanRequest>().at(0).request);
    EXPECT_TRUE(done.status.ToStatus().ok());
  }
}

TEST_F(StagedRestoreTest, LocalAndStagedPiecesMakeOneTensor) {
  PlanMixed();
  Begin();
  ExpectRestores();
  // And so does another read of the same restore.
  Wipe();
  ExpectRestores();
  EXPECT_EQ(daemon_.Count<PlanRequest>(), 2u);
}

TEST_F(StagedRestoreTest, TheEndMayComeWithoutABlock) {
  PlanMixed();
  staging_.last_alone = true;
  staging_.bad[6] = 1;
  Begin();
  ExpectRestores();
  EXPECT_EQ(BadBlocks(), 1u);
}

// Rows of a matrix between rows of others, the staged half between the local one's.
TEST_F(StagedRestoreTest, RowsThatLieApartComeToTheirPlaces) {
  constexpr uint64_t kRows = 50;
  constexpr uint64_t kRow = 80;  // bytes; tensor b has 50 of them
  const std::span<std::byte> slab = daemon_.slot(0).view->data();
  std::vector<std::byte> staged(kRows * 100, std::byte{0x77});
  for (uint64_t row = 0; row < kRows; ++row) {
    const auto begin = memory_[1].begin() + static_cast<ptrdiff_t>(row * kRow);
    std::copy_n(begin, 40, slab.begin() + static_cast<ptrdiff_t>(448 + row * 40));
    std::copy_n(begin + 40, 40, staged.begin() + static_cast<ptrdiff_t>(row * 100 + 10));
  }
  daemon_.Seal({.slot = SlotId{0},
                .generation = Generation{1},
                .version = {Timeline{7}, Step{5}},
                .data_bytes = 2448});
  staging_.Clear();
  staging_.Add(1, staged, 0, staged.size());
  daemon_.plan = RestorePlan{.sources = {{.slot = daemon_.Where(0)}},
                             .pieces = {{.target = 0, .bytes = 400},
                                        {.target = 1,
                                         .source_offset = 448,
                                         .bytes = 40,
                                         .rows = kRows,
                                         .source_pitch = 40,
                                         .target_pitch = kRow}}};
  staging_.Announce(*daemon_.plan);
  daemon_.plan->staged_bytes = kRows * 40;
  daemon_.plan->pieces.back() = {.source = 1,
                                 .target = 1,
                                 .source_offset = 10,
                                 .target_offset = 40,
                                 .bytes = 40,
                                 .rows = kRows,
                                 .source_pitch = 100,
                                 .target_pitch = kRow};
  Begin();
  ExpectRestores();
}

TEST_F(StagedRestoreTest, AWrongBlockComesAgain) {
  PlanMixed();
  staging_.bad = {{0, 1}, {3, 2}, {6, 1}};  // of 7
  Begin();
  ExpectRestores();
  EXPECT_EQ(BadBlocks(), 4u);
  EXPECT_EQ(daemon_.Count<StagedDone>(), 11u);
}

TEST_F(StagedRestoreTest, ABlockThatStaysWrongFailsTheRestore) {
  PlanMixed();
  staging_.bad[3] = 1000;
  options_.staged_bad_blocks_max = 5;
  Begin();
  ExpectFailed(RestoreRead(tensors_), absl::StatusCode::kDataLoss, "needs CRC");
  EXPECT_EQ(BadBlocks(), 5u);
}

TEST_F(StagedRestoreTest, NothingIsWrittenOutside) {
  Begin();
  struct Lie {
    std::string what;
    std::function<void(Staged&)> change;
  };
  const std::vector<Lie> lies = {
      {"staged block [301, +300) of a staging of 600", [](Staged& s) { s.offset = 301; }},
      {"of a staging of 600", [](Staged& s) { s.offset = UINT64_MAX; }},
      {"of a staging of 600", [](Staged& s) { s.bytes = UINT64_MAX; }},
      {"needs 300 bytes", [](Staged& s) { s.bytes = 299; }},
      {"needs 300 bytes", [](Staged& s) { s.bytes = 600; }},
      {"block 0 of source 0: it was copied before, or nothing of it is wanted",
       [](Staged& s) { s.source = 0; }},
      {"block 0 of source 2", [](Staged& s) { s.source = 2; }},
      {"block 7 of source 1", [](Staged& s) { s.block = 7; }},
      {"block 18446744073709551615 of", [](Staged& s) { s.block = UINT64_MAX; }},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.what);
    PlanMixed();
    Wipe();
    bool first = true;
    staging_.lie = [&](Staged& staged) {
      if (std::exchange(first, false)) lie.change(staged);
    };
    ExpectFailed(RestoreRead(tensors_), absl::StatusCode::kInvalidArgument, lie.what);
    EXPECT_TRUE(std::all_of(memory_[1].begin() + 2000, memory_[1].end(),
                            [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST_F(StagedRestoreTest, ABlockThatIsStagedTwiceIsRefused) {
  PlanMixed();
  staging_.twice = 3;
  Begin();
  ExpectFailed(RestoreRead(tensors_), absl::StatusCode::kInvalidArgument,
               "block 3 of source 1: it was copied before");
}

TEST_F(StagedRestoreTest, BytesThatDoNotComeAreCounted) {
  PlanMixed();
  staging_.dropped = {2};
  Begin();
  ExpectFailed(RestoreRead(tensors_), absl::StatusCode::kDataLoss,
               "2000 bytes of other nodes were needed, 1700 came, and no more will");
}

TEST_F(StagedRestoreTest, APlanWhoseNumbersDoNotAddUpIsRefused) {
  PlanMixed();
  daemon_.plan->staged_bytes -= 1;
  Begin();
  ExpectFailed(RestoreRead(tensors_), absl::StatusCode::kInternal,
               "its pieces have 2000 bytes of other nodes, and 1999 are to come staged");
}

TEST_F(StagedRestoreTest, APageThatDoesNotComeIsNoticed) {
  PlanMixed();
  Begin();
  daemon_.on_frame = [&](const Frame& frame) {
    if (frame.type != static_cast<uint16_t>(FrameType::kPlanRequest)) return;
    daemon_.Send(Plan{.request = FromFrame<PlanRequest>(frame)->request,
                      .sources = {{.slot = daemon_.Where(0)}},
                      .paged_pieces = 3});
  };
  daemon_.plan.reset();
  const absl::Status status = RestoreRead(tensors_);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("3 pieces were announced, 0 came"));
}

// What it would say of the bytes is not what this library reads.
TEST_F(StagedRestoreTest, ADaemonOfAnEarlierReleaseIsNamedAsSuch) {
  PlanMixed();
  daemon_.knows = FrameType::kObstacle;
  Begin();
  const absl::Status status = RestoreRead(tensors_);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the daemon of this node is of an earlier release than this library"));
}

TEST_F(StagedRestoreTest, TheDaemonsErrorEndsTheRestore) {
  PlanMixed();
  staging_.lie = [&](Staged& staged) {
    if (staging_.staged() == 4) staged.status = absl::UnavailableError("node 3 is gone");
  };
  Begin();
  const absl::Status status = RestoreRead(tensors_);
  EXPECT_EQ(status, absl::UnavailableError("node 3 is gone"));
  ExpectFailed(status, absl::StatusCode::kUnavailable, "node 3");
}

TEST_F(StagedRestoreTest, ARestartedDaemonStagesAnew) {
  ReadUntilBlock(4);
  daemon_.Die();
  ASSERT_TRUE(RunUntil([&] { return !status().connected; }));
  staging_.MakeSegment();
  staging_.pause_after = SIZE_MAX;
  daemon_.Listen();
  EXPECT_EQ(AwaitRead(), absl::OkStatus());
  EXPECT_EQ(memory_, before_);
  const auto requests = daemon_.Got<PlanRequest>();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].request, requests[1].request);
  RunFor(std::chrono::milliseconds(10));
  EXPECT_EQ(daemon_.Count<StagedDone>(), 4 + staging_.blocks());
}

TEST_F(StagedRestoreTest, ARestartedDaemonMayDivideTheBytesOtherwise) {
  ReadUntilBlock(4);
  daemon_.Die();
  PlanStaged();
  staging_.pause_after = SIZE_MAX;
  daemon_.Listen();
  EXPECT_EQ(AwaitRead(), absl::OkStatus());
  EXPECT_EQ(memory_, before_);
  // Repeated, and then asked anew, because the answer was another.
  const auto requests = daemon_.Got<PlanRequest>();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].request, requests[1].request);
  EXPECT_NE(requests[1].request, requests[2].request);
}

TEST_F(StagedRestoreTest, ARestartedDaemonMayHaveNothingMore) {
  ReadUntilBlock(4);
  daemon_.Die();
  daemon_.plan_status = absl::NotFoundError("too few nodes are left");
  daemon_.Listen();
  ExpectFailed(AwaitRead(), absl::StatusCode::kNotFound, "too few nodes are left");
}

TEST_F(StagedRestoreTest, TheDeadlineHoldsAndNothingIsWrittenAfterIt) {
  PlanMixed();
  staging_.pause_after = 2;
  Begin();
  const Time start = trainer_->Now();
  const absl::Status status = RestoreRead(tensors_);
  EXPECT_GE(trainer_->Now() - start, options_.restore_timeout);
  EXPECT_LT(trainer_->Now() - start, options_.restore_timeout + std::chrono::milliseconds(100));
  ExpectFailed(status, absl::StatusCode::kDeadlineExceeded,
               "not all staged bytes of the restore came within 20000 ms");
  const auto then = memory_;
  bool resumed = false;
  node_->Post([&] {
    staging_.Resume();
    resumed = true;
  });
  ASSERT_TRUE(RunUntil([&] { return resumed; }));
  RunFor(std::chrono::seconds(1));
  EXPECT_EQ(memory_, then);
  EXPECT_EQ(daemon_.Count<StagedDone>(), 2u);
}

TEST_F(StagedRestoreTest, AnEndOrAnotherReadEndsTheOneUnderWay) {
  ReadUntilBlock(2);
  staging_.pause_after = SIZE_MAX;
  Wipe();
  EXPECT_EQ(RestoreRead(tensors_), absl::OkStatus());
  EXPECT_TRUE(absl::IsAborted(AwaitRead()));
  EXPECT_EQ(memory_, before_);
  EXPECT_EQ(daemon_.Count<RestoreDone>(), 0u);

  staging_.pause_after = 2;
  StartRead();
  RunFor(std::chrono::milliseconds(100));
  InTurn([&] { actor_->RestoreEnd(); });
  EXPECT_TRUE(absl::IsCancelled(AwaitRead()));
}

TEST_F(StagedRestoreTest, ABadLocalBlockEndsTheStagingToo) {
  PlanMixed();
  Begin();
  const auto& slot = daemon_.slot(0);
  host_.FlipBit(slot.name, slot.view->geometry().data_offset + 1000, 3);
  const absl::Status status = RestoreRead(tensors_);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("slot0: block 3 needs CRC"));
  RunFor(std::chrono::milliseconds(10));
  ASSERT_EQ(daemon_.Count<RestoreDone>(), 1u);
  EXPECT_EQ(daemon_.Got<RestoreDone>().at(0).bad_generation, Generation{1});
  EXPECT_LE(daemon_.Count<StagedDone>(), kPlaces);
}

// The targets are the caller's again, and what was staged may be on its way to their device.
TEST_F(StagedRestoreTest, AFailedReadWaitsForWhatWasStagedMeanwhile) {
  PlanMixed();
  Begin();
  const auto plan = Call<absl::StatusOr<RestorePlan>>(
      [&](auto answer) { actor_->RequestPlan(tensors_, std::move(answer)); });
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto& slot = daemon_.slot(0);
  host_.FlipBit(slot.name, slot.view->geometry().data_offset + 1000, 3);
  const RestoreReport report = actor_->restorer().Read(*plan, tensors_);
  ASSERT_TRUE(absl::IsDataLoss(report.status));
  ASSERT_TRUE(RunUntil([&] { return copier_.is_restoring; }));
  const auto more = Call<absl::StatusOr<std::optional<RestorePlan>>>(
      [&](auto answer) { actor_->FinishRead(report, std::move(answer)); });
  EXPECT_THAT(std::string(more.status().message()),
              HasSubstr(std::string(report.status.message())));
  EXPECT_FALSE(copier_.is_restoring);
}

TEST_F(StagedRestoreTest, AStagingSegmentThatIsNotThereIsNamed) {
  PlanMixed();
  daemon_.plan->staging_bytes += 1;
  Begin();
  ExpectFailed(RestoreRead(tensors_), absl::StatusCode::kDataLoss,
               "needs 601 bytes of it, found 600");
  daemon_.plan->staging_segment = "/unreft.job.0.gone";
  ExpectFailed(RestoreRead(tensors_), absl::StatusCode::kNotFound, "/unreft.job.0.gone");
}

TEST_F(StagedRestoreTest, TheStagingSegmentIsLetGoAfterTheRead) {
  PlanMixed();
  Begin();
  ExpectRestores();
  const uint64_t before = host_.bytes_used();
  staging_.RemoveSegment();
  EXPECT_LT(host_.bytes_used(), before);
}

}  // namespace
}  // namespace unreft::snapshot
