// FakeKvStore and its Kvs: the meta store of a simulated cluster, with the losses of a real one.
//
//   FakeKv (node A) ──┐  requests and answers after random delays; some are lost, and then the
//   FakeKv (node B) ──┼─ outcome is unknown; a node may be cut off
//                     │
//   FakeKvStore ── StoreEngine over FakeRecordStore, in a process of its own that can be killed,
//                  restarted on its records, or find them lost or rolled back
//
// Single-threaded. The store outlives its Kvs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/log.h"
#include "meta/kv.h"
#include "meta/store_engine.h"
#include "tests/fakes/capture_log_sink.h"
#include "tests/fakes/fake_record_store.h"
#include "tests/fakes/sim_executor.h"

namespace unreft {

struct FakeKvOptions {
  Duration delay_max = std::chrono::milliseconds(1);  // of a message, each way
  Duration call_timeout = std::chrono::seconds(1);
  uint64_t lose_one_in = 0;  // a call in so many loses its request or its answer; 0: none
  meta::StoreEngineOptions engine;
};

class FakeKvStore {
 public:
  // A copy of what is on the store's disk.
  using Copy = std::map<std::string, std::string>;

  // Runs from now on, and answers once it has read its records.
  FakeKvStore(SimScheduler& scheduler, uint64_t seed, FakeKvOptions options = {});
  ~FakeKvStore();
  FakeKvStore(const FakeKvStore&) = delete;
  FakeKvStore& operator=(const FakeKvStore&) = delete;

  std::unique_ptr<meta::Kv> NewKv(SimExecutor& node);

  // kill -9: what was being written is written or not. Callers get Unavailable. Idempotent.
  void Kill();
  // After Kill: on the same records.
  void Restart();
  bool running() const { return process_ != nullptr; }
  // Running, and its records read.
  bool ready() const { return started_; }

  // While killed: a new, empty store comes back; or an older one, of the same name.
  void LoseData();
  Copy TakeCopy() const { return disk_.synced(); }
  void RollBack(const Copy& copy);

  // That node's messages, and those to it, are lost until Mend. Nothing says so to either side.
  void CutOff(const SimExecutor& node);
  void Mend(const SimExecutor& node);

  // Whether it answers whatever that node asks.
  bool Answers(const SimExecutor& node) const {
    return ready() && Reachable(node) && options_.lose_one_in == 0;
  }

  // Told in the store's process what each node's Txns that write have done; null: nobody.
  using OnTxn = std::function<void(const SimExecutor& node, const meta::StoreReply& reply)>;
  void set_on_txn(OnTxn on_txn) { on_txn_ = std::move(on_txn); }
  // How often it was started.
  uint64_t starts() const { return starts_; }

  void set_lose_one_in(uint64_t calls) { options_.lose_one_in = calls; }
  FakeDisk& disk() { return disk_; }
  // While running.
  SimExecutor& process() { return *process_; }
  // Null while killed.
  meta::StoreEngine* engine() { return engine_.get(); }

 private:
  class FakeKv;

  void StartProcess();
  void MakeEngine();
  void StartEngine();
  bool Reachable(const SimExecutor& node) const { return !cut_off_.contains(&node); }

  SimScheduler& scheduler_;
  FakeKvOptions options_;
  FakeDisk disk_;
  Random random_;
  CaptureLogSink sink_;
  Log log_{sink_};
  std::unique_ptr<SimExecutor> process_;
  std::unique_ptr<FakeRecordStore> records_;
  std::unique_ptr<meta::StoreEngine> engine_;
  bool started_ = false;
  uint64_t starts_ = 0;
  OnTxn on_txn_;
  std::map<uint64_t, FakeKv*> kvs_;  // by number
  uint64_t last_kv_ = 0;
  // The engine's watches, by the number of the Kv and of its link.
  std::map<std::pair<uint64_t, uint64_t>, meta::WatchId> links_;
  std::set<const SimExecutor*> cut_off_;
};

}  // namespace unreft
