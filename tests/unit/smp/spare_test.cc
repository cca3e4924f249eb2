// A spare over the fakes: who it becomes, and what it keeps.

#include "smp/node/spare.h"

#include <optional>

#include "tests/fakes/fake_kv.h"
#include "tests/fakes/sim_transport.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;

class SpareTest : public SmpFixture {
 protected:
  SpareTest() : network_(scheduler_), kv_store_(scheduler_, 1) {
    records_.reset();  // of another process
    options_.node = NodeSlot{4};
    options_.place = 4;
    options_.presence_ttl = seconds(1);
    UNREFT_CHECK(scheduler_.RunUntil([this] { return kv_store_.ready(); }, 100000));
  }
  ~SpareTest() override { Kill(); }

  // A process of the daemon.
  void Run() {
    Kill();
    process_ = scheduler_.NewExecutor("spare");
    records_ = *FakeRecordStore::Open(disk_, *process_);
    transport_ = *network_.NewTransport(*process_, "node4");
    kv_ = kv_store_.NewKv(*process_);
    watcher_ = std::make_unique<FakeProcessWatcher>(table_, *process_, table_.Start());
    work_ = std::make_unique<SimWorkPool>(*process_);
    slot_.reset();
    process_->Deliver(Duration{}, [this] {
      spare_ =
          std::make_unique<Spare>(NodeSeams{*process_, *work_, random_, segments_, *records_,
                                            *watcher_, log_, nullptr, kv_.get(), transport_.get()},
                                  options_);
      spare_->Start(boot_id_, [this](absl::StatusOr<NodeSlot> slot) { slot_ = std::move(slot); });
    });
    Settle(seconds(3));
  }
  // kill -9.
  void Kill() {
    if (process_ == nullptr) return;
    process_->Kill();
    spare_.reset();
    work_.reset();
    watcher_.reset();
    kv_.reset();
    transport_.reset();
    records_.reset();
    process_.reset();
  }

  std::optional<SpareRecord> Registered() {
    SpareRecord record;
    const auto bytes = Get("unreft/job/spare/4");
    if (!bytes || !record.ParseFromString(*bytes)) return std::nullopt;
    return record;
  }
  std::optional<std::string> Get(const std::string& key) {
    std::optional<absl::StatusOr<std::vector<meta::KeyValue>>> got;
    const auto executor = scheduler_.NewExecutor("reader");
    const auto kv = kv_store_.NewKv(*executor);
    executor->Deliver(Duration{},
                      [&] { meta::Get(*kv, {key}, [&](auto kvs) { got = std::move(kvs); }); });
    UNREFT_CHECK(scheduler_.RunUntil([&] { return got.has_value(); }, 100000));
    if (!got->ok() || (*got)->empty()) return std::nullopt;
    return (**got)[0].value;
  }
  // The view names that memory as slot 2's.
  void Assign(const std::string& incarnation, bool lost = false) {
    ViewRecord view;
    view.set_number(7);
    ViewMember& member = *view.add_members();
    member.set_slot(2);
    member.set_incarnation(incarnation);
    member.set_lost(lost);
    Put("unreft/job/view", view.SerializeAsString());
  }
  void Put(const std::string& key, const std::string& value) {
    bool done = false;
    const auto executor = scheduler_.NewExecutor("leader");
    const auto kv = kv_store_.NewKv(*executor);
    executor->Deliver(Duration{}, [&] {
      meta::Txn txn;
      txn.then.push_back(meta::PutOp{key, value, meta::LeaseId{}});
      kv->Commit(std::move(txn), [&](const auto& result) {
        UNREFT_CHECK(result.ok());
        done = true;
      });
    });
    UNREFT_CHECK(scheduler_.RunUntil([&] { return done; }, 100000));
    Settle(seconds(1));
  }
  // It is node 2, has a slab and is killed.
  void TakeSlotAndDie() {
    Run();
    Assign(Registered()->presence().incarnation());
    UNREFT_CHECK(slot_.has_value() && slot_->ok());
    UNREFT_CHECK(segments_.Create("/unreft.job.4.slot0", 4096).ok());
    Kill();
  }
  size_t Segments() { return segments_.List("/unreft.job.4.")->size(); }

