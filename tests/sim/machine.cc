#include "tests/sim/machine.h"

namespace unreft::sim {

Machine::Machine(uint64_t seed, bool verbose)
    : scheduler(seed),
      trace(scheduler, verbose),
      disk(scheduler.random().Next()),
      network(scheduler),
      boot_id(scheduler.random().NextId()),
      kernel(scheduler.NewExecutor("kernel")) {
  memory = std::make_unique<FakeHostMemory>(memory_bytes_);
  observer.Watch(*memory, prefix());
}

Machine::~Machine() = default;

void Machine::Reboot() {
  disk.CrashHost();
  memory = std::make_unique<FakeHostMemory>(memory_bytes_);
  observer.Watch(*memory, prefix());
  boot_id = scheduler.random().NextId();
  history.OnReboot(disk.applied().contains("commit"));
  if (bug == PlantedBug::kForgetsCommit) disk.Wipe();
}

std::string Machine::prefix() const { return SegmentPrefix(kJob, 0); }

absl::StatusOr<std::unique_ptr<Segment>> ObservedSegments::Create(const std::string& name,
                                                                  uint64_t bytes) {
  auto segment = store_.Create(name, bytes);
  if (segment.ok()) machine_.observer.OnCreated(name);
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
  if (status.ok()) machine_.observer.OnRemoved(name);
  return status;
}

absl::StatusOr<MemoryCapacity> ObservedSegments::Capacity() { return store_.Capacity(); }

}  // namespace unreft::sim
