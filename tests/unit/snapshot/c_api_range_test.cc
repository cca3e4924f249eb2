// Tensors that are ranges of their boxes, at the C ABI: what the daemon is told of them, where
// their bytes come from and go to, what their numbers mean, and what is refused.

#include <gmock/gmock.h>

#include <array>
#include <cstring>
#include <numeric>

#include "tests/unit/snapshot/c_api_fixture.h"

namespace unreft::snapshot {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;

using Range = std::array<uint64_t, 2>;

// A scalar, a range of a matrix that is three boxes, a range of nothing, and a row of numbers.
class CApiRangeTest : public CApiLifeTest {
 protected:
  CApiRangeTest() {
    std::iota(part_.begin(), part_.end(), 100.0F);
    std::iota(last_.begin(), last_.end(), 1.0F);
    unreft::Tensor range = tensor_;
    range.name = "m";
    range.global_shape = {6, 9};
    range.offset = {1, 2};
    range.extent = {4, 5};
    range.data = part_.data();
    range.range = Range{3, 17};
    unreft::Tensor empty = range;
    empty.name = "e";
    empty.data = nullptr;
    empty.range = Range{20, 20};
    tensors_ = {Named("s", {}, &first_), range, empty, Named("v", {3}, last_.data())};
  }

  unreft::Tensor Named(const std::string& name, std::vector<uint64_t> shape, float* data) const {
    unreft::Tensor tensor;
    tensor.name = name;
    tensor.global_shape = std::move(shape);
    tensor.data = data;
    return tensor;
  }
  void Register() {
    ASSERT_TRUE(client_->Restore().ok());
    const auto done = client_->Register(tensors_, 0);
    ASSERT_TRUE(done.ok()) << done.error().message;
    daemon_.InTurn([&] { daemon_.daemon().Grant(0, 1); });
  }
  std::vector<TensorSpec> Registered() {
    std::vector<TensorSpec> specs;
    daemon_.InTurn([&] {
      specs = FromWire(std::move(daemon_.daemon().Got<unreft::Register>().back().tensors));
    });
    return specs;
  }
  // As it lies in the slab, where each shard begins at a multiple of 64 bytes.
  void ExpectSlab(uint64_t step, const std::vector<std::vector<float>>& shards) {
    const auto snapped = client_->Snapshot(step);
    ASSERT_TRUE(snapped.ok() && snapped->started) << snapped->reason;
    ASSERT_TRUE(client_->Fence().ok());
    daemon_.InTurn([&] {
      const std::byte* at = daemon_.daemon().slot(0).view->data().data();
      for (const std::vector<float>& shard : shards) {
        std::vector<float> found(shard.size());
        std::memcpy(found.data(), at, shard.size() * sizeof(float));
        EXPECT_EQ(found, shard);
        at += 64;
      }
    });
  }

  float first_ = 7;
  std::vector<float> part_ = std::vector<float>(14);
  std::vector<float> last_ = std::vector<float>(3);
  std::vector<unreft::Tensor> tensors_;
};

std::vector<float> Numbers(float from, size_t count) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), from);
  return numbers;
}

TEST_F(CApiRangeTest, IsRegisteredAndCapturedAsItsBoxes) {
  Register();
  const auto box = [](const std::string& name, std::vector<uint64_t> shape,
                      std::vector<uint64_t> offset, std::vector<uint64_t> extent) {
    return TensorSpec{.name = name,
                      .global_shape = std::move(shape),
                      .offset = std::move(offset),
                      .extent = std::move(extent)};
  };
  EXPECT_THAT(Registered(), ElementsAre(box("s", {}, {}, {}), box("m", {6, 9}, {1, 5}, {1, 2}),
                                        box("m", {6, 9}, {2, 2}, {2, 5}),
                                        box("m", {6, 9}, {4, 2}, {1, 2}), box("v", {3}, {0}, {3})));
  ExpectSlab(1, {{7}, Numbers(100, 2), Numbers(102, 10), Numbers(112, 2), {1, 2, 3}});
}

TEST_F(CApiRangeTest, ItsNumberGoesOnToMeanTheTensorThatTheCallerGave) {
  Register();
  std::vector<float> other = Numbers(500, 14);
  std::vector<float> other_last = Numbers(-3, 3);
  const auto rebound = client_->Rebind({3, 2, 1}, {other_last.data(), nullptr, other.data()});
  ASSERT_TRUE(rebound.ok()) << rebound.error().message;
  ExpectSlab(1, {{7}, Numbers(500, 2), Numbers(502, 10), Numbers(512, 2), {-3, -2, -1}});

  const auto beyond = client_->Rebind({4}, {other.data()});
  EXPECT_EQ(beyond.error().code, UNREFT_OUT_OF_RANGE);
  EXPECT_THAT(beyond.error().message, HasSubstr("tensor 4: needed one of the 4 tensors"));
  const auto null = client_->Rebind({1}, {nullptr});
  EXPECT_EQ(null.error().code, UNREFT_INVALID_ARGUMENT);
  EXPECT_THAT(null.error().message, HasSubstr("tensor 1: data is NULL"));
}

TEST_F(CApiRangeTest, ARegistrationThatIsRefusedLeavesTheNumbersOfTheOneBefore) {
  Register();
  std::vector<unreft::Tensor> refused = tensors_;
  refused.erase(refused.begin());
  refused.back().extent = {4};
  ASSERT_FALSE(client_->Register(refused, 0).ok());
  float other = 8;
  ASSERT_TRUE(client_->Rebind({0}, {&other}).ok());
  ExpectSlab(1, {{8}, Numbers(100, 2), Numbers(102, 10), Numbers(112, 2), {1, 2, 3}});
}

