// A member that is not started like its job, and a store that was lost and has other settings.
#include <gmock/gmock.h>

#include "meta/record_checks.h"
#include "smp/node/settings_check.h"
#include "tests/unit/smp/member_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class MemberSettingsTest : public MemberFixture {
 protected:
  SettingsRecord Settings(uint32_t parity_chunks) const {
    NodeOptions options = options_;
    options.parity_chunks = parity_chunks;
    return SettingsOf(options, "node9");
  }
  CommitRecord Committed() const {
    CommitRecord record;
    record.set_timeline(1);
    record.set_step(5);
    record.set_world(2);
    return record;
  }
  const meta::JobState& job() { return watcher_->store->state(); }
  // That a newcomer of other settings was first in.
  void ExpectSettingsInANewStore() {
    kv_store_.Kill();
    kv_store_.LoseData();
    kv_store_.Restart();
    Put("settings", Settings(2));
    Put("commit", Committed());
    Settle(std::chrono::seconds(15));
    EXPECT_EQ(ParityOfJob(), 0u);
    EXPECT_TRUE(node_.standings.back().refusal.ok());
  }
  uint64_t ParityOfJob() { return job().settings.value.parity_chunks(); }

  Other* watcher_ = nullptr;  // another node, which compares nothing
};

TEST_F(MemberSettingsTest, TheFirstWritesThem) {
  watcher_ = &Join(1, false);
  options_.parity_chunks = 2;
  StartMember();
  EXPECT_EQ(ParityOfJob(), 2u);
  EXPECT_EQ(job().settings.value.address(), "node0");
  EXPECT_TRUE(job().present.contains(NodeSlot{0}));
  EXPECT_TRUE(node_.standings.back().refusal.ok());
}

TEST_F(MemberSettingsTest, WhoDiffersIsRefusedAndHoldsNothing) {
  watcher_ = &Join(1, false);
  Put("settings", Settings(2));
  Put("commit", Committed());
  options_.sources["parity_chunks"] = "--parity-chunks";
  StartMember();
  Settle(std::chrono::seconds(10));
  const Standing& standing = node_.standings.back();
  EXPECT_TRUE(standing.is_out);
  EXPECT_THAT(std::string(standing.refusal.message()),
              HasSubstr("parity_chunks is 0 here (--parity-chunks), 2 in the job"));
  EXPECT_THAT(std::string(standing.refusal.message()), HasSubstr("node 0 at node9"));
  EXPECT_FALSE(job().present.contains(NodeSlot{0}));
  EXPECT_THAT(job().waiting, IsEmpty());
  EXPECT_EQ(job().leader.exists(), false);
  ASSERT_TRUE(job().refused.contains(0));
  EXPECT_THAT(job().refused.at(0).value.why(), HasSubstr("2 in the job"));
  EXPECT_EQ(ParityOfJob(), 2u);
}

// Also where nothing but the store has changed since.
TEST_F(MemberSettingsTest, ARefusalIsForgottenWhenItsPlaceIsStartedRightly) {
  watcher_ = &Join(1, false);
  RefusedRecord refused;
  refused.set_place(0);
  refused.set_address("node0");
  refused.set_why("parity_chunks is 5 here");
  Put("refused/0", refused);
  refused.set_place(2);
  Put("refused/2", refused);
  Put("settings", Settings(options_.parity_chunks));
  Put("commit", Committed());
  ASSERT_TRUE(job().refused.contains(0));
  StartMember();
  EXPECT_FALSE(job().refused.contains(0));
  EXPECT_TRUE(job().refused.contains(2));  // another's
  // While this one runs, whoever is refused for its place is not forgotten.
  refused.set_place(0);
  Put("refused/0", refused);
  Settle(std::chrono::seconds(10));
  EXPECT_TRUE(job().refused.contains(0));
  EXPECT_EQ(sink_.Count("was refused: parity_chunks is 5 here"), 3u);  // of 0, of 2, of 0 again
}

TEST_F(MemberSettingsTest, TheFirstOfAJobForgetsARefusalToo) {
  watcher_ = &Join(1, false);
  RefusedRecord refused;
  refused.set_place(0);
  Put("refused/0", refused);
  StartMember();
  EXPECT_TRUE(job().settings.exists());
  EXPECT_FALSE(job().refused.contains(0));
}

