// A Member (node 0) over a simulated meta store, and beside it node 1, which leads as far as the
// test says: it takes the member's reports and writes the job's records.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meta/job_store.h"
#include "meta/leased_key.h"
#include "smp/job/cluster_records.h"
#include "smp/job/member.h"
#include "tests/fakes/fake_kv.h"
#include "tests/fakes/sim_transport.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {

// The node's side: what it was told, and what it holds.
struct RecordingNode final : Coordinator::Node {
  void CloseTimeline(absl::AnyInvocable<void()> done) override {
    closing.push_back(std::move(done));
  }
  void ReopenTimeline() override { ++reopened; }
  void Verify(Version version, absl::AnyInvocable<void(absl::Status)> done) override {
    verified.push_back(version);
    if (verifies) return done(absl::OkStatus());
    verifying.push_back(std::move(done));
  }
  std::vector<HeldSlab> Inventory() override { return held; }
  std::vector<RottenSlab> RottenSlabs() override { return rotten; }
  std::vector<RegisteredTrainer> Registrations() override { return registered; }
  void OnRegistrationsChecked(const RegistrationCheck& check) override { checks.push_back(check); }
  void OnDecision(const JobDecision& decision) override { decisions.push_back(decision); }
  void OnCommitted(Version version) override { committed.push_back(version); }
  void OnAbandoned(Version version, const std::string& reason) override {
    abandoned.push_back({version, reason});
  }
  void OnCaptureFrom(Version first) override { capture_from = first; }
  void OnReplicasDisagree(const std::string& what) override { disagreements.push_back(what); }
  void OnPins(const PinRecord& record) override { pins.push_back(record); }
  uint64_t RanksServed() override { return ranks; }
  void OnObstacle(const std::string& what) override { obstacle = what; }
  void OnStanding(const Standing& standing) override { standings.push_back(standing); }
  void OnRefused(const absl::Status& why) override { refused.push_back(why); }

  struct Abandoned {
    Version version;
    std::string reason;
  };
  Version capture_from;
  std::vector<HeldSlab> held;
  std::vector<RottenSlab> rotten;
  std::vector<RegisteredTrainer> registered;
  std::vector<RegistrationCheck> checks;
  std::vector<absl::AnyInvocable<void()>> closing;
  int reopened = 0;
  std::vector<Version> verified;
  bool verifies = true;
  std::vector<absl::AnyInvocable<void(absl::Status)>> verifying;  // as it does not
  std::vector<JobDecision> decisions;
  std::vector<Version> committed;
  std::vector<Abandoned> abandoned;
  std::vector<std::string> disagreements;
  std::vector<PinRecord> pins;
  uint64_t ranks = 0;
  std::string obstacle;
  std::vector<Standing> standings;
  std::vector<absl::Status> refused;
};

inline Version At(uint64_t timeline, uint64_t step) { return {Timeline{timeline}, Step{step}}; }

// Timelines 1 to `newest`, each on step 10 * (its number - 1) of the one before.
inline TimelineRecord Chain(uint64_t newest, uint64_t round) {
  TimelineRecord record;
  for (uint64_t timeline = 1; timeline <= newest; ++timeline) {
    TimelineEntry& entry = *record.add_chain();
    entry.set_timeline(timeline);
    entry.set_parent_timeline(timeline - 1);
    entry.set_parent_step(10 * (timeline - 1));
  }
  record.set_round(round);
  return record;
}

inline TimelineRecord Decided(uint64_t timeline, uint64_t round, Version version) {
  TimelineRecord record = Chain(timeline, round);
  DecisionRecord& decision = *record.mutable_decision();
  decision.set_round(round);
  decision.set_timeline(timeline);
  const bool fresh = version == Version{};
  decision.set_kind(static_cast<uint32_t>(fresh ? DecisionKind::kFresh : DecisionKind::kRestored));
  decision.set_version_timeline(version.timeline.value);
  decision.set_version_step(version.step.value);
  return record;
}

inline CommitRecord Committed(Version version, uint64_t world = 2) {
  CommitRecord record;
  SetVersion(version, record);
  record.set_world(world);
  return record;
}

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
    UNREFT_CHECK(scheduler_.RunUntil([this] { return record_ != nullptr; }, 100000));
    InTurnOf(*process_, [this] {
      protection_ = std::make_unique<NoProtection>(*process_);
      member_ = std::make_unique<Member>(Member::Seams{*process_, *kv_, *transport_, random_, log_},
                                         *record_, node_, options_);
      member_->Start(*protection_);
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
    protection_.reset();
    transport_.reset();
    kv_.reset();
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
      other.peers = std::make_unique<Peers>(*other.transport, other.store->state(), "job",
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

  // A record of the job, as the leader writes it.
  template <typename Message>
  void Put(const std::string& name, const Message& record) {
    const auto executor = scheduler_.NewExecutor("writer");
    const auto kv = kv_store_.NewKv(*executor);
    bool done = false;
    executor->Deliver(Duration{}, [&] {
      meta::Txn txn;
      txn.then.push_back(
          meta::PutOp{"unreft/job/" + name, record.SerializeAsString(), meta::LeaseId{}});
      kv->Commit(std::move(txn), [&](auto) { done = true; });
    });
    UNREFT_CHECK(scheduler_.RunUntil([&] { return done; }, 100000));
    executor->Kill();
    Settle(std::chrono::milliseconds(100));
  }

  SimNetwork network_;
  FakeKvStore kv_store_;
  std::unique_ptr<NodeRecord> record_;
  RecordingNode node_;
  std::unique_ptr<SimExecutor> process_;
  std::unique_ptr<meta::Kv> kv_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Protection> protection_;
  std::unique_ptr<Member> member_;
  std::vector<std::unique_ptr<Other>> others_;
  Other* leader_ = nullptr;  // of them
};

}  // namespace unreft::smp
