#include "tests/sim/control_plane/control_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "base/check.h"
#include "layout/digest.h"
#include "smp/job/cluster_records.h"
#include "tests/fakes/fake_record_store.h"

namespace unreft::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint32_t kDataChunks = 6;
constexpr uint32_t kParityChunks = 2;
// Bounds of virtual time: what has not come by then never comes.
constexpr Duration kRunMax = seconds(120);
// Ranks come to a step, and have captured it, within so long; what a step takes besides.
constexpr Duration kClaimSpread = milliseconds(20);
constexpr Duration kCapture = milliseconds(200);
constexpr Duration kCaptureSpread = milliseconds(100);
constexpr Duration kGuardSpread = milliseconds(50);
// Bytes of the leader's node that its ranks read or write: about what one processor copies.
constexpr double kUsedPerSecond = 10e9;

}  // namespace

struct ControlJob::Node {
  Node(SimScheduler& scheduler, uint64_t nodes, uint64_t index, uint64_t ranks)
      : slot{index},
        disk(index + 1),
        executor(scheduler.NewExecutor(fmt::format("node{}", index), host())) {
    options.job = "job";
    options.node = slot;
    options.nodes = nodes;
    options.data_chunks = kDataChunks;
    options.parity_chunks = kParityChunks;
    options.ranks_max = ranks;
    // The store's own pace is not what is measured: nobody is to be lost while all join.
    options.presence_ttl = std::chrono::hours(1);
    options.call_timeout = seconds(60);
    trainers = std::make_unique<StandInTrainers>(options, index, ranks);
  }

  uint64_t host() const { return slot.value + 1; }

  const NodeSlot slot;
  smp::NodeOptions options;
  FakeHostMemory memory{uint64_t{16} << 20};
  FakeSegmentStore segments{memory};
  FakeDisk disk;
  std::unique_ptr<SimExecutor> executor;
  std::unique_ptr<FakeRecordStore> records;
  std::unique_ptr<meta::Kv> kv;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<smp::NodeRecord> record;
  std::unique_ptr<smp::KeptRecords> kept;
  std::unique_ptr<StandInTrainers> trainers;
  std::unique_ptr<StandInGuards> guards;
  std::unique_ptr<smp::Member> member;
  std::vector<NodeSlot> group;  // all members of it, this one included
  Version guarded;              // the newest for which its guard was begun
};

ControlJob::ControlJob(uint64_t nodes, uint64_t ranks)
    : boot_id_(random_.NextId()),
      network_(scheduler_),
      store_(scheduler_, 3,
             {.call_timeout = seconds(60),
              .engine = {.calls_max = 16 * nodes, .watches_max = 16 * nodes}}),
      ranks_(ranks) {
  Run([&] { return store_.ready(); }, "the store starts");
  for (uint64_t i = 0; i < nodes; ++i) {
    nodes_.push_back(std::make_unique<Node>(scheduler_, nodes, i, ranks));
  }
  StartAll();
  const auto is_member = [&](const auto& node) {
    const auto& members = node->member->job().view.value.members();
    return static_cast<uint64_t>(members.size()) == nodes;
  };
  size_t joined = 0;
  Run(
      [&] {
        while (joined < nodes && is_member(nodes_[joined])) ++joined;
        return joined == nodes;
      },
      "all nodes are members");
  const ViewRecord& view = nodes_.front()->member->job().view.value;
  for (const Group& group : view.groups()) {
    for (const uint64_t slot : group.slots()) {
      for (const uint64_t member : group.slots()) {
        nodes_[slot]->group.push_back(NodeSlot{member});
      }
    }
  }
}

ControlJob::~ControlJob() {
  for (auto& node : nodes_) {
    node->executor->Kill();
    node->member.reset();
    node->guards.reset();
    node->transport.reset();
    node->kv.reset();
    node->kept.reset();
    node->record.reset();
    node->records.reset();
  }
}

void ControlJob::StartAll() {
  std::vector<Node*> starting;
  for (const auto& node : nodes_) starting.push_back(node.get());
  std::ranges::shuffle(starting, std::minstd_rand(1));
  const Node& first = *starting.front();
  scheduler_.RunBy(first.host(), [this](Task turn) { RunLeader(std::move(turn)); });
  for (Node* node : starting) {
    Start(*node);
    if (node == &first) Run([&] { return first.member->leads(); }, "the first node leads");
  }
}

void ControlJob::Start(Node& node) {
  node.kv = store_.NewKv(*node.executor);
  node.transport = *network_.NewTransport(*node.executor, node.executor->name());
  node.records = *FakeRecordStore::Open(node.disk, *node.executor);
  node.executor->Deliver(Duration{}, [&] {
    smp::NodeRecord::Open(node.segments, *node.records, random_, log_,
                          smp::MemoryPrefix(node.options) + ".node", boot_id_,
                          [&](auto record) { node.record = *std::move(record); });
  });
  node.executor->Deliver(Duration{}, [&] {
    smp::KeptRecords::Open(*node.executor, node.segments, *node.records, log_,
                           smp::MemoryPrefix(node.options) + ".records", node.options.nodes,
                           [&](auto kept) { node.kept = *std::move(kept); });
  });
  Run([&] { return node.record && node.kept; }, "a node has its records");
  bool started = false;
  node.executor->Deliver(Duration{}, [&] {
    node.guards = std::make_unique<StandInGuards>(*node.executor);
    node.member = std::make_unique<smp::Member>(
        smp::Member::Seams{*node.executor, *node.kv, *node.transport, random_, log_}, *node.record,
        *node.kept, *node.trainers, node.options);
    node.member->Start(*node.guards);
    started = true;
  });
  Run([&] { return started; }, "a member starts");
}

