// OwnMeta: what a job of one node has in the place of a meta store and a network. Both are of this
// process and end with it: what the job has decided is in what the node has kept (KeptRecords).
#pragma once

#include <absl/functional/any_invocable.h>
#include <string_view>

#include "base/executor.h"
#include "base/log.h"
#include "base/memory_record_store.h"
#include "base/random.h"
#include "meta/engine_kv.h"
#include "meta/store_engine.h"
#include "transport/local_transport.h"

namespace unreft::smp {

// Single-threaded on the executor, which outlives it, as `random` does.
class OwnMeta {
 public:
  OwnMeta(Executor& executor, Random& random);

  // Once, before anything is asked.
  void Start(absl::AnyInvocable<void()> done);

  meta::Kv& kv() { return kv_; }
  Transport& transport() { return transport_; }

 private:
  // Nobody who runs a job of one node has heard of a meta store.
  class Silence final : public LogSink {
   public:
    void Write(LogLevel, std::string_view) override {}
  };

  Silence silence_;
  Log log_{silence_, LogLevel::kOff};
  MemoryRecordStore records_;
  meta::StoreEngine engine_;
  meta::EngineKv kv_;
  LocalTransport transport_;
};

}  // namespace unreft::smp
