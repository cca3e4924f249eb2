// A leader over a simulated meta store, and nodes of which a test says what they report.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "layout/manifest.h"
#include "meta/job_store.h"
#include "meta/leased_key.h"
#include "meta/record_copy.h"
#include "smp/job/cluster_records.h"
#include "smp/job/leader.h"
#include "smp/job/recorded.h"
#include "tests/fakes/capture_log_sink.h"
#include "tests/fakes/fake_kv.h"
#include "tests/fakes/sim_executor.h"
#include "tests/fakes/sim_transport.h"
#include "tests/unit/layout_testing.h"

namespace unreft::smp {

// What a node says and is; rank i is on node i, as long as the test says nothing else.
struct ReportingNode {
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Peers> peers;
  std::unique_ptr<meta::LeasedKey> presence;
  PresenceRecord record;
  NodeReport report;
  std::string kept;  // the copy of the records
  std::map<Version, VersionHolding> versions;
  std::map<Rank, layout::SlotManifest> registered;
  uint64_t manifests_asked = 0;
  ReportReply reply;           // to its last report
  std::set<Version> verified;  // that the leader asked for
  bool holds_answers = false;  // to Verify, until ReleaseAnswers lets them go
  std::vector<absl::AnyInvocable<void()>> held;
};

// RS(2,2), of four nodes if the test says nothing else.
class LeaderFixture : public ::testing::Test {
 protected:
  static constexpr uint64_t kNodes = 4;

  // `own_domains`: node i is in failure domain "hi". `to_come`: the job begins without so many.
  explicit LeaderFixture(uint64_t nodes = kNodes, bool own_domains = false, uint64_t to_come = 0)
      : world_(nodes), own_domains_(own_domains) {
    for (uint64_t slot = 0; slot < nodes; ++slot) homes_[NodeSlot{slot}] = {Rank{slot}};
    options_.job = "job";
    options_.nodes = nodes + to_come;
    options_.nodes_min = nodes;
    options_.data_chunks = 2;
    options_.parity_chunks = 2;
    options_.presence_ttl = std::chrono::seconds(1);
    options_.lost_grace = std::chrono::seconds(1);
    options_.version_deadline = std::chrono::seconds(20);
    options_.report_interval = std::chrono::milliseconds(100);
    options_.replica_check_every = 0;
    UNREFT_CHECK(scheduler_.RunUntil([this] { return kv_store_.ready(); }, 100000));
    InTurn([this] {
      kv_ = kv_store_.NewKv(*executor_);
      store_ = std::make_unique<meta::JobStore>(*kv_, *executor_, random_, log_, "job", [this] {
        if (leader_ != nullptr) leader_->RunRules();
      });
      store_->Start();
      leadership_ = std::make_unique<meta::LeasedKey>(
          *kv_, *executor_, log_, store_->LeaderKey(), options_.presence_ttl,
          [](const std::string&) { return true; }, [] {});
      PresenceRecord record;
      record.set_session(1);
      leadership_->Hold(record.SerializeAsString());
    });
    for (uint64_t slot = 0; slot < nodes; ++slot) Join(NodeSlot{slot});
    Settle();
    StartLeader();
    ReportAll();
    if (to_come > 0) Settle(options_.lost_grace);
    UNREFT_CHECK(view().number() == 1, "{}", view().DebugString());
  }
  ~LeaderFixture() override {
    for (const std::string& line : sink_.lines()) {
      if (HasFailure()) std::puts(line.c_str());
    }
    executor_->Kill();
    leader_.reset();
  }

  // Of the timeline of that number that the job has, or had before its store was lost.
  Version At(uint64_t number, uint64_t step) {
    for (const TimelineEntry& entry : store_->state().timeline.value.chain()) {
      const Timeline timeline{entry.timeline()};
      timelines_[NumberOf(timeline)] = timeline;
    }
    const auto found = timelines_.try_emplace(number, Timeline{number << kTimelineIdBits}).first;
    return {found->second, Step{step}};
  }

