// What the daemon's pieces need around them, over the fakes.
#pragma once

#include <absl/functional/function_ref.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "base/random.h"
#include "smp/core/node_options.h"
#include "smp/job/kept_records.h"
#include "smp/job/node_record.h"
#include "tests/fakes/capture_log_sink.h"
#include "tests/fakes/fake_process_watcher.h"
#include "tests/fakes/fake_record_store.h"
#include "tests/fakes/fake_segment_store.h"
#include "tests/fakes/sim_executor.h"
#include "tests/fakes/sim_work_pool.h"

namespace unreft::smp {

class SmpFixture : public ::testing::Test {
 protected:
  static constexpr const char* kNodeSegment = "/unreft.job.0.node";
  static constexpr const char* kKeptSegment = "/unreft.job.0.records";

  SmpFixture() : records_(*FakeRecordStore::Open(disk_, *executor_)) {
    options_.job = "job";
    options_.block_bytes = 64;
  }

  void InTurn(absl::FunctionRef<void()> body) {
    bool done = false;
    executor_->Post([&] {
      body();
      done = true;
    });
    UNREFT_CHECK(scheduler_.RunUntil([&] { return done; }, 100000));
  }
  // Runs what is under way, and what is due within `duration`.
  void Settle(Duration duration = std::chrono::milliseconds(100)) { scheduler_.RunFor(duration); }

  absl::StatusOr<std::unique_ptr<NodeRecord>> OpenRecord() {
    std::optional<absl::StatusOr<std::unique_ptr<NodeRecord>>> opened;
    InTurn([&] {
      NodeRecord::Open(segments_, *records_, random_, log_, kNodeSegment, boot_id_,
                       [&](auto record) { opened = std::move(record); });
    });
    UNREFT_CHECK(scheduler_.RunUntil([&] { return opened.has_value(); }, 100000));
    return *std::move(opened);
  }
  // Without a timeline.
  std::unique_ptr<NodeRecord> NewRecord() {
    auto record = OpenRecord();
    UNREFT_CHECK(record.ok());
    return *std::move(record);
  }

  // As on a node that has taken part in the decision.
  static Timeline OpenTimeline(NodeRecord& record, Version parent) {
    recovery::TimelineChain chain = record.chain();
    const Timeline opened{chain.newest().value + 1};
    chain.Open(opened, parent);
    record.AdoptTimelines({chain.origins().begin(), chain.origins().end()}, /*unused=*/true);
    return opened;
  }

  // As the memory and the disk have it.
  std::unique_ptr<KeptRecords> OpenKept(const std::string& segment = kKeptSegment,
                                        uint64_t nodes = 3) {
    std::optional<absl::StatusOr<std::unique_ptr<KeptRecords>>> opened;
    InTurn([&] {
      KeptRecords::Open(*executor_, segments_, *records_, log_, segment, nodes,
                        [&](auto kept) { opened = std::move(kept); });
    });
    UNREFT_CHECK(scheduler_.RunUntil([&] { return opened.has_value(); }, 100000));
    UNREFT_CHECK(opened->ok(), "{}", opened->status().message());
    return **std::move(opened);
  }

  SimScheduler scheduler_{1};
  std::unique_ptr<SimExecutor> executor_ = scheduler_.NewExecutor("node");
  FakeHostMemory host_;
  FakeSegmentStore segments_{host_};
  FakeDisk disk_{2};
  std::unique_ptr<FakeRecordStore> records_;
  FakeProcessTable table_;
  FakeProcessWatcher processes_{table_, *executor_, table_.Start()};
  SimWorkPool pool_{*executor_};
  Random random_{3};
  RandomId boot_id_ = random_.NextId();
  CaptureLogSink sink_;
  Log log_{sink_};
  NodeOptions options_;
};

}  // namespace unreft::smp
