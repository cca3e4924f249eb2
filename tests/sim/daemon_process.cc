#include "tests/sim/daemon_process.h"

#include <utility>

#include "base/check.h"
#include "base/node_header.h"
#include "smp/job/recorded.h"
#include "tests/sim/cluster/lying_kv.h"
#include "tests/sim/cluster/lying_transport.h"

namespace unreft::sim {
namespace {

// As Daemon has it.
constexpr Duration kGoodByeMax = std::chrono::milliseconds(200);

}  // namespace

DaemonProcess::DaemonProcess(Machine& machine, smp::NodeOptions options, Duration work_max,
                             ClusterSeams* cluster, bool is_spare)
    : machine_(machine),
      cluster_(cluster),
      is_spare_(is_spare),
      life_(machine.processes.Start()),
      executor_(machine.scheduler.NewExecutor("daemon", machine.host())),
      segments_(machine),
      random_(machine.scheduler.random().Next()),
      log_(machine.sink, LogLevel::kInfo, fmt::format("daemon {}", life_.pid)),
      processes_(machine.processes, *executor_, life_),
      pool_(std::make_unique<SimWorkPool>(*executor_,
                                          SimWorkPoolOptions{.work_duration_max = work_max})) {
  machine_.trace.Add("daemon {} starts", life_.pid);
  executor_->Deliver(Duration(1), [this, options = std::move(options)] { Start(options); });
}

DaemonProcess::~DaemonProcess() {
  executor_->Kill();
  machine_.processes.End(life_);
  machine_.trace.Add("daemon {} is gone", life_.pid);
}

void DaemonProcess::Stop(Task left) {
  executor_->Deliver(Duration{}, [this, left = std::move(left)]() mutable {
    if (!std::exchange(leaving_, true)) machine_.trace.Add("daemon {} leaves", life_.pid);
    const auto left_once = std::make_shared<Task>(std::move(left));
    const auto leave = [this, left_once] {
      if (Task left = std::exchange(*left_once, nullptr)) Leave(std::move(left));
    };
    executor_->After(kGoodByeMax, leave);
    const auto said = [this, leave] { executor_->Post(leave); };
    if (node_ != nullptr) return node_->Leave(said);
    if (spare_ != nullptr) return spare_->Leave(said);
    leave();
  });
}

void DaemonProcess::Leave(Task left) {
  started_ = false;
  listener_.reset();
  node_.reset();
  spare_.reset();
  transport_.reset();
  kv_.reset();
  own_meta_.reset();
  machine_.kernel->Deliver(Duration{}, std::move(left));
}

void DaemonProcess::Start(smp::NodeOptions options) {
  if (leaving_) return;
  PlantBug();
  records_ = *FakeRecordStore::Open(machine_.disk, *executor_);
  smp::NodeSeams seams{*executor_, *pool_, random_, segments_, *records_, processes_, log_};
  if (cluster_ != nullptr) {
    auto transport =
        *cluster_->network.NewTransport(*executor_, fmt::format("node{}", machine_.slot));
    // What is a lie is looked at, too.
    transport_ = LieOver(machine_, cluster_->reads.Watch(machine_.slot, std::move(transport)));
    kv_ = LieOver(machine_, cluster_->store.NewKv(*executor_));
    seams.transport = transport_.get();
    seams.kv = kv_.get();
    return Serve(seams, std::move(options));
  }
  own_meta_ = std::make_unique<smp::OwnMeta>(*executor_, random_);
  seams.transport = &own_meta_->transport();
  seams.kv = &own_meta_->kv();
  own_meta_->Start([this, seams, options = std::move(options)] { Serve(seams, options); });
}

void DaemonProcess::Serve(smp::NodeSeams seams, smp::NodeOptions options) {
  if (leaving_) return;
  if (is_spare_) {
    StartSpare(seams, std::move(options));
  } else {
    StartNode(seams, std::move(options));
  }
  listener_ = *machine_.network.Listen(*executor_, kSocketPath);
  listener_->Start([this](std::unique_ptr<Channel> channel, PeerIdentity peer) {
    if (spare_ != nullptr) return spare_->Accept(std::move(channel), peer);
    node_->Accept(std::move(channel), peer);
  });
}

void DaemonProcess::StartSpare(smp::NodeSeams seams, smp::NodeOptions options) {
  spare_ = std::make_unique<smp::Spare>(seams, options);
  spare_->Start(machine_.boot_id, [this, seams, options](absl::StatusOr<NodeSlot> slot) {
    if (!slot.ok()) return OnStarted(slot.status());
    // Not in a callback of what goes.
    executor_->Post([this, seams, options, slot = *slot]() mutable {
      if (leaving_) return;
      spare_.reset();
      options.node = slot;
      StartNode(seams, std::move(options));
    });
  });
}

void DaemonProcess::StartNode(smp::NodeSeams seams, smp::NodeOptions options) {
  node_ = std::make_unique<smp::Node>(seams, options);
  if (cluster_ != nullptr && cluster_->shelf != nullptr) {
    drain_ = std::make_unique<SimDrain>(*executor_, segments_, random_, *cluster_->shelf);
    node_->set_drain(drain_.get(),
                     {.directory = DurableShelf::kDirectory, .every = std::chrono::hours(1000)});
  }
  node_->set_on_ended([this, seams, options](const absl::Status& why) {
    if (!why.ok()) return Fail(why);
    if (is_spare_) BeSpareAgain(seams, options);
  });
  node_->Start(machine_.boot_id, [this](absl::Status status) { OnStarted(std::move(status)); });
}

// As Daemon does.
void DaemonProcess::BeSpareAgain(smp::NodeSeams seams, smp::NodeOptions options) {
  executor_->Post([this, seams, options]() mutable {
    if (node_ == nullptr) return;
    started_ = false;
    node_.reset();
    options.node = NodeSlot{options.place.value_or(options.node.value)};
    StartSpare(seams, std::move(options));
  });
}

void DaemonProcess::OnStarted(absl::Status status) {
  started_ = status.ok();
  if (!started_) return Fail(std::move(status));
  committed_seen_ = node_->state().record->committed();
  // Of the disk's copies that of the records may be the newer one.
  newest_seen_ = std::max(node_->state().record->chain().newest(),
                          smp::NewestTimeline(node_->member()->records().timeline.value));
}

// In a cluster it depends on the others whether it may be.
void DaemonProcess::Fail(absl::Status why) {
  failure_ = std::move(why);
  machine_.trace.Add("daemon {} ends: {}", life_.pid, failure_.ToString());
  if (cluster_ != nullptr || absl::IsResourceExhausted(failure_)) return;
  machine_.trace.Fail("the daemon ends, and no memory is short");
}

void DaemonProcess::PlantBug() {
  if (machine_.bug == PlantedBug::kForgetsNodeSegment) {
    (void)segments_.Remove(machine_.prefix() + "node");
    machine_.disk.Wipe();
  }
  if (machine_.bug == PlantedBug::kGoesBack) {
    const auto node = segments_.Open(machine_.prefix() + "node", Access::kReadWrite, 0, 0);
    absl::StatusOr<NodeBody> body = absl::NotFoundError("none");
    // A daemon that was killed early has left one without its pages.
    const bool has_pages = node.ok() && (*node)->Reserve(0, (*node)->bytes().size()).ok();
    if (has_pages) body = ReadNodeBody((*node)->bytes());
    if (body.ok() && body->committed_step > 0) {
      --body->committed_step;
      WriteNodeBody((*node)->bytes(), *body);
    }
  }
  if (machine_.bug == PlantedBug::kLosesSlots) {
    const std::vector<SegmentInfo> slots = *segments_.List(machine_.prefix() + "slot");
    for (const SegmentInfo& slot : slots) (void)segments_.Remove(slot.name);
  }
}

void DaemonProcess::AfterEvent() {
  if (!started_) return;
  const smp::NodeState& state = node_->state();
  const smp::NodeRecord& record = *state.record;
  const TimelineRecord& timelines = node_->member()->records().timeline.value;
  const bool failed = timelines.decision().kind() == static_cast<uint32_t>(DecisionKind::kFailed);
  // One that failed may be read together with the one before, that did not.
  const DecisionRecord& decision = failed ? timelines.in_force() : timelines.decision();
  const bool decided =
      std::exchange(decisions_seen_, state.counters.decisions) != state.counters.decisions;
  const Timeline timeline = record.chain().newest();
  if (decided && decision.round() != 0 &&
      machine_.history.IsNewDecision(decision.SerializeAsString())) {
    // Of all that memory holds after the decision: it may take away only what is not on the chain.
    machine_.history.OnDecided(timeline, record.chain().ParentOf(timeline).value_or(Version{}),
                               machine_.observer.NewestWhole(), machine_.trace.now());
  } else if (timeline != newest_seen_ && !decided) {
    machine_.history.OnFreshStart(timeline);
  }
  newest_seen_ = timeline;
  if (decided && !failed) committed_seen_ = record.committed();
  if (record.committed() != committed_seen_ && record.committed_world() != 0) {
    committed_seen_ = record.committed();
    machine_.history.OnCommitted(committed_seen_, record.committed_world());
  }
}

}  // namespace unreft::sim
