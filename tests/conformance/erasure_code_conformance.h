// What every ErasureCode does: one suite, instantiated on ISA-L and on the reference.
//
// An implementation gives its factory and how many loss patterns it is fast enough for.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "ec/erasure_code.h"

namespace unreft::ec {

using Chunk = std::vector<std::byte>;

struct CodeUnderTest {
  std::string name;
  std::function<std::unique_ptr<ErasureCode>(CodeShape)> make;
  uint32_t exhaustive_n_max = 0;  // every loss pattern up to this many chunks
  uint32_t k_max = 0;             // in the patterns of up to three losses and the drawn ones
  int drawn = 0;                  // patterns of more losses for each larger shape

  friend void PrintTo(const CodeUnderTest& code, std::ostream* out) { *out << code.name; }
};

// A stripe of random bytes with its parities; some of the data chunks may be zeros that are
// nowhere.
class Stripe {
 public:
  Stripe(const ErasureCode& code, size_t bytes, Random& random, uint32_t zeros_one_in = 0)
      : shape_(code.shape()), bytes_(bytes), chunks_(shape_.n(), Chunk(bytes)) {
    std::vector<std::span<const std::byte>> data;
    std::vector<std::span<std::byte>> parity;
    for (uint32_t i = 0; i < shape_.n(); ++i) {
      absent_.push_back(i < shape_.k && zeros_one_in > 0 && random.OneIn(zeros_one_in));
      // A parity has other bytes before, in which what is not written shows.
      for (std::byte& byte : chunks_[i]) byte = std::byte(absent_[i] ? 0 : random.Next() >> 56);
      if (i < shape_.k) {
        data.push_back(readable(i));
      } else {
        parity.push_back(chunks_[i]);
      }
    }
    code.Encode(data, parity);
  }

  size_t bytes() const { return bytes_; }
  const Chunk& chunk(uint32_t index) const { return chunks_[index]; }
  // As a source: empty for the zeros that are nowhere.
  std::span<const std::byte> readable(uint32_t index) const {
    return absent_[index] ? std::span<const std::byte>() : std::span(chunks_[index]);
  }

  // Rebuilds `lost` from k of the other chunks, drawn at random; compares the bytes in
  // [begin, begin + length), which alone are read and written.
  testing::AssertionResult Rebuilds(const ErasureCode& code, const std::vector<uint32_t>& lost,
                                    Random& random, size_t begin, size_t length) const {
    const auto chosen = ChooseSources(shape_, Survivors(lost, random));
    if (!chosen.ok()) return testing::AssertionFailure() << chosen.status();
    std::vector<SourceChunk> sources;
    for (const uint32_t i : *chosen) {
      sources.push_back({i, absent_[i] ? readable(i) : readable(i).subspan(begin, length)});
    }
    std::vector<Chunk> rebuilt(lost.size(), Chunk(bytes_, std::byte{0xa5}));
    std::vector<TargetChunk> targets;
    for (size_t i = 0; i < lost.size(); ++i) {
      targets.push_back({lost[i], std::span(rebuilt[i]).subspan(begin, length)});
    }
    const absl::Status status = code.Reconstruct(sources, targets);
    if (!status.ok()) return testing::AssertionFailure() << status;
    for (size_t i = 0; i < lost.size(); ++i) {
      Chunk expected(bytes_, std::byte{0xa5});
      std::copy_n(chunks_[lost[i]].begin() + begin, length, expected.begin() + begin);
      if (rebuilt[i] != expected) {
        return testing::AssertionFailure()
               << fmt::format("RS({},{}) chunk {} of lost [{}], bytes {}+{} of {}", shape_.k,
                              shape_.m, lost[i], fmt::join(lost, " "), begin, length, bytes_);
      }
    }
    return testing::AssertionSuccess();
  }
  testing::AssertionResult Rebuilds(const ErasureCode& code, const std::vector<uint32_t>& lost,
                                    Random& random) const {
    return Rebuilds(code, lost, random, 0, bytes_);
  }

  // All chunks but `lost`, in random order.
  std::vector<uint32_t> Survivors(const std::vector<uint32_t>& lost, Random& random) const {
    std::vector<uint32_t> left;
    for (uint32_t i = 0; i < shape_.n(); ++i) {
      if (std::find(lost.begin(), lost.end(), i) == lost.end()) left.push_back(i);
    }
    Shuffle(left, random);
    return left;
  }