  void InTurn(absl::FunctionRef<void()> body) {
    bool done = false;
    executor_->Deliver(Duration{}, [&] {
      body();
      done = true;
    });
    UNREFT_CHECK(scheduler_.RunUntil([&] { return done; }, 100000));
  }
  void Settle(Duration duration = std::chrono::milliseconds(500)) { scheduler_.RunFor(duration); }

  // As a leader that knows nothing yet.
  void StartLeader() {
    InTurn([this] {
      leader_.reset();
      leader_ =
          std::make_unique<Leader>(*executor_, *store_, *nodes_.at(NodeSlot{0}).peers, random_,
                                   log_, options_, leadership_->holding(), copies_, nullptr);
      leader_->RunRules();
    });
  }

  // A daemon in that slot; of new memory, if there was one before.
  ReportingNode& Join(NodeSlot slot, const std::string& life = "a") {
    nodes_.erase(slot);
    ReportingNode& node = nodes_[slot];
    InTurn([&] {
      const std::string address = fmt::format("node{}", slot);
      node.transport = *network_.NewTransport(*executor_, address);
      node.peers = std::make_unique<Peers>(*executor_, *node.transport, store_->state(), "job",
                                           slot, RandomId{});
      Serve(node);
      node.record.set_slot(slot.value);
      node.record.set_incarnation(Memory(slot, life));
      node.record.set_session(1);
      node.record.set_address(address);
      if (own_domains_) node.record.set_failure_domain(fmt::format("h{}", slot));
      ShowPresence(node);
      node.report.set_session(1);
      node.report.set_incarnation(Memory(slot, life));
    });
    return node;
  }
  void ShowPresence(ReportingNode& node) {
    node.presence = std::make_unique<meta::LeasedKey>(
        *kv_, *executor_, log_, store_->PresenceKey(NodeSlot{node.record.slot()}),
        options_.presence_ttl,
        [memory = node.record.incarnation()](const std::string& value) {
          PresenceRecord other;
          return other.ParseFromString(value) && other.incarnation() == memory;
        },
        [] {});
    node.presence->Hold(node.record.SerializeAsString());
  }
  // The next process of its daemon, on the same memory.
  void StartAgain(NodeSlot slot) {
    ReportingNode& node = nodes_.at(slot);
    node.record.set_session(node.record.session() + 1);
    node.report.set_session(node.record.session());
    node.report.set_number(0);
    InTurn([&] { ShowPresence(node); });
    Settle();
  }
  // A daemon that waits for a slot.
  void AddSpare(uint64_t place, const std::string& failure_domain = "") {
    SpareRecord record;
    record.mutable_presence()->set_incarnation(fmt::format("spare{}", place));
    record.mutable_presence()->set_session(1);
    record.mutable_presence()->set_address(fmt::format("node{}", place));
    record.mutable_presence()->set_failure_domain(failure_domain);
    record.mutable_presence()->set_place(place);
    HoldWithLease(spares_[place], store_->SpareKey(place), record);
  }
  // The daemon of an earlier memory of that slot, at the slot's own place, with so many ranks.
  void ComeBack(NodeSlot slot, uint64_t ranks, const std::string& life = "a") {
    WaitingRecord record;
    record.mutable_presence()->set_slot(slot.value);
    record.mutable_presence()->set_incarnation(Memory(slot, life));
    record.mutable_presence()->set_session(2);
    record.mutable_presence()->set_address(fmt::format("node{}", slot));
    record.mutable_presence()->set_place(slot.value);
    record.set_ranks(ranks);
    HoldWithLease(waiting_[slot.value], store_->WaitingKey(slot.value), record);
  }
  template <typename Message>
  void HoldWithLease(std::unique_ptr<meta::LeasedKey>& key, std::string name, Message record) {
    InTurn([&] {
      key = std::make_unique<meta::LeasedKey>(
          *kv_, *executor_, log_, std::move(name), options_.presence_ttl,
          [](const std::string&) { return true; }, [] {});
      key->Hold(record.SerializeAsString());
    });
    Settle();
    InTurn([&] {
      record.set_lease(static_cast<int64_t>(key->lease().value));
      key->Hold(record.SerializeAsString());
    });
    Settle();
  }

