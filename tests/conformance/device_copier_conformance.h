// What every DeviceCopier does, wherever its tensors are.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/asio_executor.h"
#include "base/crc32c.h"
#include "layout/tensor_table.h"
#include "snapshot/device_copier.h"

namespace unreft::snapshot {

// Where the tensors are, and what writes them.
class DeviceCopierWorld {
 public:
  virtual ~DeviceCopierWorld() = default;
  virtual std::unique_ptr<DeviceCopier> NewCopier(Executor& executor) = 0;
  virtual int32_t device() const = 0;  // kHostMemory: none
  virtual void* stream() = 0;
  // Lives as long as the world.
  virtual std::byte* NewTensor(size_t bytes) = 0;
  // In the order of the stream.
  virtual void Write(std::byte* tensor, size_t bytes, int value) = 0;
  virtual std::vector<std::byte> Read(const std::byte* tensor, size_t bytes) = 0;
  // False where the copier has no kernel to compute them with.
  virtual bool computes_crcs() const { return true; }
  // What the world holds against the copier; "" for nothing.
  virtual std::string Complaints() { return ""; }
};

struct DeviceCopierWorldMaker {
  std::string name;
  std::function<std::unique_ptr<DeviceCopierWorld>()> make;
};

class DeviceCopierConformance : public testing::TestWithParam<DeviceCopierWorldMaker> {
 protected:
  ~DeviceCopierConformance() override {
    copier_.reset();
    thread_.Join();
    EXPECT_EQ(world_->Complaints(), "");
  }

  bool on_device() const { return world_->device() != kHostMemory; }
  std::byte* Tensor(size_t bytes, int value) {
    std::byte* tensor = world_->NewTensor(bytes);
    world_->Write(tensor, bytes, value);
    return tensor;
  }
  CopyOp Op(const std::byte* source, std::byte* target, size_t bytes) const {
    return {source, target, bytes, on_device()};
  }
  BoundTensor Bound(const std::string& name, std::byte* data, size_t bytes, int32_t device) const {
    return {.spec = {.name = name,
                     .dtype = Dtype::kUint8,
                     .global_shape = {bytes},
                     .offset = {0},
                     .extent = {bytes}},
            .data = data,
            .cuda_device = device};
  }
  void Begin() {
    if (!on_device()) return;
    EXPECT_EQ(copier_->Begin(world_->stream()), absl::OkStatus());
  }
  std::future<absl::Status> Copy(std::vector<CopyOp> ops) {
    auto answer = std::make_shared<std::promise<absl::Status>>();
    std::future<absl::Status> future = answer->get_future();
    thread_.executor().Post([this, ops = std::move(ops), answer]() mutable {
      auto is_inline = std::make_shared<bool>(true);
      copier_->CopyBucket(std::move(ops), [this, answer, is_inline](absl::Status status) {
        EXPECT_TRUE(thread_.executor().InTurn());
        EXPECT_FALSE(*is_inline);
        answer->set_value(std::move(status));  // throws when it is the second
      });
      *is_inline = false;
    });
    return future;
  }
  static bool IsAll(std::span<const std::byte> bytes, int value) {
    return std::all_of(bytes.begin(), bytes.end(),
                       [=](std::byte byte) { return byte == static_cast<std::byte>(value); });
  }