TEST_F(MemberSettingsTest, NobodyElseAndNothingCommittedAndTheyAreItsOwn) {
  Put("settings", Settings(2));
  StartMember();
  Settle(std::chrono::seconds(2));
  watcher_ = &Join(1, false);
  EXPECT_EQ(ParityOfJob(), 0u);
  EXPECT_TRUE(job().present.contains(NodeSlot{0}));
}

TEST_F(MemberSettingsTest, WhoHasJustWrittenThemIsPresentAMomentLater) {
  Put("settings", Settings(2));
  StartMember();
  watcher_ = &Join(1, false);
  Settle(std::chrono::seconds(10));
  EXPECT_FALSE(node_.standings.back().refusal.ok());
  EXPECT_EQ(ParityOfJob(), 2u);
}

// A newcomer was first in a store that was wiped; then one came that remembers, and is not present
// yet. They took turns, until that one had waited for too long and was refused.
TEST_F(MemberSettingsTest, WhatIsReplacedWhileItRunsIsNotTakenBack) {
  StartMember();
  Put("settings", Settings(2));
  Settle(std::chrono::seconds(10));
  watcher_ = &Join(1, false);
  EXPECT_EQ(ParityOfJob(), 2u);
  EXPECT_FALSE(node_.standings.back().refusal.ok());
  EXPECT_FALSE(job().present.contains(NodeSlot{0}));
}

TEST_F(MemberSettingsTest, WhileAnotherIsThereItIsRefusedThoughNothingIsCommitted) {
  watcher_ = &Join(1, false);
  Put("settings", Settings(2));
  StartMember();
  Settle(std::chrono::seconds(10));
  EXPECT_FALSE(node_.standings.back().refusal.ok());
  EXPECT_EQ(ParityOfJob(), 2u);
}

TEST_F(MemberSettingsTest, WhatIsNoRecordIsWrittenAnew) {
  watcher_ = &Join(1, false);
  SettingsRecord wrong = Settings(2);
  wrong.set_min_reader(meta::kSettingsFormat + 1);
  wrong.set_format(meta::kSettingsFormat + 1);
  Put("settings", wrong);
  StartMember();
  EXPECT_EQ(job().settings.value.address(), "node0");
  EXPECT_EQ(ParityOfJob(), 0u);
  EXPECT_TRUE(job().present.contains(NodeSlot{0}));
}

TEST_F(MemberSettingsTest, AStoreThatWasLostHasThoseOfTheMembersAgain) {
  watcher_ = &Join(1, true);
  StartMember();
  ViewRecord view;
  view.set_number(3);
  ViewMember& member = *view.add_members();
  member.set_slot(0);
  member.set_incarnation(AsBytes(record_->incarnation()));
  Put("view", view);
  ASSERT_EQ(record_->view(), 3u);
  ExpectSettingsInANewStore();
}

// Where all memory was lost nobody was in a view, and the job goes on by what those have kept that
// wait for its slots.
TEST_F(MemberSettingsTest, AStoreThatWasLostHasThoseOfWhoKeptTheRecordsAgain) {
  watcher_ = &Join(1, true);
  leader_ = watcher_;
  Seed();
  ViewRecord view;
  view.set_number(3);
  ViewMember& member = *view.add_members();
  member.set_slot(0);
  member.set_incarnation("another memory");
  Put("view", view);
  Put("commit", Committed());
  StartMember();
  ASSERT_EQ(record_->view(), 0u);
  ASSERT_NE(kept_->stamp(), meta::Stamp{});
  ExpectSettingsInANewStore();
}

TEST_F(MemberSettingsTest, OthersAreToldOfOnce) {
  StartMember();
  RefusedRecord refused;
  refused.set_place(3);
  refused.set_address("node3");
  refused.set_why("parity_chunks is 0 here");
  Put("refused/3", refused);
  Put("refused/3", refused);
  EXPECT_EQ(sink_.Count("the daemon at node3 was refused: parity_chunks is 0 here"), 1u);
}

// A daemon that starts, before it touches the memory that may lie there.
class SettingsCheckTest : public MemberFixture {
 protected:
  SettingsCheckTest() { watcher_ = &Join(1, false); }

