#include "smp/job/node_record.h"

#include <gmock/gmock.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/wire.h"
#include "tests/unit/smp/earlier_keys.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {
namespace {

constexpr Version kFirst{Timeline{1}, Step{7}};
constexpr Version kSecond{Timeline{1}, Step{8}};

class NodeRecordTest : public SmpFixture {
 protected:
  // Overwrites the byte `offset` of body 0 or 1.
  void Spoil(int body, size_t offset) {
    auto segment = *segments_.Open(kNodeSegment, Access::kReadWrite);
    segment->bytes()[static_cast<size_t>(body) * sizeof(NodeBody) + offset] ^= std::byte{0xff};
  }
  void Write(std::vector<RecordChange> batch) {
    InTurn([&] { records_->Write(std::move(batch), Durability::kSynced, [](absl::Status) {}); });
    Settle();
  }
};

TEST_F(NodeRecordTest, ARestartedProcessKnowsEverythingAndIsANewSession) {
  auto record = NewRecord();
  const RandomId incarnation = record->incarnation();
  InTurn([&] {
    EXPECT_EQ(OpenTimeline(*record, Version{}), Timeline{1});
    record->SetCaptureBegan();
    record->SetCommitted(kFirst, 4);
    record->SetCapturesAll();
    record->SetView(3);
  });
  record.reset();
  record = NewRecord();
  EXPECT_EQ(record->view(), 3u);
  EXPECT_TRUE(record->captures_all());
  EXPECT_EQ(record->incarnation(), incarnation);
  EXPECT_EQ(record->session(), ProcessNumber{2});
  EXPECT_EQ(record->chain().newest(), Timeline{1});
  EXPECT_TRUE(record->capture_began());
  EXPECT_EQ(record->committed(), kFirst);
  EXPECT_EQ(record->committed_world(), 4u);
}

TEST_F(NodeRecordTest, MemoryThatAnotherDaemonServesIsRefusedAndLeftAlone) {
  auto record = NewRecord();
  EXPECT_EQ(OpenRecord().status().code(), absl::StatusCode::kFailedPrecondition);
  record.reset();
  EXPECT_EQ(NewRecord()->session(), ProcessNumber{2}) << "the refused one is no session";
}

TEST_F(NodeRecordTest, TheNumberOfTheViewOnlyGrows) {
  auto record = NewRecord();
  const auto set = [&](uint64_t number) {
    InTurn([&] { record->SetView(number); });
    return record->view();
  };
  EXPECT_EQ(record->view(), 0u);
  EXPECT_EQ(set(3), 3u);
  EXPECT_EQ(set(2), 3u);
  EXPECT_EQ(set(uint64_t{1} << 40), UINT32_MAX) << "the most that fits in the segment";
}

TEST_F(NodeRecordTest, ATornWriteLosesAtMostTheLastOne) {
  for (int body : {0, 1}) {
    for (size_t offset : {size_t{0}, sizeof(NodeBody) / 2, sizeof(NodeBody) - 1}) {
      auto record = NewRecord();
      InTurn([&] {
        record->SetCommitted(kFirst, 4);
        record->SetCommitted(kSecond, 4);
      });
      const RandomId incarnation = record->incarnation();
      record.reset();
      Spoil(body, offset);
      record = NewRecord();
      EXPECT_EQ(record->incarnation(), incarnation) << "body " << body << " offset " << offset;
      const bool known = record->committed() == kFirst || record->committed() == kSecond;
      EXPECT_TRUE(known) << "body " << body << " offset " << offset;
    }
  }
}

TEST_F(NodeRecordTest, WithoutAValidBodyItIsAnotherIncarnation) {
  auto record = NewRecord();
  const RandomId incarnation = record->incarnation();
  InTurn([&] { record->SetCommitted(kFirst, 4); });
  record.reset();
  EXPECT_FALSE(NewRecord()->is_new());
  Spoil(0, 100);
  Spoil(1, 100);
  record = NewRecord();
  EXPECT_NE(record->incarnation(), incarnation);
  EXPECT_TRUE(record->is_new());
  EXPECT_EQ(record->committed_world(), 0u);
  EXPECT_TRUE(record->capture_began()) << "unknown, so the safe answer";
}

// They kept no copy of the job's records.
TEST_F(NodeRecordTest, WhatAnEarlierReleaseHasWrittenIsReadWhereThereIsNoMemory) {
  Write({{kEarlierCommitKey, EncodeWire(EarlierCommit{1, kFirst, 4})},
         {kEarlierDecisionKey, EncodeWire(EarlierDecision{1, Timeline{1}, Version{}})}});
  auto record = NewRecord();
  EXPECT_EQ(record->committed(), kFirst);
  EXPECT_EQ(record->committed_world(), 4u);
  EXPECT_EQ(record->chain().newest(), Timeline{1});
  InTurn([&] { record->SetCommitted(kSecond, 4); });
  record.reset();
  EXPECT_EQ(NewRecord()->committed(), kSecond) << "memory knows better";
}

TEST_F(NodeRecordTest, WhatAnEarlierReleaseHasWrittenIsOverOnceACopyIsKept) {
  Write({{kEarlierCommitKey, EncodeWire(EarlierCommit{1, kFirst, 4})}, {"kept", "a copy"}});
  EXPECT_EQ(NewRecord()->committed_world(), 0u);
}

TEST_F(NodeRecordTest, RecordsThatCannotBeReadAreNotMissedWhileTheMemoryIsThere) {
  auto record = NewRecord();
  const RandomId incarnation = record->incarnation();
  InTurn([&] {
    OpenTimeline(*record, Version{});
    record->SetCommitted(kFirst, 4);
  });
  record.reset();
  disk_.set_corrupt(true);
  record = NewRecord();
  EXPECT_EQ(record->incarnation(), incarnation);
  EXPECT_EQ(record->session(), ProcessNumber{2});
  EXPECT_EQ(record->committed(), kFirst);
  EXPECT_EQ(record->chain().newest(), Timeline{1});
}

// That nothing was committed would be a guess, and a job that begins again its result.
TEST_F(NodeRecordTest, RecordsThatCannotBeReadAreAnErrorWithoutMemoryOfThisBoot) {
  (void)NewRecord();
  Spoil(0, 100);
  Spoil(1, 100);
  disk_.set_corrupt(true);
  const auto refused = [&] {
    const absl::Status status = OpenRecord().status();
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("what was committed"));
    return absl::IsDataLoss(status);
  };
  EXPECT_TRUE(refused());
  ASSERT_TRUE(segments_.Remove(kNodeSegment).ok());
  EXPECT_TRUE(refused());
  EXPECT_TRUE(refused()) << "nothing was made that the next process would take for an answer";
  disk_.set_corrupt(false);
  EXPECT_TRUE(NewRecord()->is_new());
}

TEST_F(NodeRecordTest, ADeclaredFreshStartForgetsTheCommit) {
  auto record = NewRecord();
  InTurn([&] {
    OpenTimeline(*record, Version{});
    record->SetCommitted(kFirst, 4);
    record->SetCommitted(Version{}, 0);
    OpenTimeline(*record, Version{});
  });
  EXPECT_EQ(record->committed_world(), 0u);
  EXPECT_EQ(record->chain().newest(), Timeline{2});
  EXPECT_FALSE(record->chain().IsLive(kFirst));
}

}  // namespace
}  // namespace unreft::smp
