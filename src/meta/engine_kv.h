// EngineKv: the meta store of a job of one node, in the daemon itself: a StoreEngine without a
// wire.
//
// A lease lives until it is revoked, however short its ttl: who holds it and who counts its time
// are one process, and one that was stopped for a while must not find itself lost.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/executor.h"
#include "base/lifetime.h"
#include "meta/kv.h"
#include "meta/store_engine.h"

namespace unreft::meta {

// An outcome is unknown (Unavailable) only where the engine's records could not be written.
class EngineKv final : public Kv {
 public:
  // The engine has started; both outlive it.
  EngineKv(Executor& executor, StoreEngine& engine) : executor_(executor), engine_(engine) {}
  ~EngineKv() override;

  void Commit(Txn txn, TxnDone done) override;
  void GrantLease(Duration ttl, LeaseDone done) override;
  void KeepAlive(LeaseId lease, Done done) override;
  void RevokeLease(LeaseId lease, Done done) override;
  WatchId Watch(KeyRange range, Revision start, OnEvents on_events, Done on_end) override;
  void CancelWatch(WatchId watch) override;

 private:
  Executor& executor_;
  StoreEngine& engine_;
  std::map<WatchId, WatchId> watches_;  // the engine's, by ours
  uint64_t last_watch_ = 0;
  Lifetime lifetime_;
};

}  // namespace unreft::meta