  static void Shuffle(std::vector<uint32_t>& values, Random& random) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.Below(i)]);
  }

 private:
  const CodeShape shape_;
  const size_t bytes_;
  std::vector<Chunk> chunks_;
  std::vector<bool> absent_;
};

// Calls `body` with every set of `size` of the numbers 0..n-1, in order.
inline void ForEachSubset(uint32_t n, uint32_t size,
                          const std::function<void(const std::vector<uint32_t>&)>& body) {
  std::vector<uint32_t> set(size);
  std::iota(set.begin(), set.end(), 0);
  while (true) {
    body(set);
    uint32_t i = size;
    while (i > 0 && set[i - 1] == n - size + i - 1) --i;
    if (i == 0) return;
    ++set[i - 1];
    for (; i < size; ++i) set[i] = set[i - 1] + 1;
  }
}

class ErasureCodeConformance : public testing::TestWithParam<CodeUnderTest> {
 protected:
  std::unique_ptr<ErasureCode> Make(CodeShape shape) const { return GetParam().make(shape); }
  Random random_{1};
};

// One case for each m, so that they run side by side.
class ErasureCodePatterns : public testing::TestWithParam<std::tuple<CodeUnderTest, uint32_t>> {
 protected:
  const CodeUnderTest& under_test() const { return std::get<0>(GetParam()); }
  uint32_t m() const { return std::get<1>(GetParam()); }

  // Stripes of several small lengths, taken in turn; every other has zeros that are nowhere.
  std::vector<Stripe> Stripes(const ErasureCode& code) {
    std::vector<Stripe> stripes;
    for (const size_t bytes : {1, 7, 31, 32, 63, 64, 65, 70}) {
      stripes.emplace_back(code, bytes, random_, bytes % 2 == 0 ? 3 : 0);
    }
    return stripes;
  }

  // Every pattern of min..max losses (in m too) of one shape.
  void EveryPattern(uint32_t k, uint32_t min, uint32_t max) {
    const auto code = under_test().make({k, m()});
    const std::vector<Stripe> stripes = Stripes(*code);
    for (uint32_t losses = min; losses <= std::min(max, m()); ++losses) {
      ForEachSubset(k + m(), losses, [&](const std::vector<uint32_t>& lost) {
        Check(*code, stripes[patterns_++ % stripes.size()], lost);
      });
      if (HasFailure()) return;
    }
  }

  void Check(const ErasureCode& code, const Stripe& stripe, const std::vector<uint32_t>& lost) {
    const auto result = stripe.Rebuilds(code, lost, random_);
    if (!result) ADD_FAILURE() << result.message();
  }

  Random random_{m()};
  size_t patterns_ = 0;
};

TEST_P(ErasureCodePatterns, EveryLossOfSmallGroups) {
  for (uint32_t k = 1; k + m() <= under_test().exhaustive_n_max && !HasFailure(); ++k) {
    EveryPattern(k, 0, m());
  }
  RecordProperty("patterns", std::to_string(patterns_));
}

TEST_P(ErasureCodePatterns, EveryLossOfUpToThree) {
  for (uint32_t k = 1; k <= under_test().k_max && !HasFailure(); ++k) EveryPattern(k, 0, 3);
  RecordProperty("patterns", std::to_string(patterns_));
}

using ErasureCodeDrawnPatterns = ErasureCodePatterns;  // m > 3

TEST_P(ErasureCodeDrawnPatterns, MoreThanThreeLossesOfLargeGroups) {
  for (uint32_t k = 1; k <= under_test().k_max; ++k) {
    if (k + m() <= under_test().exhaustive_n_max) continue;
    const auto code = under_test().make({k, m()});
    const std::vector<Stripe> stripes = Stripes(*code);
    std::vector<uint32_t> chunks(k + m());
    std::iota(chunks.begin(), chunks.end(), 0);
    for (int i = 0; i < under_test().drawn && !HasFailure(); ++i) {
      Stripe::Shuffle(chunks, random_);
      const auto losses = static_cast<ptrdiff_t>(4 + random_.Below(m() - 3));
      Check(*code, stripes[patterns_++ % stripes.size()],
            {chunks.begin(), chunks.begin() + losses});
    }
  }
  RecordProperty("patterns", std::to_string(patterns_));
}

TEST_P(ErasureCodeConformance, KnowsItsShape) {
  EXPECT_EQ(Make({6, 2})->shape(), (CodeShape{6, 2}));
}

