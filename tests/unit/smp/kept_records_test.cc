// What a node keeps of the job's records, and what of them outlives it.
#include "smp/job/kept_records.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>

#include "tests/unit/smp/job_records_testing.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {
namespace {

class KeptRecordsTest : public SmpFixture {
 protected:
  KeptRecordsTest() { job_.store_id = std::string(16, 'a'); }

  template <typename Message>
  static void Put(meta::Shared<Message>& record, Message value, uint64_t revision) {
    record.bytes = value.SerializeAsString();
    record.value = std::move(value);
    record.modified = meta::Revision{revision};
  }
  void Commit(uint64_t step, uint64_t revision) {
    Put(job_.commit, Committed(At(1, step)), revision);
  }
  // As a leader does that has made sure that nothing newer is kept.
  void Seed(uint64_t epoch, uint64_t revision) {
    SeedRecord seed;
    seed.set_store_id(job_.store_id);
    seed.set_epoch(epoch);
    Put(job_.seed, seed, revision);
    ViewRecord view;
    view.set_number(epoch);
    Put(job_.view, view, revision);
  }
  // Of timeline 1, in a store of that epoch.
  void KeepACommitAndLoseTheStore(uint64_t epoch) {
    Seed(epoch, 90);
    TimelineRecord timeline = Chain(1, 1);
    timeline.set_first_timeline(1);
    Put(job_.timeline, timeline, 90);
    Commit(5, 91);
    ASSERT_TRUE(Keep());
    LoseStore();
  }
  static TimelineRecord TimelineOfAnotherJob() {
    TimelineRecord record;
    record.add_chain()->set_timeline(77);
    record.set_first_timeline(77);
    return record;
  }
  void LoseStore() {
    job_ = {};
    job_.store_id = std::string(16, 'b');
  }
  bool Keep() {
    bool kept = false;
    InTurn([&] {
      kept = kept_->Keep(job_);
      kept_->WriteToDisk();
    });
    return kept;
  }
  // Another process of the daemon.
  void OpenAgain() {
    Settle();
    kept_.reset();
    kept_ = OpenKept();
  }
  void WipeDisk() {
    Settle();
    kept_.reset();
    records_.reset();
    disk_.Wipe();
    records_ = *FakeRecordStore::Open(disk_, *executor_);
  }
  // As a copy.
  void WriteToDisk(const std::string& bytes) {
    InTurn([&] {
      records_->Write({{std::string(kKeptKey), bytes}}, Durability::kSynced, [](auto) {});
    });
    Settle();
  }
  // As a host without memory finds it.
  uint64_t StepOnDisk() {
    const std::unique_ptr<KeptRecords> found = OpenKept("/other");
    UNREFT_CHECK(segments_.Remove("/other").ok());
    return found->records().commit.value.step();
  }
  uint64_t step() const { return kept_->records().commit.value.step(); }
  // The bytes of the segment, as the process has them.
  std::span<std::byte> Bytes() {
    auto segment = segments_.Open(kKeptSegment, Access::kReadWrite);
    UNREFT_CHECK(segment.ok());
    opened_ = *std::move(segment);
    return opened_->bytes();
  }

