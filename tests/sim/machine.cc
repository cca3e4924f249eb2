#include "tests/sim/machine.h"

#include <span>

#include "meta/record_copy.h"
#include "smp/job/cluster_records.h"

namespace unreft::sim {
namespace {

// More than processes are started on a machine.
constexpr uint64_t kUpApart = 1'000'000;

// As its daemon has kept it.
std::optional<Version> CommitOn(const FakeDisk& disk) {
  const auto record = disk.applied().find("kept");
  if (record == disk.applied().end()) return std::nullopt;
  const auto kept = meta::DecodeCopy(std::as_bytes(std::span(record->second)));
  if (!kept.ok() || kept->records.commit.value.world() == 0) return std::nullopt;
  return smp::VersionOf(kept->records.commit.value);
}

}  // namespace

Machine::Machine(World& world, NodeSlot node, std::optional<NodeSlot> named)
    : slot(node),
      number(named.value_or(node)),
      scheduler(world.scheduler),
      trace(world.trace),
      sink(world.sink),
      history(world.history),
      tensors(world.tensors),
      bug(world.bug),
      observer(trace, history, tensors),
      disk(scheduler.random().Next()),
      processes(slot.value * kUpApart),
      network(scheduler),
      boot_id(scheduler.random().NextId()),
      kernel(scheduler.NewExecutor("kernel", host())) {
  memory = std::make_unique<FakeHostMemory>(memory_bytes_);
  observer.Watch(*memory, prefix());
}

Machine::~Machine() = default;

void Machine::Reboot() {
  disk.CrashHost();
  memory = std::make_unique<FakeHostMemory>(memory_bytes_);
  observer.Watch(*memory, prefix());
  boot_id = scheduler.random().NextId();
  history.OnReboot(CommitOn(disk));
  if (bug == PlantedBug::kForgetsCommit) disk.Wipe();
}

Machine::Host Machine::Replace() {
  disk.CrashHost();
  Host host{std::move(memory), boot_id, disk.synced()};
  disk.Wipe();
  memory = std::make_unique<FakeHostMemory>(memory_bytes_);
  observer.Watch(*memory, prefix());
  boot_id = scheduler.random().NextId();
  return host;
}

void Machine::ComeBack(Host host) {
  disk.CrashHost();
  disk.Replace(std::move(host.records));
  memory = std::move(host.memory);
  FreeMemory();
  boot_id = host.boot_id;
  observer.Watch(*memory, prefix());
  for (const std::string& name : memory->Names()) observer.OnReturned(name);
}

std::string Machine::prefix() const { return SegmentPrefix(kJob, number.value); }

absl::StatusOr<std::unique_ptr<Segment>> ObservedSegments::Create(const std::string& name,
                                                                  uint64_t bytes) {
  auto segment = store_.Create(name, bytes);
  if (!segment.ok()) return segment;
  ++changes_;
  machine_.observer.OnCreated(name);
  return segment;
}

absl::StatusOr<std::unique_ptr<Segment>> ObservedSegments::Open(const std::string& name,
                                                                Access access, uint64_t offset,
                                                                uint64_t length) {
  return store_.Open(name, access, offset, length);
}

absl::StatusOr<std::vector<SegmentInfo>> ObservedSegments::List(std::string_view prefix) {
  return store_.List(prefix);
}

absl::Status ObservedSegments::Remove(const std::string& name) {
  absl::Status status = store_.Remove(name);
  if (!status.ok()) return status;
  ++changes_;
  machine_.observer.OnRemoved(name);
  return status;
}

absl::StatusOr<MemoryCapacity> ObservedSegments::Capacity() { return store_.Capacity(); }

}  // namespace unreft::sim