TEST_P(ErasureCodeConformance, OneLossTooManyIsDataLossWithNumbers) {
  for (uint32_t k = 1; k <= GetParam().k_max; ++k) {
    for (uint32_t m = 0; m <= kParityChunksMax; ++m) {
      const auto code = Make({k, m});
      const Stripe stripe(*code, 70, random_);
      std::vector<uint32_t> lost(k + m);
      std::iota(lost.begin(), lost.end(), 0);
      Stripe::Shuffle(lost, random_);
      lost.resize(m + 1);
      std::vector<SourceChunk> sources;
      for (const uint32_t i : stripe.Survivors(lost, random_)) {
        sources.push_back({i, stripe.readable(i)});
      }
      Chunk target(70, std::byte{0xa5});
      const absl::Status status = code->Reconstruct(sources, {{{lost[0], target}}});
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      EXPECT_THAT(std::string(status.message()),
                  testing::HasSubstr(
                      fmt::format("RS({},{}): {} chunks are needed, {} are left", k, m, k, k - 1)));
      EXPECT_EQ(target, Chunk(70, std::byte{0xa5})) << "nothing is written";
    }
  }
}

TEST_P(ErasureCodeConformance, RefusesIndicesThatCannotBe) {
  const auto code = Make({2, 2});
  const Chunk source(8);
  Chunk target(8);
  const auto try_it = [&](const std::vector<uint32_t>& from, uint32_t to) {
    std::vector<SourceChunk> sources;
    for (const uint32_t i : from) sources.push_back({i, source});
    return code->Reconstruct(sources, {{{to, target}}}).code();
  };
  EXPECT_EQ(try_it({0, 2}, 1), absl::StatusCode::kOk);
  EXPECT_EQ(try_it({0, 4}, 1), absl::StatusCode::kInvalidArgument) << "no such source";
  EXPECT_EQ(try_it({0, 2}, 4), absl::StatusCode::kInvalidArgument) << "no such target";
  EXPECT_EQ(try_it({0, UINT32_MAX}, 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(try_it({2, 2}, 1), absl::StatusCode::kInvalidArgument) << "twice";
  EXPECT_EQ(try_it({0, 2}, 2), absl::StatusCode::kInvalidArgument) << "read and written";
  EXPECT_EQ(try_it({0, 2, 3}, 1), absl::StatusCode::kInvalidArgument) << "more than k";
}

TEST_P(ErasureCodeConformance, RebuildsAnyPartOfAChunk) {
  for (const CodeShape shape : {CodeShape{1, 1}, {2, 2}, {4, 2}, {6, 3}}) {
    const auto code = Make(shape);
    const Stripe stripe(*code, 300, random_, 4);
    for (int i = 0; i < 200; ++i) {
      const size_t begin = random_.Below(301);
      const size_t length = random_.Below(301 - begin);
      std::vector<uint32_t> lost = stripe.Survivors({}, random_);
      lost.resize(1 + random_.Below(shape.m));
      ASSERT_TRUE(stripe.Rebuilds(*code, lost, random_, begin, length));
    }
  }
}

TEST_P(ErasureCodeConformance, TakesEveryLength) {
  const auto code = Make({4, 2});
  for (size_t bytes = 0; bytes <= 300; ++bytes) {
    const Stripe stripe(*code, bytes, random_);
    ASSERT_TRUE(stripe.Rebuilds(*code, {1, 3}, random_));
    ASSERT_TRUE(stripe.Rebuilds(*code, {0, 5}, random_));
  }
}

TEST_P(ErasureCodeConformance, TakesLongChunks) {
  for (const CodeShape shape : {CodeShape{2, 2}, {5, 3}}) {
    const auto code = Make(shape);
    const Stripe stripe(*code, 200'003, random_);
    std::vector<uint32_t> lost = stripe.Survivors({}, random_);
    lost.resize(shape.m);
    EXPECT_TRUE(stripe.Rebuilds(*code, lost, random_));
  }
}

// Parity is linear, so a chunk of zeros and one that is nowhere must give the same.
TEST_P(ErasureCodeConformance, ZerosThatAreNowhereAreZeros) {
  const auto code = Make({4, 3});
  for (uint32_t absent = 0; absent < 16; ++absent) {
    std::vector<Chunk> data(4, Chunk(70));
    std::vector<std::span<const std::byte>> with(4);
    std::vector<std::span<const std::byte>> without(4);
    for (uint32_t j = 0; j < 4; ++j) {
      const bool zero = (absent >> j & 1) != 0;
      for (std::byte& byte : data[j]) byte = std::byte(zero ? 0 : random_.Next() >> 56);
      with[j] = data[j];
      without[j] = zero ? std::span<const std::byte>() : with[j];
    }
    std::vector<Chunk> one(3, Chunk(70, std::byte{1}));
    std::vector<Chunk> other(3, Chunk(70, std::byte{2}));
    code->Encode(with, std::vector<std::span<std::byte>>(one.begin(), one.end()));
    code->Encode(without, std::vector<std::span<std::byte>>(other.begin(), other.end()));
    EXPECT_EQ(one, other) << absent;
  }
}

TEST_P(ErasureCodeConformance, RebuildsZerosFromZerosThatAreNowhere) {
  const auto code = Make({3, 2});
  Chunk target(70, std::byte{1});
  const absl::Status status = code->Reconstruct({{{1, {}}, {2, {}}, {4, {}}}}, {{{0, target}}});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(target, Chunk(70));
}

// What repair pipelining rests on: each survivor adds its own part, all others being nowhere.
TEST_P(ErasureCodeConformance, PartsOfTheSourcesAddToTheWhole) {
  const auto code = Make({4, 2});
  const Stripe stripe(*code, 70, random_);
  const std::vector<uint32_t> read{5, 0, 4, 3};
  std::vector<Chunk> sum(2, Chunk(70));
  for (const uint32_t mine : read) {
    std::vector<SourceChunk> sources;
    for (const uint32_t i : read) {
      sources.push_back({i, i == mine ? stripe.readable(i) : std::span<const std::byte>()});
    }
    std::vector<Chunk> part(2, Chunk(70));
    ASSERT_TRUE(code->Reconstruct(sources, {{{1, part[0]}, {2, part[1]}}}).ok());
    for (size_t t = 0; t < 2; ++t) {
      for (size_t at = 0; at < 70; ++at) sum[t][at] ^= part[t][at];
    }
  }
  EXPECT_EQ(sum[0], stripe.chunk(1));
  EXPECT_EQ(sum[1], stripe.chunk(2));
}

TEST_P(ErasureCodeConformance, WithoutParityThereIsNothingToDo) {
  const auto code = Make({3, 0});
  const Chunk chunk(9, std::byte{1});
  code->Encode(std::vector<std::span<const std::byte>>(3, chunk), {});
  EXPECT_TRUE(code->Reconstruct({{{0, chunk}, {1, chunk}, {2, chunk}}}, {}).ok());
}

TEST_P(ErasureCodeConformance, BytesOfNoLengthAreAllRight) {
  const auto code = Make({2, 2});
  const std::vector<std::span<const std::byte>> data(2);
  const std::vector<std::span<std::byte>> parity(2);
  code->Encode(data, parity);
  EXPECT_TRUE(code->Reconstruct({{{0, {}}, {3, {}}}}, {{{1, {}}, {2, {}}}}).ok());
}

TEST_P(ErasureCodeConformance, ThreadsShareACode) {
  const auto code = Make({4, 3});
  const auto use = [&code](uint64_t seed) {
    Random random(seed);
    for (int i = 0; i < 50; ++i) {
      const Stripe stripe(*code, 1 + random.Below(200), random, 3);
      EXPECT_TRUE(stripe.Rebuilds(*code, {0, 2, 5}, random));
    }
  };
  std::jthread other(use, 1);
  use(2);
}

using ErasureCodeConformanceDeathTest = ErasureCodeConformance;

TEST_P(ErasureCodeConformanceDeathTest, BrokenPreconditionsAreChecks) {
  const auto code = Make({2, 1});
  std::array<std::byte, 32> bytes{};
  const auto part = [&](size_t at, size_t length) { return std::span(bytes).subspan(at, length); };
  const auto encode = [&](std::vector<std::span<const std::byte>> data,
                          std::vector<std::span<std::byte>> parity) { code->Encode(data, parity); };
  EXPECT_DEATH(encode({part(0, 8)}, {part(16, 8)}), "1 data chunks");
  EXPECT_DEATH(encode({part(0, 8), part(8, 8)}, {}), "0 parity chunks");
  EXPECT_DEATH(encode({part(0, 8), part(8, 7)}, {part(16, 8)}), "7 bytes to read, 8 to write");
  EXPECT_DEATH(encode({part(0, 8), part(8, 8)}, {part(15, 8)}), "read and written");
  encode({part(0, 8), part(0, 8)}, {part(8, 8)});  // data may be one and the same
}

}  // namespace unreft::ec