  SimNetwork network_;
  FakeKvStore kv_store_;
  std::unique_ptr<SimExecutor> process_;
  std::unique_ptr<FakeProcessWatcher> watcher_;
  std::unique_ptr<SimWorkPool> work_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<meta::Kv> kv_;
  std::unique_ptr<Spare> spare_;
  std::optional<absl::StatusOr<NodeSlot>> slot_;
};

TEST_F(SpareTest, RegistersWithItsMemoryAndItsLease) {
  Run();
  const auto record = Registered();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->presence().place(), 4U);
  EXPECT_EQ(record->presence().address(), "node4");
  EXPECT_EQ(record->presence().incarnation().size(), 16U);
  EXPECT_NE(record->lease(), 0);
  EXPECT_GT(record->memory_bytes(), 0U);
  EXPECT_FALSE(slot_);
}

TEST_F(SpareTest, AnotherOfTheSameNumberIsNotDrivenOut) {
  SpareRecord other;
  other.mutable_presence()->set_incarnation("another memory");
  other.mutable_presence()->set_address("node9");
  Put("unreft/job/spare/4", other.SerializeAsString());
  const auto executor = scheduler_.NewExecutor("other");
  const std::unique_ptr<Transport> transport = *network_.NewTransport(*executor, "node9");
  Run();
  ASSERT_TRUE(slot_);
  EXPECT_TRUE(absl::IsFailedPrecondition(slot_->status()));
  EXPECT_NE(slot_->status().message().find("that of the spare at node9"), std::string::npos)
      << slot_->status();
  EXPECT_EQ(Registered()->presence().address(), "node9");
  executor->Kill();
}

// Both came at the same time.
TEST_F(SpareTest, WhoeverIsDrivenOutSaysSo) {
  Run();
  ASSERT_TRUE(Registered());
  const auto executor = scheduler_.NewExecutor("other");
  const std::unique_ptr<Transport> transport = *network_.NewTransport(*executor, "node9");
  SpareRecord other;
  other.mutable_presence()->set_incarnation("another memory");
  other.mutable_presence()->set_address("node9");
  Put("unreft/job/spare/4", other.SerializeAsString());
  ASSERT_TRUE(slot_);
  EXPECT_TRUE(absl::IsFailedPrecondition(slot_->status()));
  executor->Kill();
}

TEST_F(SpareTest, OneThatIsDeadIsReplaced) {
  SpareRecord other;
  other.mutable_presence()->set_incarnation("another memory");
  other.mutable_presence()->set_address("node9");
  Put("unreft/job/spare/4", other.SerializeAsString());
  Run();
  EXPECT_FALSE(slot_);
  EXPECT_EQ(Registered()->presence().address(), "node4");
}

TEST_F(SpareTest, ItsRegistrationIsWrittenTwiceAndThenLeftAlone) {
  Run();
  const auto before = kv_store_.engine()->revision();
  Settle(seconds(10));
  EXPECT_EQ(kv_store_.engine()->revision(), before);
}

TEST_F(SpareTest, IsTheNodeThatTheViewSays) {
  Run();
  Assign("another memory");
  EXPECT_FALSE(slot_);
  Assign(Registered()->presence().incarnation());
  ASSERT_TRUE(slot_);
  ASSERT_TRUE(slot_->ok()) << slot_->status();
  EXPECT_EQ(**slot_, NodeSlot{2});
}

TEST_F(SpareTest, KilledBeforeItKnewItFindsOutWhenItStartsAgain) {
  Run();
  const std::string incarnation = Registered()->presence().incarnation();
  Kill();
  Assign(incarnation);
  Run();
  ASSERT_TRUE(slot_);
  EXPECT_EQ(slot_->value(), NodeSlot{2});
  EXPECT_EQ(Segments(), 1U) << "its memory is kept";
}