TEST_F(CApiRangeTest, ARankMayHaveNothingOfAllThatItNames) {
  tensors_ = {tensors_[2]};
  Register();
  EXPECT_THAT(Registered(), testing::IsEmpty());
  EXPECT_TRUE(client_->Rebind({0}, {nullptr}).ok());
  EXPECT_EQ(client_->Rebind({1}, {nullptr}).error().code, UNREFT_OUT_OF_RANGE);
}

// By what the plan says of the boxes, which are the targets that the daemon is asked for.
TEST_F(CApiRangeTest, IsReadAsItsBoxes) {
  std::vector<float> stored = Numbers(1000, 14);
  daemon_.InTurn([&] {
    ScriptedDaemon& daemon = daemon_.daemon();
    daemon.Grant(0, 1);
    std::memcpy(daemon.slot(0).view->data().data(), stored.data(), 56);
    daemon.Seal({.slot = SlotId{0}, .generation = Generation{1}, .data_bytes = 56});
    daemon.decision = Decision{.kind = DecisionKind::kRestored, .timeline = Timeline{8}};
    daemon.plan = RestorePlan{.sources = {{.slot = daemon.Where(0)}},
                              .pieces = {{.target = 0, .bytes = 8},
                                         {.target = 1, .source_offset = 8, .bytes = 40},
                                         {.target = 2, .source_offset = 48, .bytes = 8}}};
  });
  ASSERT_TRUE(client_->Restore().ok());
  const auto read = client_->Read({tensors_[2], tensors_[1]});
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(part_, stored);
}

TEST_F(CApiRangeTest, WhatIsNoRangeIsNamed) {
  const auto expect = [&](auto change, const std::string& message) {
    unreft::Tensor tensor = tensors_[1];
    change(tensor);
    for (const auto& done : {client_->Register({tensor}, 0), client_->Read({tensor})}) {
      ASSERT_FALSE(done.ok()) << message;
      EXPECT_EQ(done.error().code, UNREFT_INVALID_ARGUMENT) << done.error().message;
      EXPECT_THAT(done.error().message, HasSubstr(message));
    }
  };
  using T = unreft::Tensor;
  expect([](T& t) { t.range = Range{3, 21}; },
         "tensor 'm': its range needs 0 <= begin <= end <= 20, the elements of the box [1:5, 2:7), "
         "found begin 3 and end 21");
  expect([](T& t) { t.range = Range{9, 8}; }, "found begin 9 and end 8");
  expect([](T& t) { t.range = Range{UINT64_MAX, UINT64_MAX}; }, "tensor 'm': its range needs");
  expect([](T& t) { t.memory_order = {1, 0}; },
         "tensor m: a range needs row-major elements, found memory_order [1, 0]");
  expect([](T& t) { t.data = nullptr; }, "tensor m: data is NULL");
  expect([](T& t) { t.dtype = 99; }, "tensor 'm': unknown dtype 99");
  expect([](T& t) { t.extent = {6, 5}; }, "tensor 'm': offset 1 and extent 6 in dimension 0");
  expect([](T& t) { t.extent = {UINT64_MAX, UINT64_MAX}; }, "tensor 'm': offset 1 and extent");

  unreft::Tensor after = tensors_[1];
  after.range = Range{10, 12};
  const auto overlap = client_->Register({tensors_[1], after}, 0);
  ASSERT_FALSE(overlap.ok());
  EXPECT_THAT(overlap.error().message,
              HasSubstr("tensor 'm': two shards of it overlap, [2:4, 2:7) and [3:4, 2:4)"));
}

TEST_F(CApiRangeTest, AMemoryOrderThatIsRowMajorIsNoHindrance) {
  tensors_[1].memory_order = {0, 1};
  Register();
  EXPECT_EQ(Registered().size(), 5U);
}

// Compiled with a header that ended before it: what follows a tensor is the next one.
TEST_F(CApiRangeTest, AnOlderCallersTensorsHaveNone) {
  constexpr size_t kOlder = offsetof(unreft_tensor, range);
  unreft_open_options options;
  unreft_open_options_init(&options);
  options.socket = daemon_.socket().c_str();
  client_.reset();  // of the same rank
  unreft_client* client = nullptr;
  ASSERT_EQ(unreft_open(&options, &client), UNREFT_OK);
  unreft_decision decision{};
  decision.struct_bytes = sizeof(decision);
  ASSERT_EQ(unreft_restore_begin(client, &decision), UNREFT_OK) << unreft_error();
  alignas(unreft_tensor) std::array<std::byte, 2 * kOlder> tensors;
  const uint64_t shape = 3;
  const uint64_t offset = 0;
  for (size_t i = 0; i < 2; ++i) {
    unreft_tensor tensor;
    unreft_tensor_init_sized(&tensor, kOlder);
    tensor.name = i == 0 ? "a" : "b";
    tensor.dtype = UNREFT_FLOAT32;
    tensor.dims = 1;
    tensor.global_shape = tensor.extent = &shape;
    tensor.offset = &offset;
    tensor.data = last_.data();
    std::memcpy(&tensors[i * kOlder], &tensor, kOlder);
  }
  EXPECT_EQ(unreft_register(client, reinterpret_cast<unreft_tensor*>(tensors.data()), 2, 0),
            UNREFT_OK)
      << unreft_error();
  unreft_close(client);
  EXPECT_THAT(Registered(), ElementsAre(Field(&TensorSpec::extent, ElementsAre(3)),
                                        Field(&TensorSpec::extent, ElementsAre(3))));
}

}  // namespace
}  // namespace unreft::snapshot