  std::unique_ptr<DeviceCopierWorld> world_ = GetParam().make();
  ExecutorThread thread_{"copier"};
  std::unique_ptr<DeviceCopier> copier_ = world_->NewCopier(thread_.executor());
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceCopierConformance);

TEST_P(DeviceCopierConformance, ABucketIsInPlaceWhenItIsAnswered) {
  std::byte* tensor = Tensor(70'000, 3);
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{4096}, size_t{70'000}}) {
    std::vector<std::byte> target(bytes + 2);
    Begin();
    EXPECT_EQ(Copy({Op(tensor, target.data() + 1, bytes)}).get(), absl::OkStatus());
    EXPECT_EQ(target.front(), std::byte{0});
    EXPECT_TRUE(IsAll(std::span(target).subspan(1, bytes), 3)) << bytes;
    EXPECT_EQ(target.back(), std::byte{0});
  }
}

TEST_P(DeviceCopierConformance, ABucketOfNothingIsAnswered) {
  EXPECT_EQ(Copy({}).get(), absl::OkStatus());
}

TEST_P(DeviceCopierConformance, ManyBucketsOfManyPieces) {
  constexpr size_t kPieces = 50, kBuckets = 40, kBytes = 33;
  std::byte* tensors = world_->NewTensor(kBuckets * kPieces * kBytes);
  std::vector<std::byte> target(kBuckets * kPieces * kBytes);
  std::vector<std::vector<CopyOp>> buckets(kBuckets);
  for (size_t i = 0; i < kBuckets * kPieces; ++i) {
    world_->Write(tensors + i * kBytes, kBytes, static_cast<int>(i));
    buckets[i / kPieces].push_back(Op(tensors + i * kBytes, target.data() + i * kBytes, kBytes));
  }
  Begin();
  std::vector<std::future<absl::Status>> answers;
  for (auto& bucket : buckets) answers.push_back(Copy(std::move(bucket)));
  for (auto& answer : answers) EXPECT_EQ(answer.get(), absl::OkStatus());
  for (size_t i = 0; i < kBuckets * kPieces; ++i) {
    ASSERT_TRUE(IsAll(std::span(target).subspan(i * kBytes, kBytes), static_cast<int>(i))) << i;
  }
}

TEST_P(DeviceCopierConformance, CrcsAreOfTheBytesAtTheSource) {
  if (!world_->computes_crcs()) GTEST_SKIP() << "built without nvcc";
  constexpr size_t kSizes[] = {0, 1, 63, 128, 4097, 32 << 10, 70'001};
  std::byte* tensor = world_->NewTensor(200'000);
  // Not all alike: a write of one value after the other, each shorter.
  for (int value = 0; value < 50; ++value) world_->Write(tensor, 200'000 - value * 3999, value);
  std::vector<std::byte> target(200'000);
  std::vector<uint32_t> crcs(std::size(kSizes), 77);
  std::vector<CopyOp> ops;
  size_t at = 1;
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    ops.push_back(Op(tensor + at, target.data() + at, kSizes[i]));
    ops.back().crc = &crcs[i];
    at += kSizes[i] + 1;
  }
  Begin();
  EXPECT_EQ(Copy(ops).get(), absl::OkStatus());
  const std::vector<std::byte> found = world_->Read(tensor, 200'000);
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    const size_t begin = static_cast<size_t>(ops[i].target - target.data());
    EXPECT_EQ(crcs[i], Crc32c(std::span(found).subspan(begin, kSizes[i]))) << kSizes[i];
    EXPECT_EQ(std::memcmp(&found[begin], &target[begin], kSizes[i]), 0);
  }
}

TEST_P(DeviceCopierConformance, VolatileStateMayChangeAtOnce) {
  std::byte* tensor = Tensor(5000, 3);
  std::vector<std::byte> target(5000);
  ASSERT_EQ(copier_->Reserve(on_device() ? 5120 : 0), absl::OkStatus());
  Begin();
  auto staged = copier_->CopyVolatile({Op(tensor, target.data(), 5000)}, world_->stream());
  ASSERT_TRUE(staged.ok()) << staged.status();
  world_->Write(tensor, 5000, 4);
  EXPECT_EQ(Copy(*std::move(staged)).get(), absl::OkStatus());
  EXPECT_TRUE(IsAll(target, 3));
}

// A look sees what the stream was given before it and nothing that it is given behind, and one that
// is queued comes behind the copies.
TEST_P(DeviceCopierConformance, LooksKeepTheOrderOfTheStream) {
  const size_t sizes[] = {1, 77, 128, 50'003};
  std::vector<BoundTensor> bound;
  auto memory = std::make_shared<std::vector<ShardMemory>>();
  for (size_t i = 0; i < std::size(sizes); ++i) {
    std::byte* const tensor = world_->NewTensor(sizes[i] + i) + i;
    bound.push_back(Bound("t" + std::to_string(i), tensor, sizes[i], world_->device()));
    memory->push_back({tensor, on_device()});
  }
  if (!on_device() || !copier_->ReserveProbes(bound.size()).ok()) {
    GTEST_SKIP() << "no device, or built without nvcc";
  }
  const auto table = *layout::TensorTable::Create(SpecsOf(bound));
  const auto probes = std::make_shared<const TensorProbes>(table, *memory, 2);
  const auto write = [&](int value) {
    for (const BoundTensor& tensor : bound) {
      world_->Write(tensor.data, ShardBytes(tensor.spec), value);
    }
  };
  const auto needed = [&](int value, Step step) {
    std::vector<probing::Shard> shards(bound.size());
    probes->FillDeviceShards(*memory, shards);
    std::vector<uint64_t> digests;
    for (probing::Shard shard : shards) {
      const std::vector<std::byte> bytes(shard.bytes, static_cast<std::byte>(value));
      shard.address = reinterpret_cast<uint64_t>(bytes.data());
      digests.push_back(probing::DigestShard(shard, step.value, 2));
    }
    return digests;
  };
  std::vector<std::byte> target(50'003);
  for (int round = 1; round <= 20; ++round) {
    const Step step{static_cast<uint64_t>(round)};
    std::vector<uint64_t> first(bound.size()), second(bound.size());
    std::promise<absl::Status> first_over, second_over;
    write(round);
    Begin();
    copier_->ProbeNow({probes, memory, step, first}, world_->stream(),
                      [&](absl::Status status) { first_over.set_value(std::move(status)); });
    write(round + 100);
    world_->Read(bound[0].data, 1);  // until that is done
    auto copied = Copy({Op(bound[3].data, target.data(), sizes[3])});
    thread_.executor().Post([&] {
      copier_->ProbeLater({probes, memory, step, second}, [&](absl::Status status) {
        EXPECT_TRUE(thread_.executor().InTurn());
        second_over.set_value(std::move(status));
      });
    });
    EXPECT_EQ(first_over.get_future().get(), absl::OkStatus());
    EXPECT_EQ(first, needed(round, step));
    EXPECT_EQ(second_over.get_future().get(), absl::OkStatus());
    EXPECT_EQ(second, needed(round + 100, step));
    EXPECT_EQ(copied.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  }
}

// Whatever is answered with OK is of before the change. All buckets are queued before the fence:
// after it a capture queues none.
TEST_P(DeviceCopierConformance, TensorsMayChangeAfterTheFence) {
  constexpr size_t kBytes = 20'000;
  std::byte* tensor = world_->NewTensor(kBytes);
  for (int round = 1; round <= 30; ++round) {
    world_->Write(tensor, kBytes, round);
    std::vector<std::byte> target(kBytes);
    Begin();
    std::vector<std::future<absl::Status>> answers;
    for (size_t at = 0; at < kBytes; at += 2000) {
      answers.push_back(Copy({Op(tensor + at, target.data() + at, 2000)}));
    }
    std::promise<void> queued;
    thread_.executor().Post([&] { queued.set_value(); });
    queued.get_future().get();
    EXPECT_EQ(copier_->Fence(world_->stream()), absl::OkStatus());
    world_->Write(tensor, kBytes, round + 100);
    for (size_t i = 0; i < answers.size(); ++i) {
      const absl::Status status = answers[i].get();
      ASSERT_TRUE(status.ok() || absl::IsAborted(status)) << status;
      ASSERT_TRUE(!status.ok() || IsAll(std::span(target).subspan(i * 2000, 2000), round));
    }
  }
}

TEST_P(DeviceCopierConformance, RestoresOnManyThreads) {
  constexpr size_t kShare = 25'000, kThreads = 4;
  std::byte* tensor = Tensor(kThreads * kShare, 0);
  ASSERT_EQ(copier_->BeginRestore(), absl::OkStatus());
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        std::vector<std::byte> source(1000, static_cast<std::byte>(i + 1));
        for (size_t at = i * kShare; at < (i + 1) * kShare; at += 1000) {
          const CopyOp op = Op(source.data(), tensor + at, 1000);
          EXPECT_EQ(copier_->Restore({&op, 1}), absl::OkStatus());
        }
      });
    }
  }
  EXPECT_EQ(copier_->EndRestore(), absl::OkStatus());
  const std::vector<std::byte> found = world_->Read(tensor, kThreads * kShare);
  for (size_t i = 0; i < kThreads; ++i) {
    EXPECT_TRUE(IsAll(std::span(found).subspan(i * kShare, kShare), static_cast<int>(i + 1)));
  }
}

TEST_P(DeviceCopierConformance, BytesOfARoomReachTheirTensors) {
  constexpr size_t kShare = 30'000, kThreads = 4, kPiece = 1000;
  std::byte* tensor = Tensor(kThreads * kShare, 0);
  ASSERT_EQ(copier_->BeginRestore(), absl::OkStatus());
  if (!on_device()) {
    EXPECT_TRUE(copier_->TakeRoom().empty());
    return;
  }
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        size_t done = 0;
        while (done < kShare) {
          const std::span<std::byte> room = copier_->TakeRoom();
          ASSERT_GE(room.size(), kPiece);
          std::ranges::fill(room, static_cast<std::byte>(i + 1));
          std::vector<RoomPiece> pieces;
          for (size_t at = 0; at + kPiece <= room.size() && done < kShare; at += kPiece) {
            const uint32_t crc = Crc32c(room.subspan(at, kPiece));
            pieces.push_back({at, kPiece, tensor + i * kShare + done, crc});
            done += kPiece;
          }
          EXPECT_EQ(copier_->Send(room, pieces), absl::OkStatus());
          EXPECT_EQ(copier_->Send(copier_->TakeRoom(), {}), absl::OkStatus());
        }
      });
    }
  }
  EXPECT_EQ(copier_->EndRestore(), absl::OkStatus());
  const std::vector<std::byte> found = world_->Read(tensor, kThreads * kShare);
  for (size_t i = 0; i < kThreads; ++i) {
    EXPECT_TRUE(IsAll(std::span(found).subspan(i * kShare, kShare), static_cast<int>(i + 1)));
  }
}

TEST_P(DeviceCopierConformance, AcceptsWhatItCopiesAndRefusesTheRestByName) {
  std::byte* tensor = Tensor(64, 0);
  const BoundTensor right = Bound("right", tensor, 64, world_->device());
  EXPECT_EQ(copier_->Accept({&right, 1}), absl::OkStatus());
  const BoundTensor wrong = Bound("wrong", tensor, 64, world_->device() + 1);
  const absl::Status status = copier_->Accept({&wrong, 1});
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("tensor wrong: needed"));
}

TEST_P(DeviceCopierConformance, LetsGoOfWhatKeepsMemoryMapped) {
  std::vector<std::byte> memory(1 << 16);
  auto owner = std::make_shared<int>();
  auto pin = copier_->Pin(owner, memory);
  pin.reset();
  copier_.reset();
  EXPECT_EQ(owner.use_count(), 1);
}

}  // namespace unreft::snapshot