  static std::string Memory(NodeSlot slot, const std::string& life) {
    return fmt::format("{}{}", life, slot);
  }
  // SIGTERM.
  void SayGoodBye(NodeSlot slot) {
    ReportingNode& node = nodes_.at(slot);
    PresenceRecord last = node.record;
    last.set_leaving(true);
    InTurn([&] { node.presence->Leave(last.SerializeAsString(), [] {}); });
    Settle(std::chrono::milliseconds(100));
  }
  // Its daemon is gone; long enough, and it is lost.
  void Leave(NodeSlot slot) {
    InTurn([&] { nodes_.erase(slot); });
    Settle(std::chrono::seconds(4));
  }

  void Serve(ReportingNode& node) {
    node.peers->Answer<ManifestRequest, ManifestReply>(
        "manifests", [this, &node](NodeSlot, const ManifestRequest& request, auto done) {
          ManifestReply reply;
          ++node.manifests_asked;
          for (const auto& [rank, manifest] : node.registered) {
            if (request.registered()) reply.add_manifests(layout::EncodeManifest(manifest));
          }
          for (std::string& bytes : ManifestsOf(node, VersionOf(request))) {
            reply.add_manifests(std::move(bytes));
          }
          done(std::move(reply));
        });
    node.peers->Answer<KeptRequest, KeptReply>("kept",
                                               [&node](NodeSlot, const KeptRequest&, auto done) {
                                                 KeptReply reply;
                                                 reply.set_copy(node.kept);
                                                 done(std::move(reply));
                                               });
    node.peers->Answer<VerifyRequest, VerifyReply>(
        "verify", [this, &node](NodeSlot, const VerifyRequest& request, auto done) {
          if (request.session() != node.record.session()) {
            return done(absl::FailedPreconditionError("another process was asked for"));
          }
          const Version version = VersionOf(request);
          node.verified.insert(version);
          node.held.push_back([this, &node, version, done = std::move(done)]() mutable {
            VerifyReply reply;
            for (const auto& [held, holding] : node.versions) *reply.add_versions() = holding;
            for (std::string& bytes : ManifestsOf(node, version)) {
              reply.add_manifests(std::move(bytes));
            }
            node.report.set_number(node.report.number() + 1);
            reply.set_report_number(node.report.number());
            done(std::move(reply));
          });
          if (!node.holds_answers) AnswerHeld(node);
        });
  }
  static void AnswerHeld(ReportingNode& node) {
    for (auto& answer : std::exchange(node.held, {})) answer();
  }
  void ReleaseAnswers(NodeSlot slot) {
    InTurn([&] { AnswerHeld(nodes_.at(slot)); });
    Settle();
  }

  // Of the ranks that are sealed on the node, and of those it has copies of.
  std::vector<std::string> ManifestsOf(const ReportingNode& node, Version version) {
    std::vector<std::string> manifests;
    const auto found = node.versions.find(version);
    if (found == node.versions.end()) return manifests;
    for (const SealedRank& sealed : found->second.sealed()) {
      manifests.push_back(ManifestOf(version, Rank{sealed.rank()}));
    }
    for (const DescriptionHolding& description : found->second.descriptions()) {
      for (const uint64_t rank : description.ranks()) {
        manifests.push_back(ManifestOf(version, Rank{rank}));
      }
    }
    return manifests;
  }
  std::string ManifestOf(Version version, Rank rank) const {
    layout::SlotManifest manifest;
    manifest.job = "job";
    manifest.version = version;
    manifest.rank = rank;
    manifest.world = world_;
    manifest.tensors = {Whole(fmt::format("w{}", rank), {4})};
    manifest.layout_digest = 7 + rank.value;
    manifest.block_bytes = 64;
    if (capture_all_.contains(rank)) manifest.capture_mode = layout::CaptureMode::kFull;
    return layout::EncodeManifest(manifest);
  }

