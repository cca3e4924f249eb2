// DaemonProcess: one life of the daemon on a simulated machine: the real smp::Node over the fakes,
// or smp::Spare until it has a slot and is a node.
#pragma once

#include <memory>

#include "base/log.h"
#include "smp/node/node.h"
#include "smp/node/own_meta.h"
#include "smp/node/spare.h"
#include "tests/fakes/fake_kv.h"
#include "tests/fakes/sim_transport.h"
#include "tests/fakes/sim_work_pool.h"
#include "tests/sim/cluster/durable_shelf.h"
#include "tests/sim/cluster/read_checker.h"
#include "tests/sim/cluster/sim_drain.h"
#include "tests/sim/machine.h"

namespace unreft::sim {

// What a daemon of several nodes reaches beyond its machine.
struct ClusterSeams {
  FakeKvStore& store;
  SimNetwork& network;
  ReadChecker& reads;
  DurableShelf* shelf = nullptr;  // null: the job has no directory of durable copies
};

class DaemonProcess {
 public:
  // `cluster`: of a job of several nodes; null for one. `is_spare`: it waits for a slot.
  DaemonProcess(Machine& machine, smp::NodeOptions options, Duration work_max,
                ClusterSeams* cluster = nullptr, bool is_spare = false);
  // kill -9, whatever it was doing.
  ~DaemonProcess();

  // SIGTERM: it leaves in a turn of its own, as Daemon does, and then `left` runs on the machine.
  void Stop(Task left);
  // It still serves, and has said good-bye.
  bool leaving() const { return leaving_; }

  // Looks at what the node did in the last event and tells the history; of a job of one node.
  void AfterEvent();

  Machine& machine() const { return machine_; }
  SimExecutor& executor() { return *executor_; }
  // Null until it has started, and while it is a spare.
  smp::Node* node() { return started_ ? node_.get() : nullptr; }
  // Why it gave up starting, or was refused later; ok while it has not.
  const absl::Status& failure() const { return failure_; }
  // Whether it has changed what lies in its machine's memory.
  bool touched_memory() const { return segments_.changes() > 0; }

 private:
  void Leave(Task left);
  void Start(smp::NodeOptions options);
  void Serve(smp::NodeSeams seams, smp::NodeOptions options);
  void StartSpare(smp::NodeSeams seams, smp::NodeOptions options);
  void StartNode(smp::NodeSeams seams, smp::NodeOptions options);
  void BeSpareAgain(smp::NodeSeams seams, smp::NodeOptions options);
  void Fail(absl::Status why);
  void OnStarted(absl::Status status);
  void PlantBug();

  Machine& machine_;
  ClusterSeams* const cluster_;
  const bool is_spare_;
  const ProcessLife life_;
  std::unique_ptr<SimExecutor> executor_;
  ObservedSegments segments_;
  Random random_;
  Log log_;
  FakeProcessWatcher processes_;
  std::unique_ptr<SimWorkPool> pool_;
  std::unique_ptr<FakeRecordStore> records_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<meta::Kv> kv_;
  std::unique_ptr<smp::OwnMeta> own_meta_;  // of a job of one node
  std::unique_ptr<SimDrain> drain_;
  std::unique_ptr<smp::Spare> spare_;
  std::unique_ptr<smp::Node> node_;
  std::unique_ptr<Listener> listener_;
  bool started_ = false;
  bool leaving_ = false;
  absl::Status failure_;
  uint64_t decisions_seen_ = 0;
  Timeline newest_seen_;
  Version committed_seen_;
};

}  // namespace unreft::sim