void ControlJob::Run(absl::FunctionRef<bool()> until, const char* what) {
  const Duration end = scheduler_.now() + kRunMax;
  while (!until()) {
    const bool ran = scheduler_.RunOne();
    if (ran && scheduler_.now() < end) continue;
    for (const std::string& line : sink_.lines()) fmt::print(stderr, "{}\n", line);
    UNREFT_CHECK(false, "within its bound: {}", what);
  }
}

// What ranks have used since the turn before is in the caches in place of what that turn left.
void ControlJob::RunLeader(Task turn) {
  const Duration now = scheduler_.now();
  const std::chrono::duration<double> since = now - std::exchange(trained_until_, now);
  if (trains_) leader_thread_.LetOthersUse(static_cast<size_t>(since.count() * kUsedPerSecond));
  leader_thread_.Run(std::move(turn));
}

ControlJob::Cost ControlJob::Spent() const {
  return {leader_thread_.cpu_ms(), network_.counts().sent};
}

ControlJob::Cost ControlJob::Decide() {
  ++attempt_;
  const Cost before = Spent();
  for (auto& node : nodes_) {
    node->executor->Deliver(scheduler_.RandomDelay(kCaptureSpread), [this, &node = *node] {
      node.trainers->Register(Attempt{attempt_});
      node.member->CheckRegistrations();
      node.member->AskDecision(Attempt{attempt_}, node.trainers->world(),
                               node.trainers->Askers(attempt_));
    });
  }
  size_t told = 0;
  Run(
      [&] {
        while (told < nodes_.size()) {
          const auto& decision = nodes_[told]->trainers->decision();
          if (!decision || decision->attempt != Attempt{attempt_}) return false;
          ++told;
        }
        return true;
      },
      "all nodes hear of the decision");
  const smp::JobDecision& decision = *nodes_.front()->trainers->decision();
  UNREFT_CHECK(decision.kind != DecisionKind::kFailed, "a job without faults is decided");
  UNREFT_CHECK(decision.version == newest_, "what was committed last is restored");
  newest_ = {decision.timeline, decision.version.step};
  return Spent() - before;
}

ControlJob::Cost ControlJob::CommitNext() {
  const Version version{newest_.timeline, Step{newest_.step.value + 1}};
  const Cost before = Spent();
  for (auto& node : nodes_) {
    for (uint64_t i = 0; i < ranks_; ++i) {
      const Rank rank = node->trainers->rank(i);
      const Duration claimed = scheduler_.RandomDelay(kClaimSpread);
      node->executor->Deliver(claimed, [&node = *node, version, rank] {
        node.trainers->Claim(version, rank);
        node.member->ReportClaimed(version, rank);
      });
      const Duration sealed = kCapture + scheduler_.RandomDelay(kCaptureSpread);
      node->executor->Deliver(claimed + sealed, [this, &node = *node, version, rank] {
        node.trainers->Seal(version, rank);
        node.member->ReportSealed(version, rank);
        for (const NodeSlot slot : node.group) Protect(*nodes_[slot.value], version);
      });
    }
  }
  size_t told = 0;
  Run(
      [&] {
        while (told < nodes_.size() && nodes_[told]->trainers->committed() == version) ++told;
        return told == nodes_.size();
      },
      "all nodes hear of the commit");
  for (const auto& node : nodes_) {
    UNREFT_CHECK(node->trainers->abandoned() == 0, "a job without faults gives nothing up");
  }
  newest_ = version;
  return Spent() - before;
}

bool ControlJob::IsWholeOf(const Node& node, Version version) const {
  return std::ranges::all_of(node.group, [&](NodeSlot slot) {
    return nodes_[slot.value]->trainers->Sealed(version).size() == ranks_;
  });
}

// Its guard is complete some time after the group has sealed all slabs.
void ControlJob::Protect(Node& node, Version version) {
  if (node.guarded == version || !IsWholeOf(node, version)) return;
  node.guarded = version;
  node.executor->Deliver(scheduler_.RandomDelay(kGuardSpread), [this, &node, version] {
    smp::GuardHeld guard;
    guard.version = version;
    guard.complete = true;
    guard.coding =
        layout::Digest64(fmt::format("{} of {}", version.step.value, node.group[0].value));
    guard.data_chunks = kDataChunks;
    const size_t n = node.group.size();
    const size_t own =
        static_cast<size_t>(std::ranges::find(node.group, node.slot) - node.group.begin());
    for (const NodeSlot slot : node.group) {
      const Node& member = *nodes_[slot.value];
      guard.encoded.push_back(
          {slot, smp::AsBytes(member.record->incarnation()), member.trainers->Sealed(version)});
    }
    for (size_t i = 1; i <= kParityChunks; ++i) {
      const Node& before = *nodes_[node.group[(own + n - i) % n].value];
      guard.descriptions.push_back(
          {before.slot, before.trainers->Sealed(version), before.trainers->world()});
    }
    node.guards->Complete(std::move(guard));
    node.member->ReportProtection();
  });
}

}  // namespace unreft::sim
