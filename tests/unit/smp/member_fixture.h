// A Member (node 0) over a simulated meta store, and beside it node 1, which leads as far as the
// test says: it takes the member's reports and writes the job's records.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meta/job_store.h"
#include "meta/leased_key.h"
#include "smp/job/member.h"
#include "tests/fakes/fake_kv.h"
#include "tests/fakes/sim_transport.h"
#include "tests/unit/smp/job_records_testing.h"
#include "tests/unit/smp/recording_node.h"
#include "tests/unit/smp/recording_protection.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {

class MemberFixture : public SmpFixture {
 protected:
  // A node of the test's own: what it needs to speak to others.
  struct Other {
    std::unique_ptr<SimExecutor> executor;
    std::unique_ptr<meta::Kv> kv;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<meta::JobStore> store;
    std::unique_ptr<Peers> peers;
    std::unique_ptr<meta::LeasedKey> presence;
    std::unique_ptr<meta::LeasedKey> leadership;
    std::vector<NodeReport> reports;
    ReportReply reply;  // to each
    bool answers = true;
    std::vector<Transport::CallDone> unanswered;
  };

  MemberFixture() : network_(scheduler_), kv_store_(scheduler_, 1) {
    options_.nodes = 3;
    options_.node = NodeSlot{0};
    options_.presence_ttl = std::chrono::seconds(1);
    options_.report_interval = std::chrono::milliseconds(200);
    UNREFT_CHECK(scheduler_.RunUntil([this] { return kv_store_.ready(); }, 100000));
    records_.reset();  // of another process
  }
  ~MemberFixture() override {
    StopMember();
    for (auto& other : others_) other->executor->Kill();
  }

  void InTurnOf(SimExecutor& executor, absl::FunctionRef<void()> body) {
    bool done = false;
    executor.Deliver(Duration{}, [&] {
      body();
      done = true;
    });
    UNREFT_CHECK(scheduler_.RunUntil([&] { return done; }, 100000));
  }

  void StartMember() {
    process_ = scheduler_.NewExecutor("member");
    kv_ = kv_store_.NewKv(*process_);
    transport_ = *network_.NewTransport(*process_, "node0");
    records_ = *FakeRecordStore::Open(disk_, *process_);
    InTurnOf(*process_, [this] {
      NodeRecord::Open(segments_, *records_, random_, log_, kNodeSegment, boot_id_,
                       [this](auto record) { record_ = *std::move(record); });
    });
    InTurnOf(*process_, [this] {
      KeptRecords::Open(*process_, segments_, *records_, log_, kKeptSegment, options_.nodes,
                        [this](auto kept) { kept_ = *std::move(kept); });
    });
    UNREFT_CHECK(scheduler_.RunUntil([this] { return record_ && kept_; }, 100000));
    InTurnOf(*process_, [this] {
      member_ = std::make_unique<Member>(Member::Seams{*process_, *kv_, *transport_, random_, log_},
                                         *record_, *kept_, node_, options_);
      member_->Start(protection_);
    });
    Settle(std::chrono::milliseconds(500));
  }
  void Do(absl::FunctionRef<void(Member&)> what) {
    InTurnOf(*process_, [&] { what(*member_); });
    Settle();
  }
  std::optional<VersionHolding> Said(Version version) const {
    for (const VersionHolding& holding : leader_->reports.back().versions()) {
      if (VersionOf(holding) == version) return holding;
    }
    return std::nullopt;
  }

  // As kill -9 does.
  void StopMember() {
    if (process_ == nullptr) return;
    process_->Kill();
    member_.reset();
    transport_.reset();
    kv_.reset();
    kept_.reset();
    record_.reset();
    records_.reset();
    process_.reset();
  }

