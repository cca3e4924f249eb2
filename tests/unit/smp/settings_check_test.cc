// What a daemon compares before it touches the memory of the one before: the store, and what lies
// beside the memory.
#include <gmock/gmock.h>

#include <optional>

#include "smp/node/settings_check.h"
#include "tests/fakes/fake_kv.h"
#include "tests/fakes/sim_transport.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::HasSubstr;

class SettingsCheckTest : public SmpFixture {
 protected:
  SettingsCheckTest() : network_(scheduler_), kv_store_(scheduler_, 1) {
    records_.reset();  // of another process
    options_.nodes = 4;
    UNREFT_CHECK(scheduler_.RunUntil([this] { return kv_store_.ready(); }, 100000));
  }

  // A process of the daemon, up to where it would touch the memory.
  absl::Status Check(uint32_t parity_chunks) {
    NodeOptions options = options_;
    options.parity_chunks = parity_chunks;
    const auto process = scheduler_.NewExecutor("daemon");
    const auto records = *FakeRecordStore::Open(disk_, *process);
    const auto transport = *network_.NewTransport(*process, "node0");
    const auto kv = kv_store_.NewKv(*process);
    FakeProcessWatcher watcher(table_, *process, table_.Start());
    SimWorkPool work(*process);
    NodeSeams seams{*process, work, random_, segments_, *records,
                    watcher,  log_, nullptr, kv.get(),  transport.get()};
    SettingsCheck check(seams, options);
    std::optional<absl::Status> checked;
    process->Deliver(Duration{}, [&] {
      check.Start([&](absl::Status status) { checked = std::move(status); });
    });
    Settle(std::chrono::seconds(15));
    process->Kill();
    return checked.value();
  }
  void MakeMemory() { ASSERT_TRUE(segments_.Create(MemoryPrefix(options_) + "node", 4096).ok()); }
  void LoseStore() {
    kv_store_.Kill();
    kv_store_.LoseData();
    kv_store_.Restart();
    Settle();
  }

  SimNetwork network_;
  FakeKvStore kv_store_;
};

TEST_F(SettingsCheckTest, WhoIsFirstInANewStoreDoesNotContradictTheMemory) {
  ASSERT_TRUE(Check(2).ok());
  MakeMemory();
  LoseStore();
  const absl::Status refused = Check(0);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("parity_chunks is 0 here"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the memory that lies here"));
  // Nor has it become the job's.
  EXPECT_TRUE(Check(2).ok());
}

TEST_F(SettingsCheckTest, AnEmptyMemoryHasNothingToLose) {
  ASSERT_TRUE(Check(2).ok());
  LoseStore();
  EXPECT_TRUE(Check(0).ok());
}

// The job's record counts, whatever another daemon has kept here.
TEST_F(SettingsCheckTest, WhatTheStoreSaysCountsMoreThanWhatWasKept) {
  ASSERT_TRUE(Check(2).ok());
  LoseStore();
  ASSERT_TRUE(Check(0).ok());
  MakeMemory();
  EXPECT_TRUE(Check(0).ok());
  LoseStore();
  ASSERT_FALSE(Check(2).ok());
}

TEST_F(SettingsCheckTest, WhatIsMadeWithoutTheStoreIsKeptToo) {
  kv_store_.Kill();
  ASSERT_TRUE(Check(2).ok());
  MakeMemory();
  EXPECT_EQ(Check(0).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Check(2).ok());
}

}  // namespace
}  // namespace unreft::smp
