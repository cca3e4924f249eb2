// The capture machine between two real threads: a training thread that snapshots, fences and then
// changes the tensors, and the copier thread. For the thread sanitizer above all.

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <future>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/asio_executor.h"
#include "layout/tensor_table.h"
#include "snapshot/capture.h"
#include "snapshot/given_tensors.h"
#include "snapshot/host_copier.h"
#include "tests/fakes/fake_segment_store.h"
#include "tests/unit/snapshot/as_host_memory.h"
#include "tests/unit/snapshot/turns.h"
#include "tests/unit/snapshot/two_slot_daemon.h"

namespace unreft::snapshot {
namespace {

constexpr uint64_t kElements = 200'000;

// A HostCopier that plays a device's. While it holds, a bucket that is handed to it waits at the
// door until a fence overtakes it, or for `kDoor` if none does.
class DoorCopier final : public HostMemoryCopier {
 public:
  static constexpr auto kDoor = std::chrono::milliseconds(200);

  explicit DoorCopier(Executor& executor) : copier_(executor) {}

  void Hold(std::chrono::milliseconds door = kDoor) {
    door_ = door;
    holds_ = true;
  }
  // Lets the bucket at the door go on, and those that come.
  void Release() {
    holds_ = false;
    Fence(nullptr).IgnoreError();
  }
  void AwaitBucket() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return handed_ > 0; });
  }
  int overtaken() const { return overtaken_; }
  // Of what calls from now on find no memory.
  std::atomic<bool> now_fails = false, volatile_fails = false, bucket_fails = false;

  absl::StatusOr<std::vector<CopyOp>> CopyVolatile(std::vector<CopyOp> ops,
                                                   void* stream) override {
    if (volatile_fails) throw std::bad_alloc();
    return HostMemoryCopier::CopyVolatile(std::move(ops), stream);
  }
  absl::Status CopyNow(std::span<const CopyOp> ops) override {
    if (now_fails) throw std::bad_alloc();
    return copier_.CopyNow(AsHostMemory({ops.begin(), ops.end()}));
  }
  void CopyBucket(std::vector<CopyOp> ops, absl::AnyInvocable<void(absl::Status)> done) override {
    if (bucket_fails) throw std::bad_alloc();
    if (holds_) {
      std::unique_lock lock(mutex_);
      ++handed_;
      changed_.notify_all();
      overtaken_ += changed_.wait_for(lock, door_, [this] { return fenced_; });
    }
    copier_.CopyBucket(AsHostMemory(std::move(ops)), std::move(done));
  }
  absl::Status Fence(void* /*stream*/) override {
    std::lock_guard lock(mutex_);
    fenced_ = true;
    changed_.notify_all();
    return absl::OkStatus();
  }
  absl::Status Restore(std::span<const CopyOp> ops) override { return copier_.Restore(ops); }

 private:
  HostCopier copier_;
  std::atomic<bool> holds_ = false;
  std::chrono::milliseconds door_ = kDoor;  // set before it holds
  std::mutex mutex_;
  std::condition_variable changed_;
  int handed_ = 0;
  bool fenced_ = false;
  std::atomic<int> overtaken_ = 0;
};

// A segment that asks something as it is unmapped.
class AskingSegment final : public Segment {
 public:
  AskingSegment(std::unique_ptr<Segment> segment, std::function<void()> ask)
      : segment_(std::move(segment)), ask_(std::move(ask)) {}
  ~AskingSegment() override { ask_(); }
  const std::string& name() const override { return segment_->name(); }
  std::span<std::byte> bytes() override { return segment_->bytes(); }
  absl::Status Reserve(size_t offset, size_t length) override {
    return segment_->Reserve(offset, length);
  }
  void Populate(size_t offset, size_t length) override { segment_->Populate(offset, length); }
  absl::Status Lock() override { return segment_->Lock(); }

 private:
  const std::unique_ptr<Segment> segment_;
  const std::function<void()> ask_;
};

class AskingStore final : public FakeSegmentStore {
 public:
  AskingStore(FakeHostMemory& host, std::function<void()> ask)
      : FakeSegmentStore(host), ask_(std::move(ask)) {}
  absl::StatusOr<std::unique_ptr<Segment>> Open(const std::string& name, Access access,
                                                uint64_t offset, uint64_t length) override {
    auto segment = FakeSegmentStore::Open(name, access, offset, length);
    if (!segment.ok()) return segment;
    return std::make_unique<AskingSegment>(*std::move(segment), ask_);
  }