  // --- what nodes hold ---

  // As a trainer of the node does.
  void Register(NodeSlot slot, Rank rank, std::vector<TensorSpec> tensors, uint64_t attempt = 1) {
    ReportingNode& node = nodes_.at(slot);
    const absl::StatusOr<layout::TensorTable> table = layout::TensorTable::Create(tensors);
    UNREFT_CHECK(table.ok(), "{}", table.status().message());
    layout::SlotManifest& manifest = node.registered[rank];
    manifest.job = "job";
    manifest.rank = rank;
    manifest.world = world_;
    manifest.attempt = Attempt{attempt};
    manifest.block_bytes = 64;
    manifest.tensors = std::move(tensors);
    manifest.layout_digest =
        layout::CapturePlan::Make(*table, layout::CaptureMode::kSharded).digest();
    node.report.clear_registered();
    for (const auto& [registered, known] : node.registered) {
      RegisteredRank& entry = *node.report.add_registered();
      entry.set_rank(registered.value);
      entry.set_world(known.world);
      entry.set_attempt(known.attempt.value);
      entry.set_layout_digest(known.layout_digest);
    }
  }

  // A rank's slab of the version.
  void Seal(NodeSlot slot, Version version, Rank rank) {
    VersionHolding& holding = nodes_.at(slot).versions[version];
    SetVersion(version, holding);
    SealedRank& sealed = *holding.add_sealed();
    sealed.set_rank(rank.value);
    sealed.set_world(world_);
    sealed.set_layout_digest(7 + rank.value);
  }
  // A complete guard, encoded of what `ranks` says each member has.
  void Guard(NodeSlot slot, Version version, const std::map<NodeSlot, std::vector<Rank>>& ranks,
             const std::string& life = "a") {
    VersionHolding& holding = nodes_.at(slot).versions[version];
    SetVersion(version, holding);
    holding.set_guarded(true);
    holding.set_coding(11);
    for (uint64_t member = 0; member < kNodes; ++member) {
      EncodedMember& encoded = *holding.add_encoded();
      encoded.set_slot(member);
      encoded.set_incarnation(Memory(NodeSlot{member}, life));
    }
    for (uint64_t back = 1; back <= 2; ++back) {
      const NodeSlot of{(slot.value + kNodes - back) % kNodes};
      DescriptionHolding& description = *holding.add_descriptions();
      description.set_slot(of.value);
      const auto found = ranks.find(of);
      if (found == ranks.end()) continue;
      for (const Rank rank : found->second) description.add_ranks(rank.value);
      description.set_world(world_);
    }
  }
  // Ranks 0, 1, ... on the nodes of these numbers, all sealed and guarded everywhere.
  void Protect(Version version) {
    for (const auto& [slot, ranks] : homes_) {
      for (const Rank rank : ranks) Seal(slot, version, rank);
    }
    for (auto& [slot, node] : nodes_) Guard(slot, version, homes_);
  }

