// A simulated meta store and one node's connections to it.
#pragma once

#include <absl/functional/function_ref.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "base/random.h"
#include "meta/job_store.h"
#include "meta/leased_key.h"
#include "tests/fakes/capture_log_sink.h"
#include "tests/fakes/fake_kv.h"
#include "tests/fakes/sim_executor.h"

namespace unreft::meta {

class MetaFixture : public ::testing::Test {
 protected:
  MetaFixture() {
    UNREFT_CHECK(scheduler_.RunUntil([this] { return store_.ready(); }, 100000));
  }

  // A process that uses the store.
  struct Process {
    explicit Process(MetaFixture& fixture)
        : executor(fixture.scheduler_.NewExecutor("node")),
          random(fixture.scheduler_.random().Next()),
          kv(fixture.store_.NewKv(*executor)) {}
    // kill -9.
    ~Process() { executor->Kill(); }

    std::unique_ptr<SimExecutor> executor;
    Random random;
    std::unique_ptr<Kv> kv;
  };

  void InTurn(Process& process, absl::FunctionRef<void()> body) {
    bool done = false;
    process.executor->Post([&] {
      body();
      done = true;
    });
    UNREFT_CHECK(scheduler_.RunUntil([&] { return done; }, 100000));
  }
  void Settle(Duration duration = std::chrono::milliseconds(500)) { scheduler_.RunFor(duration); }

  SimScheduler scheduler_{1};
  FakeKvStore store_{scheduler_, 1};
  CaptureLogSink sink_;
  Log log_{sink_};
};

}  // namespace unreft::meta
