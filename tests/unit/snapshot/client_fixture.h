// ClientFixture: a real ClientActor against a ScriptedDaemon, in virtual time.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "snapshot/client_actor.h"
#include "snapshot/host_copier.h"
#include "tests/fakes/fake_segment_store.h"
#include "tests/fakes/sim_channel.h"
#include "tests/fakes/sim_executor.h"
#include "tests/unit/snapshot/as_host_memory.h"
#include "tests/unit/snapshot/scripted_daemon.h"

namespace unreft::snapshot {

// A HostCopier whose buckets wait to be let through, when it is told so.
class GatedCopier final : public HostMemoryCopier {
 public:
  explicit GatedCopier(Executor& executor) : copier_(executor), executor_(executor) {}

  void Hold() { held_ = true; }
  // Lets `count` more buckets through.
  void Let(size_t count) {
    for (; count > 0 && !waiting_.empty(); --count) {
      Task next = std::move(waiting_.front());
      waiting_.pop_front();
      next();
    }
  }
  void Release() {
    held_ = false;
    Let(waiting_.size());
  }
  size_t waiting() const { return waiting_.size(); }
  absl::Status failure;  // of what comes next
  // Takes memory for that of a device, and says what room was made there while no bucket waited.
  bool has_device = false;
  uint64_t reserved_bytes = 0;
  // Why it cannot look at its device; room that was made for that; looks when snapshots began.
  absl::Status no_probes;
  size_t probes_reserved = 0;
  int probes_now = 0;

  absl::Status Accept(std::span<const BoundTensor> tensors) override {
    return has_device ? absl::OkStatus() : HostMemoryCopier::Accept(tensors);
  }
  absl::Status Reserve(uint64_t volatile_bytes) override {
    EXPECT_EQ(waiting(), 0u) << "a snapshot is under way";
    reserved_bytes = volatile_bytes;
    return absl::OkStatus();
  }
  absl::Status ReserveProbes(size_t tensors) override {
    probes_reserved = tensors;
    return no_probes;
  }
  void ProbeNow(ProbeOp op, void* /*stream*/,
                absl::AnyInvocable<void(absl::Status)> done) override {
    ++probes_now;
    Look(op);
    executor_.Post([done = std::move(done), no = no_probes]() mutable { done(no); });
  }
  void ProbeLater(ProbeOp op, absl::AnyInvocable<void(absl::Status)> done) override {
    Task look = [this, op, done = std::move(done)]() mutable {
      Look(op);
      executor_.Post([done = std::move(done), no = no_probes]() mutable { done(no); });
    };
    if (!held_) return look();
    waiting_.push_back(std::move(look));
  }
  absl::Status CopyNow(std::span<const CopyOp> ops) override {
    if (!failure.ok()) return failure;
    return copier_.CopyNow(AsHostMemory({ops.begin(), ops.end()}));
  }
  void CopyBucket(std::vector<CopyOp> ops, absl::AnyInvocable<void(absl::Status)> done) override {
    Task copy = [this, ops = AsHostMemory(std::move(ops)), done = std::move(done)]() mutable {
      if (failure.ok()) return copier_.CopyBucket(std::move(ops), std::move(done));
      executor_.Post([done = std::move(done), failure = failure]() mutable { done(failure); });
    };
    if (!held_) return copy();
    waiting_.push_back(std::move(copy));
  }
  // Whether a restore has copies that nobody has waited for.
  bool is_restoring = false;
  absl::Status Restore(std::span<const CopyOp> ops) override {
    is_restoring = true;
    return copier_.Restore(ops);
  }
  absl::Status EndRestore() override {
    is_restoring = false;
    return absl::OkStatus();
  }

 private:
  static void Look(const ProbeOp& op) {
    std::vector<probing::Shard> shards(op.digests.size());
    op.probes->FillDeviceShards(*op.memory, shards);
    for (size_t i = 0; i < shards.size(); ++i) {
      op.digests[i] = probing::DigestShard(shards[i], op.step.value, op.probes->lines());
    }
  }

  HostCopier copier_;
  Executor& executor_;
  bool held_ = false;
  std::deque<Task> waiting_;
};

class ClientFixture : public testing::Test {
 protected:
  static constexpr ProcessLife kTrainer{100, 1};
  static constexpr size_t kEvents = 200'000;

  ClientFixture() {
    options_.capture.bucket_bytes = 512;
    options_.capture.progress_every_bytes = 1024;
    daemon_.MakeSlots(2, 16 * 1024);
    daemon_.Listen();
  }
  ~ClientFixture() override { actor_.reset(); }

  void StartClient() {
    Hello hello{.job = "job", .world = 1, .attempt = Attempt{3}, .life = kTrainer};
    actor_ = std::make_unique<ClientActor>(*trainer_, *connector_, segments_, copier_, Random(1),
                                           hello, options_);
    InTurn([&] { actor_->Start(); });
  }
  template <typename Body>
  void InTurn(Body body) {
    bool done = false;
    trainer_->Post([&] {
      body();
      done = true;
    });
    ASSERT_TRUE(scheduler_.RunUntil([&] { return done; }, kEvents));
  }
  bool RunUntil(absl::FunctionRef<bool()> condition) {
    return scheduler_.RunUntil(condition, kEvents);
  }
  void RunFor(Duration duration) { scheduler_.RunFor(duration); }