 private:
  const std::function<void()> ask_;
};

class TwoThreads : public testing::TestWithParam<bool> {
 protected:
  TwoThreads() : memory_(kElements * 4) {
    options_.bucket_bytes = 64 * 1024;
    options_.progress_every_bytes = 128 * 1024;
    options_.fence_helps = GetParam();
    capture_ = std::make_unique<Capture>(thread_.executor(), copier_, options_, board_, daemon_);
    InTurn([&] { capture_->SetTimeline(Timeline{1}); });
    Install(/*on_device=*/false);
  }
  ~TwoThreads() override { thread_.Join(); }

  void Install(bool on_device) {
    std::vector<TensorSpec> specs;
    std::vector<ShardMemory> data;
    for (const char* name : {"a", "b", "c"}) {
      specs.push_back({.name = name,
                       .global_shape = {kElements},
                       .offset = {0},
                       .extent = {kElements},
                       .replica_count = 1});
      data.push_back({memory_.data(), on_device});
    }
    specs[1].is_volatile = true;
    layout_ = CaptureLayout::Make(
        *layout::TensorTable::Create(specs), data,
        {.block_bytes = TwoSlotDaemon::kBlockBytes, .bucket_bytes = options_.bucket_bytes});
    daemon_.tensors.clear();
    for (const layout::CapturedPart& part : layout_->plan().parts()) {
      daemon_.tensors.push_back({part.slab_offset, part.slab_offset + part.bytes});
    }
    InTurn([&] {
      capture_->Bind(*layout::TensorTable::Create(specs), data, EachByItself(data.size()));
      capture_->Install(layout_, *MappedSlots::Open(segments_, Rank{0}, daemon_.Answer()));
    });
  }
  template <typename Body>
  void InTurn(Body body) {
    RunInTurn(thread_.executor(), std::move(body));
  }

  FakeHostMemory host_;
  FakeSegmentStore segments_{host_};
  TwoSlotDaemon daemon_{segments_, 3 * kElements * 4};
  ExecutorThread thread_{"copier"};
  DoorCopier copier_{thread_.executor()};
  StatusBoard board_;
  CaptureOptions options_;
  std::vector<std::byte> memory_;
  std::shared_ptr<const CaptureLayout> layout_;
  std::unique_ptr<Capture> capture_;
};

TEST_P(TwoThreads, TensorsMayChangeAfterEachFence) {
  constexpr uint64_t kSteps = 200;
  int started = 0;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    ASSERT_TRUE(capture_->Fence(nullptr).ok());
    std::memset(memory_.data(), static_cast<int>(step), memory_.size());
    const auto result = capture_->Snapshot(Step{step}, {}, nullptr);
    ASSERT_TRUE(result.ok()) << result.status();
    started += result->outcome == Outcome::kStarted;
    ASSERT_TRUE(capture_->Fence(nullptr).ok());
    // Now and then, so that the next slot is granted and the next snapshot is not.
    if (step % 3 != 0) InTurn([] {});
  }
  InTurn([] {});
  InTurn([] {});
  thread_.Join();
  EXPECT_EQ(daemon_.claimed, started);
  EXPECT_EQ(daemon_.captured, started);
  EXPECT_EQ(daemon_.gave_up, 0);
  EXPECT_EQ(daemon_.wrong, 0);
  EXPECT_EQ(daemon_.overtaken, 0);
  EXPECT_EQ(board_.Read().skipped + board_.Read().started, kSteps);
  EXPECT_GT(started, 10);
}

// A copy that the copier got after the fence would read what the optimizer is writing.
TEST_P(TwoThreads, AFenceWaitsForABucketOnItsWayToTheCopier) {
  Install(/*on_device=*/true);
  copier_.Hold();
  std::memset(memory_.data(), 1, memory_.size());
  ASSERT_TRUE(capture_->Snapshot(Step{1}, {}, nullptr).ok());
  copier_.AwaitBucket();
  ASSERT_TRUE(capture_->Fence(nullptr).ok());
  EXPECT_EQ(copier_.overtaken(), 0);
  InTurn([] {});
}