TEST_F(SpareTest, AMemoryThatTheJobHasGivenUpIsForgotten) {
  Run();
  const std::string first = Registered()->presence().incarnation();
  UNREFT_CHECK(segments_.Create("/unreft.job.4.slot0", 4096).ok());
  Assign("another memory");
  Run();
  EXPECT_EQ(Segments(), 1U);
  ASSERT_TRUE(Registered());
  EXPECT_NE(Registered()->presence().incarnation(), first);
}

// Its host was in another job of that name, or it was given the wrong meta store.
TEST_F(SpareTest, TheMemoryOfAnotherJobIsNotForgotten) {
  TakeSlotAndDie();
  const auto executor = scheduler_.NewExecutor("earlier");
  auto records = *FakeRecordStore::Open(disk_, *executor);
  std::unique_ptr<KeptRecords> kept;
  executor->Deliver(Duration{}, [&] {
    KeptRecords::Open(*executor, segments_, *records, log_, "/unreft.job.4.records", 3,
                      [&](auto opened) { kept = *std::move(opened); });
  });
  UNREFT_CHECK(scheduler_.RunUntil([&] { return kept != nullptr; }, 100000));
  meta::JobState job;
  job.store_id = "store";
  TimelineRecord timeline;
  timeline.set_first_timeline(77);
  job.timeline.value = timeline;
  job.timeline.bytes = timeline.SerializeAsString();
  job.timeline.modified = meta::Revision{3};
  ASSERT_TRUE(kept->Keep(job));
  kept.reset();
  executor->Kill();
  records.reset();

  timeline.set_first_timeline(88);
  Put("unreft/job/timeline", timeline.SerializeAsString());
  Assign("another memory", true);
  Run();
  ASSERT_TRUE(slot_);
  EXPECT_EQ(slot_->status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(slot_->status().message().find("of another job of this name"), std::string::npos);
  EXPECT_EQ(Segments(), 3U);
  EXPECT_FALSE(Registered());
}

// Without a view it took its slab for a stranger's, and the job waited for a node that was there.
TEST_F(SpareTest, IsItsSlotsNodeStillWhenTheStoreHasLostTheView) {
  TakeSlotAndDie();
  kv_store_.Kill();
  kv_store_.LoseData();
  kv_store_.Restart();
  Run();
  ASSERT_TRUE(slot_);
  EXPECT_EQ(slot_->value(), NodeSlot{2});
  EXPECT_EQ(Segments(), 2U);
}

TEST_F(SpareTest, ComesBackToItsSlotWhenTheOneThatTheViewNamesIsLost) {
  TakeSlotAndDie();
  Assign("another memory");  // it may only be away, or the store went back
  Run();
  EXPECT_FALSE(slot_);
  EXPECT_FALSE(Registered());
  EXPECT_EQ(Segments(), 2U);
  Assign("another memory", true);
  ASSERT_TRUE(slot_);
  EXPECT_EQ(slot_->value(), NodeSlot{2});
  EXPECT_EQ(Segments(), 2U);
}

TEST_F(SpareTest, AMemoryInWhoseSlotAnotherLivesIsForgotten) {
  TakeSlotAndDie();
  Assign("another memory");
  PresenceRecord other;
  other.set_slot(2);
  other.set_incarnation("another memory");
  Put("unreft/job/node/2", other.SerializeAsString());
  Run();
  EXPECT_FALSE(slot_);
  EXPECT_EQ(Segments(), 1U);
  EXPECT_TRUE(Registered());
}

TEST_F(SpareTest, WaitsForTheStore) {
  kv_store_.Kill();
  Run();
  EXPECT_FALSE(slot_);
  kv_store_.Restart();
  Settle(seconds(5));
  EXPECT_TRUE(Registered());
}

TEST_F(SpareTest, RegistersAgainWhenItsLeaseWasLost) {
  Run();
  const int64_t lease = Registered()->lease();
  kv_store_.CutOff(*process_);
  Settle(seconds(4));
  EXPECT_FALSE(Registered());
  kv_store_.Mend(*process_);
  Settle(seconds(4));
  ASSERT_TRUE(Registered());
  EXPECT_NE(Registered()->lease(), 0);
  EXPECT_NE(Registered()->lease(), lease);
}

}  // namespace
}  // namespace unreft::smp