  void Report(NodeSlot slot) {
    ReportingNode& node = nodes_.at(slot);
    InTurn([&] {
      node.report.set_number(node.report.number() + 1);
      node.report.clear_versions();
      for (const auto& [version, holding] : node.versions) *node.report.add_versions() = holding;
      Apply(node);
      const absl::StatusOr<ReportReply> reply =
          leader_->OnReport(slot, node.report.SerializeAsString());
      UNREFT_CHECK(reply.ok(), "{}", reply.status().message());
      node.reply = *reply;
    });
  }
  void ReportAll() {
    for (auto& [slot, node] : nodes_) Report(slot);
    Settle();
  }
  // As a member does what the store says, unless it has gone back.
  void Apply(ReportingNode& node) const {
    const meta::JobState& job = store_->state();
    NodeReport& report = node.report;
    report.set_view(std::max(report.view(), view().number()));
    if (job.stamp() < meta::Stamp{report.kept_epoch(), report.kept_sequence()}) return;
    node.kept = meta::EncodeCopy(job);
    report.set_kept_epoch(job.stamp().epoch);
    report.set_kept_sequence(job.stamp().sequence);
    const TimelineRecord& timeline = job.timeline.value;
    const uint64_t newest = timeline.chain().empty() ? 0 : timeline.chain().rbegin()->timeline();
    if (newest < report.newest_timeline()) return;
    report.set_round_applied(timeline.decision().round());
    report.set_round_closed(timeline.closing() ? timeline.round() : 0);
    report.set_newest_timeline(newest);
  }

  // The meta store comes back empty, or as it was in that copy, after the leader has gone; another
  // leads.
  void LoseStore(const FakeKvStore::Copy* copy = nullptr) {
    InTurn([&] { leader_.reset(); });
    kv_store_.Kill();
    copy == nullptr ? kv_store_.LoseData() : kv_store_.RollBack(*copy);
    kv_store_.Restart();
    Settle(std::chrono::seconds(15));
    StartLeader();
    Settle();
  }

  // Every rank asks on its node; then the nodes close and tell what they hold.
  void Ask(uint64_t attempt) {
    for (auto& [slot, node] : nodes_) {
      node.report.set_attempt(attempt);
      node.report.set_world(world_);
      node.report.clear_asking();
      for (const Rank rank : homes_[slot]) {
        AskingRank& asking = *node.report.add_asking();
        asking.set_rank(rank.value);
        asking.set_pid(static_cast<int64_t>(100 * attempt + rank.value));
      }
    }
    ReportAll();
    ReportAll();
    Settle();
    for (auto& [slot, node] : nodes_) node.report.clear_asking();
    ReportAll();
  }

  const ViewRecord& view() const { return store_->state().view.value; }
  const CommitRecord& commit() const { return store_->state().commit.value; }
  const DecisionRecord& decision() const { return store_->state().timeline.value.decision(); }
  bool IsAbandoned(Version version) const {
    return smp::IsAbandoned(store_->state().abandoned.value, version);
  }
  Step CaptureFrom() const {
    return smp::CaptureFrom(store_->state().abandoned.value,
                            NewestTimeline(store_->state().timeline.value));
  }
  const std::string& WhyGivenUp() const { return store_->state().abandoned.value.reason(); }

  SimScheduler scheduler_{1};
  SimNetwork network_{scheduler_};
  FakeKvStore kv_store_{scheduler_, 1};
  CaptureLogSink sink_;
  Log log_{sink_};
  Random random_{3};
  NodeOptions options_;
  DurableCopies* copies_ = nullptr;
  uint64_t world_;
  const bool own_domains_;
  std::set<Rank> capture_all_;  // ranks that capture all they hold, not a part
  std::map<NodeSlot, std::vector<Rank>> homes_;
  std::unique_ptr<SimExecutor> executor_ = scheduler_.NewExecutor("leader");
  std::unique_ptr<meta::Kv> kv_;
  std::unique_ptr<meta::JobStore> store_;
  std::unique_ptr<meta::LeasedKey> leadership_;
  std::map<NodeSlot, ReportingNode> nodes_;
  std::map<uint64_t, Timeline> timelines_;  // by number
  std::map<uint64_t, std::unique_ptr<meta::LeasedKey>> spares_;
  std::map<uint64_t, std::unique_ptr<meta::LeasedKey>> waiting_;
  std::unique_ptr<Leader> leader_;
};

}  // namespace unreft::smp