// The fence comes late or not at all; who copies the rest is the training thread or the other one.
TEST_P(TwoThreads, AWriteOfAThirdThreadWhileCopiesRunGivesTheVersionUp) {
  copier_.Hold(std::chrono::minutes(5));
  ASSERT_TRUE(capture_->Snapshot(Step{1}, {}, nullptr).ok());
  copier_.AwaitBucket();
  std::thread([&] { std::memset(memory_.data(), 1, memory_.size()); }).join();
  copier_.Release();
  ASSERT_TRUE(capture_->Fence(nullptr).ok());
  InTurn([] {});
  InTurn([] {});
  thread_.Join();
  EXPECT_EQ(daemon_.captured, 0);
  EXPECT_EQ(daemon_.gave_up, 1);
  EXPECT_THAT(daemon_.last_reason, testing::HasSubstr("tensors 'a', 'c' changed while step 1"));
}

TEST_P(TwoThreads, AbandonedInTheMiddle) {
  for (uint64_t step = 1; step <= 100; ++step) {
    ASSERT_TRUE(capture_->Fence(nullptr).ok());
    std::memset(memory_.data(), static_cast<int>(step), memory_.size());
    ASSERT_TRUE(capture_->Snapshot(Step{step}, {}, nullptr).ok());
    thread_.executor().Post(
        [&, step] { capture_->Abandon({Timeline{1}, Step{step}}, "for a test"); });
    ASSERT_TRUE(capture_->Fence(nullptr).ok());
  }
  InTurn([] {});
  InTurn([] {});
  thread_.Join();
  EXPECT_EQ(daemon_.captured + daemon_.gave_up, daemon_.claimed);
  EXPECT_EQ(daemon_.wrong, 0);
  EXPECT_EQ(daemon_.overtaken, 0);
}

// Wherever no memory is found the snapshot is given up, the fence returns, and the next one works.
TEST_P(TwoThreads, WithoutMemoryASnapshotIsGivenUp) {
  uint64_t step = 0;
  for (std::atomic<bool>* fails :
       {&copier_.volatile_fails, &copier_.now_fails, &copier_.bucket_fails}) {
    *fails = fails != &copier_.now_fails;
    ASSERT_TRUE(capture_->Fence(nullptr).ok());  // what is registered is state already
    std::memset(memory_.data(), static_cast<int>(++step), memory_.size());
    const auto result = capture_->Snapshot(Step{step}, {}, nullptr);
    *fails = true;  // the copies at once of the preparation came before
    EXPECT_EQ(absl::IsResourceExhausted(result.status()), fails == &copier_.volatile_fails)
        << result.status();
    EXPECT_TRUE(capture_->Fence(nullptr).ok());
    copier_.volatile_fails = copier_.now_fails = copier_.bucket_fails = false;
    InTurn([] {});
    std::memset(memory_.data(), static_cast<int>(++step), memory_.size());
    const auto next = capture_->Snapshot(Step{step}, {}, nullptr);
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(next->outcome, Outcome::kStarted) << next->reason;
    EXPECT_TRUE(capture_->Fence(nullptr).ok());
    InTurn([] {});
    InTurn([] {});
  }
  thread_.Join();
  EXPECT_EQ(daemon_.wrong, 0);
  EXPECT_EQ(daemon_.claimed, 6);
  EXPECT_EQ(daemon_.captured + daemon_.gave_up, 6);
  // What is not prepared, and where the training thread does not copy in time, the bucket's.
  EXPECT_GE(daemon_.gave_up, GetParam() ? 1 : 2);
}

// To unmap a slot takes long: meanwhile the training thread gets what it asks.
TEST_P(TwoThreads, SlotsAreUnmappedWithoutTheLockOfAFence) {
  std::vector<std::future<absl::Status>> fences;  // one that has to wait ends after the Install
  AskingStore segments(host_, [&] {
    fences.push_back(std::async(std::launch::async, [&] { return capture_->Fence(nullptr); }));
    EXPECT_EQ(fences.back().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  });
  InTurn([&] {
    capture_->Install(layout_, *MappedSlots::Open(segments, Rank{0}, daemon_.Answer()));
  });
  EXPECT_TRUE(fences.empty());
  Install(/*on_device=*/false);
  EXPECT_FALSE(fences.empty());
  for (std::future<absl::Status>& fence : fences) EXPECT_EQ(fence.get(), absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(Fence, TwoThreads, testing::Bool(),
                         [](const auto& info) { return info.param ? "Helps" : "Waits"; });

}  // namespace
}  // namespace unreft::snapshot