  // As an earlier daemon left it, which was started with so many parity chunks.
  void LeaveMemory(uint32_t parity_chunks) {
    UNREFT_CHECK(segments_.Create(kNodeSegment, 4096).ok());
    NodeOptions options = options_;
    options.parity_chunks = parity_chunks;
    records_ = *FakeRecordStore::Open(disk_, *executor_);
    InTurn([&] {
      records_->Write({{"settings", SettingsOf(options, "node0").SerializeAsString()}},
                      Durability::kSynced, [](const absl::Status&) {});
    });
    Settle();
    records_.reset();
  }
  absl::Status Start(uint32_t parity_chunks) {
    options_.parity_chunks = parity_chunks;
    const auto process = scheduler_.NewExecutor("starting");
    const auto kv = kv_store_.NewKv(*process);
    const auto transport = *network_.NewTransport(*process, "node0");
    records_ = *FakeRecordStore::Open(disk_, *process);
    NodeSeams seams{*process,   pool_, random_, segments_, *records_,
                    processes_, log_,  nullptr, kv.get(),  transport.get()};
    std::unique_ptr<SettingsCheck> check;
    std::optional<absl::Status> result;
    InTurnOf(*process, [&] {
      check = std::make_unique<SettingsCheck>(seams, options_);
      check->Start([&](absl::Status status) { result = std::move(status); });
    });
    Settle(std::chrono::seconds(20));
    process->Kill();
    check.reset();
    records_.reset();
    return result.value_or(absl::UnknownError("no answer"));
  }
  void PutSettings(uint32_t parity_chunks) {
    NodeOptions options = options_;
    options.parity_chunks = parity_chunks;
    Put("settings", SettingsOf(options, "node9"));
  }
  const meta::JobState& job() { return watcher_->store->state(); }

  Other* watcher_ = nullptr;
};

TEST_F(SettingsCheckTest, ABlankStoreIsNotGivenOthersThanThoseOfTheMemory) {
  LeaveMemory(2);
  const absl::Status status = Start(0);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("is not started like the memory that lies here"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("parity_chunks is 0 here (the default), 2"));
  EXPECT_FALSE(job().settings.exists());
  EXPECT_TRUE(Start(2).ok());
  EXPECT_EQ(job().settings.value.parity_chunks(), 2u);
}

TEST_F(SettingsCheckTest, WhoRemembersReplacesThem) {
  LeaveMemory(2);
  PutSettings(0);
  EXPECT_TRUE(Start(2).ok());
  EXPECT_EQ(job().settings.value.parity_chunks(), 2u);
  EXPECT_EQ(sink_.Count("it has other settings than the job, and gets those again"), 1u);
}

// It was not lost: the state was given up there, and another job begun.
TEST_F(SettingsCheckTest, AStoreThatKnowsOfAnAttemptIsBelieved) {
  LeaveMemory(2);
  PutSettings(0);
  Put("timeline", Chain(1, 1));
  EXPECT_FALSE(Start(2).ok());
  EXPECT_EQ(job().settings.value.parity_chunks(), 0u);
}

TEST_F(SettingsCheckTest, WithoutMemoryTheStoreIsBelieved) {
  PutSettings(0);
  EXPECT_FALSE(Start(2).ok());
  EXPECT_EQ(job().settings.value.parity_chunks(), 0u);
}

TEST(JobSettings, WhatARecordDoesNotSayIsNoDifference) {
  NodeOptions options;
  SettingsRecord record = SettingsOf(options, "");
  EXPECT_THAT(DifferencesFrom(record, options), IsEmpty());
  options.data_chunks = 4;
  options.pins = 1;
  options.nodes_min = 3;
  EXPECT_THAT(DifferencesFrom(record, options),
              ElementsAre("nodes_min is 3 here (the default), 0 in the job",
                          "data_chunks is 4 here (the default), 1 in the job",
                          "pins is 1 here (the default), 0 in the job"));
  record.clear_data_chunks();
  record.clear_pins();
  record.clear_nodes_min();
  EXPECT_THAT(DifferencesFrom(record, options), IsEmpty());
}

TEST(JobSettings, FormatsFitIfEachIsReadByTheOther) {
  const NodeOptions options;
  SettingsRecord record = SettingsOf(options, "");
  FormatRange& newer = *record.mutable_formats(0);
  newer.set_format(newer.format() + 1);
  EXPECT_TRUE(CompareSettings(record, options).ok());
  newer.set_min_reader(newer.format());
  const absl::Status status = CompareSettings(record, options);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the format of 'slot' is 1 here"));
  newer.set_name("of a later release");
  EXPECT_TRUE(CompareSettings(record, options).ok());
}

}  // namespace
}  // namespace unreft::smp
