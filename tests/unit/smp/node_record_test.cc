#include "smp/job/node_record.h"

#include <gmock/gmock.h>

#include <cstring>

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
  void Reboot() {
    ASSERT_TRUE(segments_.Remove(kNodeSegment).ok());
    boot_id_ = random_.NextId();
    records_.reset();
    disk_.CrashHost();
    records_ = *FakeRecordStore::Open(disk_, *executor_);
  }
};

TEST_F(NodeRecordTest, ARestartedProcessKnowsEverythingAndIsANewSession) {
  auto record = NewRecord();
  const RandomId incarnation = record->incarnation();
  InTurn([&] {
    EXPECT_EQ(record->OpenTimeline(Version{}), Timeline{1});
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

TEST_F(NodeRecordTest, WithoutAValidBodyItIsAnotherIncarnationThatKnowsTheRecords) {
  auto record = NewRecord();
  const RandomId incarnation = record->incarnation();
  InTurn([&] { record->SetCommitted(kFirst, 4); });
  Settle();
  record.reset();
  Spoil(0, 100);
  Spoil(1, 100);
  record = NewRecord();
  EXPECT_NE(record->incarnation(), incarnation);
  EXPECT_EQ(record->committed(), kFirst);
  EXPECT_TRUE(record->capture_began()) << "unknown, so the safe answer";
}

TEST_F(NodeRecordTest, ARebootKeepsWhatTheDiskHas) {
  auto record = NewRecord();
  InTurn([&] {
    record->OpenTimeline(Version{});
    record->SetCommitted(kFirst, 4);
  });
  Settle();
  record.reset();
  Reboot();
  record = NewRecord();
  EXPECT_EQ(record->committed(), kFirst);
  EXPECT_EQ(record->chain().newest(), Timeline{1});
}

TEST_F(NodeRecordTest, AFailingDiskIsCountedAndStopsNothing) {
  auto record = NewRecord();
  disk_.FailWrites(10, absl::ResourceExhaustedError("full"));
  InTurn([&] {
    record->OpenTimeline(Version{});
    record->SetCommitted(kFirst, 4);
  });
  Settle();
  EXPECT_EQ(record->failed_writes(), 2u);
  EXPECT_EQ(record->committed(), kFirst);
}

TEST_F(NodeRecordTest, AFailingDiskIsToldWhenItBeginsAndWhenItIsOver) {
  auto record = NewRecord();
  disk_.FailWrites(3, absl::ResourceExhaustedError("full"));
  for (uint64_t step = 1; step <= 5; ++step) {
    InTurn([&] { record->SetCommitted({Timeline{1}, Step{step}}, 4); });
    Settle();
  }
  EXPECT_EQ(record->failed_writes(), 3u);
  EXPECT_EQ(sink_.Count("record of the commit: full"), 1u);
  EXPECT_EQ(sink_.Count("record of the commit: written"), 1u);
}

TEST_F(NodeRecordTest, WhatTheDiskLacksIsAProblemUntilItHasAllOfIt) {
  auto record = NewRecord();
  EXPECT_EQ(record->problem(), "");
  disk_.FailWrites(1, absl::ResourceExhaustedError("full"));
  InTurn([&] { record->OpenTimeline(Version{}); });
  Settle();
  EXPECT_THAT(record->problem(), testing::HasSubstr("full; protection goes on"));
  InTurn([&] { record->SetCommitted(kFirst, 4); });
  Settle();
  EXPECT_NE(record->problem(), "") << "the decision is not written";
  InTurn([&] { record->WriteAgain(); });
  Settle();
  EXPECT_EQ(record->problem(), "");
}

// A decision that a full disk refused was never written, and a reboot went back to the one before.
TEST_F(NodeRecordTest, WhatAFullDiskRefusedIsWrittenWhenItIsAskedForAgain) {
  auto record = NewRecord();
  int failures = 0;
  InTurn([&] { record->set_on_failure([&] { ++failures; }); });
  disk_.FailWrites(1, absl::ResourceExhaustedError("full"));
  InTurn([&] { record->OpenTimeline(Version{}); });
  Settle();
  EXPECT_EQ(failures, 1);
  // What goes well meanwhile does not stand for it.
  InTurn([&] { record->SetCommitted(kFirst, 4); });
  Settle();
  InTurn([&] { record->WriteAgain(); });
  Settle();
  record.reset();
  Reboot();
  record = NewRecord();
  EXPECT_EQ(record->committed(), kFirst);
  EXPECT_EQ(record->chain().newest(), Timeline{1});
}

TEST_F(NodeRecordTest, RecordsThatCannotBeReadAreNotMissedWhileTheMemoryIsThere) {
  auto record = NewRecord();
  const RandomId incarnation = record->incarnation();
  InTurn([&] {
    record->OpenTimeline(Version{});
    record->SetCommitted(kFirst, 4);
  });
  record.reset();
  disk_.set_corrupt(true);
  record = NewRecord();
  EXPECT_NE(record->problem(), "");
  int failures = 0;
  InTurn([&] { record->set_on_failure([&] { ++failures; }); });
  EXPECT_EQ(failures, 1);
  EXPECT_EQ(record->incarnation(), incarnation);
  EXPECT_EQ(record->session(), ProcessNumber{2});
  EXPECT_EQ(record->committed(), kFirst);
  EXPECT_EQ(record->chain().newest(), Timeline{1});
}

// That nothing was committed would be a guess, and a job that begins again its result.
TEST_F(NodeRecordTest, RecordsThatCannotBeReadAreAnErrorWithoutMemoryOfThisBoot) {
  auto record = NewRecord();
  InTurn([&] { record->SetCommitted(kFirst, 4); });
  Settle();
  record.reset();
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
  EXPECT_EQ(NewRecord()->committed(), kFirst);
}

TEST_F(NodeRecordTest, ADeclaredFreshStartForgetsTheCommit) {
  auto record = NewRecord();
  InTurn([&] {
    record->OpenTimeline(Version{});
    record->SetCommitted(kFirst, 4);
    record->DeclareFreshStart();
  });
  EXPECT_EQ(record->committed_world(), 0u);
  EXPECT_EQ(record->chain().newest(), Timeline{2});
  EXPECT_FALSE(record->chain().IsLive(kFirst));
}

}  // namespace
}  // namespace unreft::smp
