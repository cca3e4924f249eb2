// The ErasureCode suite on ISA-L and on the reference, and that both give the same bytes.
//
// ISA-L: every loss of up to 14 chunks, every loss of up to three for k <= 32, and 1,000 drawn ones
// of four to m for each larger shape. The reference, which is slow: 10 chunks, k <= 10, 50.

#include "tests/conformance/erasure_code_conformance.h"

#include "ec/isal_code.h"
#include "tests/fakes/reference_code.h"

namespace unreft::ec {
namespace {

std::unique_ptr<ErasureCode> MakeIsal(CodeShape shape) {
  auto code = IsalCode::Make(shape);
  EXPECT_TRUE(code.ok()) << code.status();
  return *std::move(code);
}

const CodeUnderTest kIsal{.name = "Isal",
                          .make = MakeIsal,
                          .exhaustive_n_max = 14,
                          .k_max = kDataChunksMax,
                          .drawn = 1000};
const CodeUnderTest kReference{
    .name = "Reference",
    .make = [](CodeShape shape) { return std::make_unique<ReferenceCode>(shape); },
    .exhaustive_n_max = 10,
    .k_max = 10,
    .drawn = 50};

const auto kCodes = testing::Values(kIsal, kReference);
const auto kParities = testing::Range(0u, kParityChunksMax + 1);
const auto kMoreParities = testing::Range(4u, kParityChunksMax + 1);

std::string Name(const testing::TestParamInfo<CodeUnderTest>& info) { return info.param.name; }

std::string NameWithParities(
    const testing::TestParamInfo<std::tuple<CodeUnderTest, uint32_t>>& info) {
  return fmt::format("{}M{}", std::get<0>(info.param).name, std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Codes, ErasureCodeConformance, kCodes, Name);
INSTANTIATE_TEST_SUITE_P(Codes, ErasureCodeConformanceDeathTest, kCodes, Name);
INSTANTIATE_TEST_SUITE_P(Codes, ErasureCodePatterns, testing::Combine(kCodes, kParities),
                         NameWithParities);
INSTANTIATE_TEST_SUITE_P(Codes, ErasureCodeDrawnPatterns, testing::Combine(kCodes, kMoreParities),
                         NameWithParities);

TEST(IsalCode, GivesTheReferencesParity) {
  Random random(1);
  const auto expect_equal = [&](CodeShape shape, size_t bytes) {
    const ReferenceCode reference(shape);
    const uint64_t seed = random.Next();
    Random same(seed);
    Random bytes_of(seed);
    const Stripe expected(reference, bytes, bytes_of, 5);
    const Stripe stripe(*MakeIsal(shape), bytes, same, 5);
    for (uint32_t i = 0; i < shape.n(); ++i) {
      ASSERT_EQ(stripe.chunk(i), expected.chunk(i)) << shape.k << "+" << shape.m << " chunk " << i;
    }
  };
  for (uint32_t k = 1; k <= kDataChunksMax; ++k) {
    for (uint32_t m = 0; m <= kParityChunksMax; ++m) expect_equal({k, m}, 1 + random.Below(200));
  }
  // Over the edges of the tiles, whose size depends on the shape.
  for (const CodeShape shape : {CodeShape{1, 1}, {2, 2}, {6, 2}, {3, 8}}) {
    expect_equal(shape, 131'072 + random.Below(200));
  }
}

// The bytes that nodes exchange: a change of the matrix would show here in both.
TEST(IsalCode, ParityIsWhatTheHeaderSays) {
  const std::vector<Chunk> data{{std::byte{1}, std::byte{0}}, {std::byte{0}, std::byte{7}}};
  std::vector<Chunk> parity(2, Chunk(2));
  MakeIsal({2, 2})->Encode(std::vector<std::span<const std::byte>>(data.begin(), data.end()),
                           std::vector<std::span<std::byte>>(parity.begin(), parity.end()));
  const auto byte = [&](uint32_t p, size_t at) { return std::to_integer<uint8_t>(parity[p][at]); };
  EXPECT_EQ(GfMultiply(byte(0, 0), 2), 1) << "1 / (2 xor 0)";
  EXPECT_EQ(GfMultiply(byte(0, 1), 3), 7) << "7 / (2 xor 1)";
  EXPECT_EQ(GfMultiply(byte(1, 0), 3), 1) << "1 / (3 xor 0)";
  EXPECT_EQ(GfMultiply(byte(1, 1), 2), 7) << "7 / (3 xor 1)";
}

TEST(CodeShape, IsRefusedOutsideItsLimits) {
  for (const CodeShape shape : {CodeShape{0, 1}, {33, 1}, {1, 9}, {UINT32_MAX, UINT32_MAX}}) {
    const absl::Status status = IsalCode::Make(shape).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        std::string(status.message()),
        testing::HasSubstr(fmt::format("RS({},{}): k must be 1..32 and m 0..8", shape.k, shape.m)));
  }
  EXPECT_TRUE(CheckShape({32, 8}).ok());
  EXPECT_TRUE(CheckShape({1, 0}).ok());
}

TEST(ChooseSources, TakesTheCheapestInTheirOrder) {
  EXPECT_THAT(*ChooseSources({3, 2}, {{4, 0, 2, 1}}), testing::ElementsAre(4, 0, 2));
}

TEST(ChooseSources, RefusesTooFewWithNumbers) {
  const absl::Status status = ChooseSources({3, 2}, {{4, 0}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "RS(3,2): 3 chunks are needed, 2 are left");
  for (uint32_t k = 1; k <= kDataChunksMax; ++k) {
    for (uint32_t m = 0; m <= kParityChunksMax; ++m) {
      std::vector<uint32_t> left(k);
      std::iota(left.begin(), left.end(), m);
      EXPECT_TRUE(ChooseSources({k, m}, left).ok());
      left.pop_back();
      EXPECT_EQ(ChooseSources({k, m}, left).status().code(), absl::StatusCode::kDataLoss);
    }
  }
}

TEST(ChooseSources, RefusesIndicesThatCannotBe) {
  EXPECT_EQ(ChooseSources({2, 2}, {{0, 4}}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ChooseSources({2, 2}, {{3, 3}}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace unreft::ec