  // A node that is present in that slot, and perhaps wants to lead.
  Other& Join(uint64_t slot, bool campaigns) {
    Other& other = *others_.emplace_back(std::make_unique<Other>());
    const std::string address = fmt::format("node{}", slot);
    other.executor = scheduler_.NewExecutor(address);
    other.kv = kv_store_.NewKv(*other.executor);
    other.transport = *network_.NewTransport(*other.executor, address);
    const PresenceRecord presence = PresenceOf(slot);
    InTurnOf(*other.executor, [&] {
      SimExecutor& executor = *other.executor;
      other.store =
          std::make_unique<meta::JobStore>(*other.kv, executor, random_, log_, "job", [] {});
      other.peers = std::make_unique<Peers>(executor, *other.transport, other.store->state(), "job",
                                            NodeSlot{slot}, RandomId{1});
      other.peers->Serve("report",
                         [&other](NodeSlot, const std::string& body, Transport::CallDone done) {
                           UNREFT_CHECK(other.reports.emplace_back().ParseFromString(body));
                           if (other.answers) return done(other.reply.SerializeAsString());
                           other.unanswered.push_back(std::move(done));
                         });
      const auto hold = [&](std::unique_ptr<meta::LeasedKey>& key, const std::string& name) {
        key = std::make_unique<meta::LeasedKey>(
            *other.kv, executor, log_, name, options_.presence_ttl,
            [](const std::string&) { return false; }, [] {});
        key->Hold(presence.SerializeAsString());
      };
      other.store->Start();
      hold(other.presence, other.store->PresenceKey(NodeSlot{slot}));
      if (campaigns) hold(other.leadership, other.store->LeaderKey());
    });
    Settle(std::chrono::seconds(1));
    return other;
  }
  static PresenceRecord PresenceOf(uint64_t slot) {
    PresenceRecord presence;
    presence.set_slot(slot);
    presence.set_session(1);
    presence.set_address(fmt::format("node{}", slot));
    presence.set_incarnation(presence.address());
    return presence;
  }
  void Leave(Other& other) {
    other.executor->Kill();
    std::erase_if(others_, [&](const auto& candidate) { return candidate.get() == &other; });
  }

  // The meta store comes back empty.
  void LoseStore() {
    kv_store_.Kill();
    kv_store_.LoseData();
    kv_store_.Restart();
    Settle(std::chrono::seconds(20));
  }
  // As a leader does before it writes anything else.
  void Seed() {
    SeedRecord seed;
    seed.set_store_id(leader_->store->state().store_id);
    seed.set_epoch(1);
    Put("seed", seed);
  }
  // A record of the job, as the leader writes it: as soon as the meta store has started.
  template <typename Message>
  void Put(const std::string& name, const Message& record) {
    const auto executor = scheduler_.NewExecutor("writer");
    const auto kv = kv_store_.NewKv(*executor);
    bool done = false;
    UNREFT_CHECK(scheduler_.RunUntil([this] { return kv_store_.ready(); }, 100000));
    executor->Deliver(Duration{}, [&] {
      meta::Txn txn;
      txn.then.push_back(
          meta::PutOp{"unreft/job/" + name, record.SerializeAsString(), meta::LeaseId{}});
      kv->Commit(std::move(txn), [&](const auto& result) {
        UNREFT_CHECK(result.ok());
        done = true;
      });
    });
    UNREFT_CHECK(scheduler_.RunUntil([&] { return done; }, 100000));
    executor->Kill();
    Settle(std::chrono::milliseconds(100));
  }

  SimNetwork network_;
  FakeKvStore kv_store_;
  std::unique_ptr<NodeRecord> record_;
  std::unique_ptr<KeptRecords> kept_;
  RecordingNode node_;
  std::unique_ptr<SimExecutor> process_;
  std::unique_ptr<meta::Kv> kv_;
  std::unique_ptr<Transport> transport_;
  RecordingProtection protection_;
  std::unique_ptr<Member> member_;
  std::vector<std::unique_ptr<Other>> others_;
  Other* leader_ = nullptr;  // of them
};

}  // namespace unreft::smp