  // Runs `start(answer)` in a turn, then until `answer` was called.
  template <typename T, typename Start>
  T Call(Start start) {
    std::optional<T> found;
    trainer_->Post([&] { start([&found](T answer) { found = std::move(answer); }); });
    UNREFT_CHECK(RunUntil([&] { return found.has_value(); }), "the call is answered");
    return *std::move(found);
  }
  absl::Status Connect() {
    return Call<absl::Status>([&](auto answer) { actor_->WhenConnected(std::move(answer)); });
  }
  absl::StatusOr<Restored> RestoreBegin() {
    return Call<absl::StatusOr<Restored>>(
        [&](auto answer) { actor_->RestoreBegin(std::move(answer)); });
  }
  absl::Status RestoreRead(std::vector<BoundTensor> targets) {
    return Call<absl::Status>(
        [&](auto answer) { actor_->RestoreRead(std::move(targets), std::move(answer)); });
  }
  absl::Status Register(uint64_t extras_bytes = 0) {
    return Call<absl::Status>(
        [&](auto answer) { actor_->Register(tensors_, extras_bytes, std::move(answer)); });
  }
  absl::Status WaitCommitted(uint64_t step, Duration timeout = std::chrono::seconds(5)) {
    return Call<absl::Status>(
        [&](auto answer) { actor_->WaitCommitted(Step{step}, timeout, std::move(answer)); });
  }
  absl::StatusOr<bool> EverCommitted() {
    return Call<absl::StatusOr<bool>>(
        [&](auto answer) { actor_->EverCommitted(std::move(answer)); });
  }
  absl::StatusOr<StoredExtras> RestoreExtras(Rank rank) {
    return Call<absl::StatusOr<StoredExtras>>(
        [&](auto answer) { actor_->RestoreExtras(rank, std::move(answer)); });
  }
  absl::StatusOr<SnapshotResult> Snapshot(uint64_t step, const std::string& extras = "") {
    absl::StatusOr<SnapshotResult> result = absl::UnknownError("not called");
    InTurn(
        [&] { result = actor_->Snapshot(Step{step}, std::as_bytes(std::span(extras)), nullptr); });
    return result;
  }
  void Fence() {
    bool done = false;
    trainer_->Post([&] { actor_->FenceThen([&done] { done = true; }); });
    ASSERT_TRUE(RunUntil([&] { return done; }));
  }
  ClientStatus status() const { return actor_->status(); }

  // A float32 tensor of its own bytes, which this rank holds whole.
  BoundTensor& AddTensor(const std::string& name, uint64_t elements) {
    std::vector<std::byte>& bytes = memory_.emplace_back(elements * 4);
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(i * 7 + memory_.size());
    }
    tensors_.push_back({.spec = {.name = name,
                                 .dtype = Dtype::kFloat32,
                                 .global_shape = {elements},
                                 .offset = {0},
                                 .extent = {elements}},
                        .data = bytes.data()});
    return tensors_.back();
  }

  // Connected, decided, registered; slot 0 of generation 1 is granted.
  void Ready() {
    StartClient();
    ASSERT_TRUE(Connect().ok());
    ASSERT_TRUE(RestoreBegin().ok());
    ASSERT_EQ(Register(), absl::OkStatus());
    daemon_.Grant(0, 1);
  }

  // What the slab must hold after a capture of the tensors as they are now.
  std::vector<std::byte> ExpectedSlab() const {
    const auto table = *layout::TensorTable::Create(SpecsOf(tensors_));
    const auto plan = layout::CapturePlan::Make(table, daemon_.mode);
    const uint64_t block = ScriptedDaemon::kBlockBytes;
    std::vector<std::byte> slab(BlockCount(plan.data_bytes(), block) * block);
    for (const layout::CapturedPart& part : plan.parts()) {
      std::copy_n(tensors_[part.tensor].data + part.shard_begin, part.bytes,
                  slab.begin() + static_cast<ptrdiff_t>(part.slab_offset));
    }
    return slab;
  }
  std::vector<std::byte> Slab(uint64_t slot, size_t bytes) {
    const std::span<std::byte> data = daemon_.slot(slot).view->data().first(bytes);
    return {data.begin(), data.end()};
  }

  SimScheduler scheduler_{42};
  SimLocalNetwork network_{scheduler_};
  FakeHostMemory host_;
  FakeSegmentStore segments_{host_};
  std::unique_ptr<SimExecutor> node_ = scheduler_.NewExecutor("daemon");
  std::unique_ptr<SimExecutor> trainer_ = scheduler_.NewExecutor("trainer");
  std::unique_ptr<Connector> connector_ = network_.NewConnector(*trainer_, "/daemon");
  ScriptedDaemon daemon_{[this] { return *network_.Listen(*node_, "/daemon"); }, segments_,
                         kTrainer};
  GatedCopier copier_{*trainer_};
  ClientOptions options_;
  std::deque<std::vector<std::byte>> memory_;
  std::vector<BoundTensor> tensors_;
  std::unique_ptr<ClientActor> actor_;
};

}  // namespace unreft::snapshot