  meta::JobState job_;
  std::unique_ptr<KeptRecords> kept_ = OpenKept();
  std::unique_ptr<Segment> opened_;
};

TEST_F(KeptRecordsTest, NothingIsKeptAtFirst) {
  EXPECT_EQ(kept_->stamp(), meta::Stamp());
  EXPECT_EQ(kept_->Encoded(), "");
}

TEST_F(KeptRecordsTest, WhatIsKeptOutlivesTheDaemon) {
  Seed(3, 7);
  Commit(5, 8);
  ASSERT_TRUE(Keep());
  WipeDisk();
  OpenAgain();
  EXPECT_EQ(kept_->stamp(), (meta::Stamp{3, 8}));
  EXPECT_EQ(kept_->store_id(), job_.store_id);
  EXPECT_EQ(kept_->records().commit.bytes, job_.commit.bytes);
  EXPECT_EQ(kept_->records().view.bytes, job_.view.bytes);
  EXPECT_FALSE(kept_->records().pins.exists());
}

TEST_F(KeptRecordsTest, WhatIsKeptOutlivesTheMemory) {
  Seed(3, 7);
  Commit(5, 8);
  ASSERT_TRUE(Keep());
  Settle();
  ASSERT_TRUE(segments_.Remove(kKeptSegment).ok());
  OpenAgain();
  EXPECT_EQ(kept_->stamp(), (meta::Stamp{3, 8}));
  EXPECT_EQ(step(), 5U);
}

TEST_F(KeptRecordsTest, AStoreThatForgotIsNotKeptUntilItIsSeeded) {
  Seed(1, 7);
  Commit(5, 8);
  ASSERT_TRUE(Keep());
  LoseStore();
  EXPECT_FALSE(Keep());
  EXPECT_EQ(step(), 5U);
  Seed(2, 3);
  Commit(6, 3);
  EXPECT_TRUE(Keep()) << "the epoch is later, whatever the revision";
  EXPECT_EQ(step(), 6U);
}

TEST_F(KeptRecordsTest, OlderRecordsOfTheSameStoreAreNotKept) {
  Seed(1, 7);
  Commit(5, 9);
  ASSERT_TRUE(Keep());
  Commit(4, 8);
  EXPECT_FALSE(Keep());
  EXPECT_EQ(step(), 5U);
}

// Two were seeded apart, as two halves of a job may: the one that there is now is the job's.
TEST_F(KeptRecordsTest, OfTwoStoresOfOneEpochThePresentOneCounts) {
  KeepACommitAndLoseTheStore(2);
  Seed(2, 4);
  Put(job_.timeline, Chain(2, 2), 4);
  EXPECT_TRUE(Keep());
  EXPECT_EQ(sink_.Count("counts no longer"), 0U);
}

// Nobody that knew the job was there when it began in the other store.
TEST_F(KeptRecordsTest, ACommitThatTheOtherStoreDoesNotKnowIsAnError) {
  KeepACommitAndLoseTheStore(1);
  Seed(1, 4);
  EXPECT_TRUE(Keep());
  EXPECT_EQ(sink_.Count("version 1:5, which this node has kept as committed, is of no timeline"),
            1U);
  EXPECT_TRUE(Keep());
  EXPECT_EQ(sink_.Count("counts no longer"), 1U);
}

// Of an earlier, an equal or a later epoch; as an operator may do with a backup.
TEST_F(KeptRecordsTest, WhoHasFoundItsJobKeepsNoOther) {
  KeepACommitAndLoseTheStore(4);
  for (const uint64_t epoch : {2, 4, 9}) {
    Seed(epoch, 4);
    Put(job_.timeline, TimelineOfAnotherJob(), 5);
    EXPECT_TRUE(kept_->IsOfAnotherJob(job_));
    EXPECT_FALSE(Keep());
  }
  EXPECT_TRUE(kept_->has_found_job());
  EXPECT_EQ(kept_->stamp(), (meta::Stamp{4, 91}));
}

// What is in one that is not seeded may be anybody's.
TEST_F(KeptRecordsTest, AStoreThatIsNotSeededFindsNoJob) {
  Commit(5, 8);
  EXPECT_TRUE(Keep());
  EXPECT_FALSE(kept_->has_found_job());
  Seed(1, 9);
  EXPECT_TRUE(Keep());
  EXPECT_TRUE(kept_->has_found_job());
}

TEST_F(KeptRecordsTest, AJobIsFoundWhereTheStoreSaysNothingNewToo) {
  KeepACommitAndLoseTheStore(4);
  OpenAgain();
  EXPECT_FALSE(kept_->has_found_job());
  job_.store_id = kept_->store_id();
  Seed(4, 90);
  Commit(5, 91);
  EXPECT_TRUE(Keep());
  EXPECT_TRUE(kept_->has_found_job());
}

// The store of the other was never lost, and that of this one was, twice.
TEST_F(KeptRecordsTest, WhoHasLeftItsJobKeepsAnotherOfAnEarlierEpoch) {
  KeepACommitAndLoseTheStore(4);
  OpenAgain();
  Seed(2, 4);
  EXPECT_FALSE(kept_->IsOfAnotherJob(job_)) << "nothing was decided in it";
  Put(job_.timeline, TimelineOfAnotherJob(), 5);
  EXPECT_TRUE(kept_->IsOfAnotherJob(job_));
  EXPECT_FALSE(Keep());
  EXPECT_FALSE(kept_->has_found_job());
  kept_->LeaveJob();
  EXPECT_EQ(sink_.Count("version 1:5, which this node has kept as committed, is of another job"),
            1U);
  OpenAgain();
  EXPECT_EQ(kept_->stamp(), (meta::Stamp{4, 91})) << "nothing was kept in its place";
  kept_->LeaveJob();
  EXPECT_TRUE(Keep());
  EXPECT_FALSE(kept_->IsOfAnotherJob(job_));
  OpenAgain();
  EXPECT_EQ(kept_->stamp(), (meta::Stamp{2, 5})) << "the copy of the later epoch is gone";
}

TEST_F(KeptRecordsTest, WhatTheDiskHasOfAnotherJobIsNotTakenForNewerAndGoes) {
  KeepACommitAndLoseTheStore(4);
  const std::string of_another = kept_->Encoded();
  OpenAgain();
  Seed(2, 4);
  Put(job_.timeline, TimelineOfAnotherJob(), 5);
  kept_->LeaveJob();
  EXPECT_TRUE(Keep());
  Settle();
  WriteToDisk(of_another);
  OpenAgain();
  EXPECT_EQ(kept_->stamp(), (meta::Stamp{2, 5}));
  ASSERT_EQ(StepOnDisk(), 5U);
  EXPECT_TRUE(Keep()) << "the store says what the memory has";
  Settle();
  EXPECT_EQ(StepOnDisk(), 0U);
}

// Made for a job of few nodes, it had no room for what one of many says, now or ever.
TEST_F(KeptRecordsTest, ASegmentThatIsTooSmallForTheJobIsMadeAnew) {
  KeepACommitAndLoseTheStore(1);
  kept_.reset();
  const uint64_t before = Bytes().size();
  opened_.reset();
  kept_ = OpenKept(kKeptSegment, 1000);
  EXPECT_EQ(kept_->stamp(), (meta::Stamp{1, 91})) << "what it had is in the new one";
  EXPECT_GT(Bytes().size(), before);
  opened_.reset();
  WipeDisk();
  kept_ = OpenKept(kKeptSegment, 1000);
  EXPECT_EQ(step(), 5U);
}

TEST_F(KeptRecordsTest, AStoreThatIsWrittenFromAnotherCopyIsNone) {
  KeepACommitAndLoseTheStore(1);
  Seed(2, 4);
  EXPECT_TRUE(Keep()) << "a fresh start was ordered that this node has not heard of";
  EXPECT_EQ(sink_.Count("counts no longer"), 0U);
}

TEST_F(KeptRecordsTest, AWriteThatIsCutAnywhereLeavesTheOneBefore) {
  Seed(1, 7);
  Commit(5, 8);
  ASSERT_TRUE(Keep());
  Commit(6, 9);
  ASSERT_TRUE(Keep());
  const std::string newest = kept_->Encoded();
  const size_t length = newest.size();
  WipeDisk();
  const std::span<std::byte> bytes = Bytes();
  const size_t area = bytes.size() / 2;
  const std::vector<std::byte> whole(bytes.begin(), bytes.end());
  // Which of both has the newest.
  const bool is_second = std::memcmp(bytes.data(), newest.data(), length) != 0;
  for (size_t cut = 0; cut < length; cut += 5) {
    std::ranges::copy(whole, bytes.begin());
    std::fill_n(bytes.begin() + (is_second ? area : 0) + cut, length - cut, std::byte{0x5a});
    OpenAgain();
    ASSERT_EQ(step(), 5U) << cut;
  }
}

TEST_F(KeptRecordsTest, WhatHasNoRoomIsSaidAndNotActedOn) {
  Seed(1, 7);
  ASSERT_TRUE(Keep());
  job_.commit.bytes.assign(size_t{1} << 20, 'x');
  job_.commit.modified = meta::Revision{8};
  EXPECT_FALSE(Keep());
  EXPECT_NE(kept_->problem().find("an area has 262144"), std::string::npos) << kept_->problem();
  Commit(5, 9);
  EXPECT_TRUE(Keep());
  EXPECT_EQ(kept_->problem(), "");
}

TEST_F(KeptRecordsTest, AFailingDiskIsToldWhenItBeginsAndWhenItIsOver) {
  disk_.FailWrites(3, absl::ResourceExhaustedError("full"));
  for (uint64_t step = 1; step <= 5; ++step) {
    Commit(step, step);
    ASSERT_TRUE(Keep()) << "it stops nothing";
    Settle();
  }
  EXPECT_EQ(kept_->failed_writes(), 3U);
  EXPECT_EQ(sink_.Count("the copy of the job's records: full"), 1U);
  EXPECT_EQ(sink_.Count("the copy of the job's records: written"), 1U);
}

TEST_F(KeptRecordsTest, WhatTheDiskLacksIsAProblemUntilItHasIt) {
  EXPECT_EQ(kept_->disk_problem(), "");
  int failures = 0;
  InTurn([&] { kept_->set_on_failure([&] { ++failures; }); });
  disk_.FailWrites(2, absl::ResourceExhaustedError("full"));
  Commit(5, 8);
  ASSERT_TRUE(Keep());
  Settle();
  EXPECT_THAT(kept_->disk_problem(), testing::HasSubstr("full; protection goes on"));
  EXPECT_EQ(failures, 1);
  InTurn([&] { kept_->WriteAgain(); });
  Settle();
  EXPECT_NE(kept_->disk_problem(), "");
  EXPECT_EQ(failures, 2);
  InTurn([&] { kept_->WriteAgain(); });
  Settle();
  EXPECT_EQ(kept_->disk_problem(), "");
  ASSERT_TRUE(segments_.Remove(kKeptSegment).ok());
  OpenAgain();
  EXPECT_EQ(step(), 5U);
}

TEST_F(KeptRecordsTest, OfManyTheDiskHasTheFirstAtOnceAndTheNewestAtItsPace) {
  constexpr Duration kSoon = kDiskPace / 4;
  Commit(5, 8);
  ASSERT_TRUE(Keep());
  Settle(kSoon);
  EXPECT_EQ(StepOnDisk(), 5U);
  for (uint64_t step = 6; step <= 10; ++step) {
    Commit(step, step + 3);
    ASSERT_TRUE(Keep());
  }
  Settle(kSoon);
  EXPECT_EQ(StepOnDisk(), 5U);
  Settle(kDiskPace);
  EXPECT_EQ(StepOnDisk(), 10U);
  Commit(11, 20);
  ASSERT_TRUE(Keep());
  InTurn([&] { kept_->WriteAtOnce(); });  // the daemon ends
  Settle(kSoon);
  EXPECT_EQ(StepOnDisk(), 11U);
}

TEST_F(KeptRecordsTest, ADiskThatFailsIsWrittenAgainWithTheNext) {
  Seed(1, 7);
  disk_.FailWrites(1, absl::ResourceExhaustedError("full"));
  ASSERT_TRUE(Keep());
  Settle();
  Commit(5, 8);
  ASSERT_TRUE(Keep());
  Settle();
  EXPECT_EQ(kept_->disk_problem(), "");
  ASSERT_TRUE(segments_.Remove(kKeptSegment).ok());
  OpenAgain();
  EXPECT_EQ(step(), 5U);
}

// A job of one node would begin again, in silence.
TEST_F(KeptRecordsTest, ACopyOfNoUseIsAnErrorWhereNoMemoryHasAnother) {
  Commit(5, 8);
  ASSERT_TRUE(Keep());
  Settle();
  WriteToDisk("no copy");
  OpenAgain();
  EXPECT_EQ(step(), 5U) << "memory has one";
  kept_.reset();
  WriteToDisk("no copy");
  ASSERT_TRUE(segments_.Remove(kKeptSegment).ok());
  std::optional<absl::Status> opened;
  const auto open = [&](uint64_t nodes) {
    InTurn([&] {
      KeptRecords::Open(*executor_, segments_, *records_, log_, kKeptSegment, nodes,
                        [&](auto kept) { opened = kept.status(); });
    });
    Settle();
  };
  open(1);
  ASSERT_TRUE(opened);
  EXPECT_TRUE(absl::IsDataLoss(*opened)) << *opened;
  ASSERT_TRUE(segments_.Remove(kKeptSegment).ok());
  open(3);
  EXPECT_TRUE(opened->ok()) << "the other nodes know";
}

TEST_F(KeptRecordsTest, ACopyOfNothingIsOne) {
  ASSERT_TRUE(Keep());
  Settle();
  kept_.reset();
  ASSERT_TRUE(segments_.Remove(kKeptSegment).ok());
  bool is_opened = false;
  InTurn([&] {
    KeptRecords::Open(*executor_, segments_, *records_, log_, kKeptSegment, 1,
                      [&](auto kept) { is_opened = kept.ok(); });
  });
  Settle();
  EXPECT_TRUE(is_opened);
}

TEST_F(KeptRecordsTest, ADiskThatCannotBeReadIsNotMissedWhileTheMemoryIsThere) {
  Commit(5, 8);
  ASSERT_TRUE(Keep());
  Settle();
  disk_.set_corrupt(true);
  OpenAgain();
  EXPECT_EQ(step(), 5U);
  EXPECT_NE(kept_->disk_problem(), "");
  int failures = 0;
  InTurn([&] { kept_->set_on_failure([&] { ++failures; }); });
  EXPECT_EQ(failures, 1) << "it is to be written again";
}

// --- the format ---

TEST(RecordCopyTest, AWrongRecordIsNoCopy) {
  meta::JobState job;
  CommitRecord commit = Committed(At(1, 5));
  Holder& holder = *commit.add_holders();
  holder.add_ranks(uint64_t{1} << 40);
  job.commit.bytes = commit.SerializeAsString();
  const std::string bytes = meta::EncodeCopy(job);
  const auto copy = meta::DecodeCopy(std::as_bytes(std::span(bytes)));
  EXPECT_EQ(copy.status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace unreft::smp
