// TensorProbes: which bytes of the tensors are looked at, and that none of them changes unseen.

#include "snapshot/tensor_probes.h"

#include <gtest/gtest.h>

#include <set>

namespace unreft::snapshot {
namespace {

TensorSpec Spec(const std::string& name, uint64_t bytes) {
  return {.name = name,
          .dtype = Dtype::kUint8,
          .global_shape = {bytes},
          .offset = {0},
          .extent = {bytes}};
}

class TensorProbesTest : public testing::Test {
 protected:
  static constexpr uint64_t kRoom = 5000;

  TensorProbesTest() {
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<std::byte>(i * i >> 3);
  }
  // All of one memory, at an odd address.
  TensorProbes Make(const std::vector<TensorSpec>& specs, uint32_t lines, bool on_device = false) {
    memory_.assign(specs.size(), {bytes_.data() + 3, on_device});
    return {*layout::TensorTable::Create(specs), memory_, lines};
  }
  std::vector<uint64_t> Digest(const TensorProbes& probes, Step step) const {
    std::vector<uint64_t> digests(probes.host_count());
    probes.DigestHost(step, memory_, 0, digests);
    return digests;
  }

  std::vector<std::byte> bytes_ = std::vector<std::byte>(kRoom + 3);
  std::vector<ShardMemory> memory_;
};

TEST_F(TensorProbesTest, RangesAreLinesWithinTheTensorAndSmallTensorsAreWhole) {
  for (const uint32_t lines : {1U, 2U, 5U, TensorProbes::kLinesMax}) {
    for (const uint64_t bytes : {1, 63, 64, 65, 127, 128, 129, 1000, 1024, 1025, 1087, 5000}) {
      const TensorProbes probes = Make({Spec("a", bytes)}, lines);
      for (uint64_t step = 0; step < 100; ++step) {
        const auto ranges = probes.HostRanges(0, Step{step});
        if (bytes <= lines * 64) {
          ASSERT_EQ(ranges.size(), 1u);
          EXPECT_EQ(ranges[0].begin, 0u);
          EXPECT_EQ(ranges[0].bytes, bytes);
          continue;
        }
        ASSERT_EQ(ranges.size(), lines);
        for (const ProbedRange& range : ranges) {
          EXPECT_EQ(range.bytes, 64u);
          EXPECT_LE(range.begin + range.bytes, bytes);
        }
      }
    }
  }
}

TEST_F(TensorProbesTest, EveryLineIsLookedAtSoonerOrLater) {
  const TensorProbes probes = Make({Spec("a", 4999)}, 2);
  std::set<uint64_t> seen;
  for (uint64_t step = 1; step <= 1000; ++step) {
    for (const ProbedRange& range : probes.HostRanges(0, Step{step})) seen.insert(range.begin);
  }
  EXPECT_EQ(seen.size(), 79u);
  EXPECT_EQ(*seen.rbegin(), 4999u - 64);
}

TEST_F(TensorProbesTest, PlacesDependOnNameReplicaAndStepAlone) {
  const auto first = [](const TensorProbes& probes, uint64_t step) {
    std::vector<uint64_t> places;
    for (uint64_t at = step; at < step + 8; ++at) {
      for (const ProbedRange& range : probes.HostRanges(0, Step{at})) places.push_back(range.begin);
    }
    return places;
  };
  TensorSpec spec = Spec("a", 4096);
  spec.replica_count = 2;
  const auto places = first(Make({spec}, 2), 5);
  EXPECT_EQ(first(Make({spec, Spec("b", 1)}, 2), 5), places);
  EXPECT_NE(first(Make({spec}, 2), 6), places);
  spec.replica_index = 1;
  EXPECT_NE(first(Make({spec}, 2), 5), places);
  EXPECT_NE(first(Make({Spec("b", 4096)}, 2), 5), places);
}

TEST_F(TensorProbesTest, NoBitOfARangeChangesUnseen) {
  for (const uint64_t bytes : {1, 7, 8, 64, 77, 128, 4096}) {
    const TensorProbes probes = Make({Spec("a", bytes)}, 2);
    const auto before = Digest(probes, Step{9});
    for (const ProbedRange& range : probes.HostRanges(0, Step{9})) {
      for (uint64_t at = 0; at < range.bytes; ++at) {
        for (int bit = 0; bit < 8; ++bit) {
          std::byte& byte = memory_[0].data[range.begin + at];
          byte ^= std::byte{1} << bit;
          EXPECT_NE(Digest(probes, Step{9}), before) << bytes << " " << at << " " << bit;
          byte ^= std::byte{1} << bit;
        }
      }
    }
    EXPECT_EQ(Digest(probes, Step{9}), before);
  }
}

// Words that change places, or by the same difference, as an optimizer's constants do.
TEST_F(TensorProbesTest, DigestsOfLikeBytesDiffer) {
  const TensorProbes probes = Make({Spec("a", 128)}, 2);
  std::set<uint64_t> seen;
  for (int value = 0; value < 256; ++value) {
    std::fill_n(memory_[0].data, 128, static_cast<std::byte>(value));
    seen.insert(Digest(probes, Step{1})[0]);
  }
  std::fill_n(memory_[0].data, 128, std::byte{});
  for (int at = 0; at < 128; ++at) {
    memory_[0].data[at] = std::byte{1};
    seen.insert(Digest(probes, Step{1})[0]);
    memory_[0].data[at] = std::byte{};
  }
  EXPECT_EQ(seen.size(), 256u + 128u);
}

TEST_F(TensorProbesTest, SlicesAreThoseOfTheWhole) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 200; ++i) specs.push_back(Spec("t" + std::to_string(i), 1 + i * 23));
  const TensorProbes probes = Make(specs, 3);
  const auto all = Digest(probes, Step{4});
  for (const size_t first : {0, 1, 31, 32, 33, 150}) {
    std::vector<uint64_t> some(50);
    probes.DigestHost(Step{4}, memory_, first, some);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + static_cast<ptrdiff_t>(first)));
  }
}

// Its kernel and the host look at the same bytes and come to the same.
TEST_F(TensorProbesTest, ADeviceSeesWhatTheHostSees) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 200; ++i) specs.push_back(Spec("t" + std::to_string(i), 1 + i * 23));
  const TensorProbes on_host = Make(specs, 3);
  const auto digests = Digest(on_host, Step{4});
  const TensorProbes on_device = Make(specs, 3, /*on_device=*/true);
  std::vector<probing::Shard> shards(on_device.device_count());
  on_device.FillDeviceShards(memory_, shards);
  ASSERT_EQ(shards.size(), digests.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    EXPECT_EQ(probing::DigestShard(shards[i], 4, on_device.lines()), digests[i]) << i;
  }
}

TEST_F(TensorProbesTest, VolatileTensorsHaveNoneAndDevicesAreApart) {
  std::vector<TensorSpec> specs = {Spec("a", 10), Spec("v", 10), Spec("b", 10), Spec("d", 10)};
  specs[1].is_volatile = true;
  const auto table = *layout::TensorTable::Create(specs);
  std::vector<ShardMemory> memory(4, {bytes_.data()});
  memory[3].on_device = true;
  const TensorProbes probes(table, memory, 2);
  ASSERT_EQ(probes.host_count(), 2u);
  EXPECT_EQ(probes.host_tensor(0), 0u);
  EXPECT_EQ(probes.host_tensor(1), 2u);
  ASSERT_EQ(probes.device_count(), 1u);
  EXPECT_EQ(probes.device_tensor(0), 3u);
  EXPECT_EQ(TensorProbes(table, memory, 0).host_count(), 0u);
  EXPECT_EQ(TensorProbes(table, memory, 1000).HostRanges(0, Step{1}).size(), 1u);
}

TEST_F(TensorProbesTest, WrittenTensorsAreNamed) {
  const TensorProbes probes =
      Make({Spec("model/x", 9), Spec("b", 9), Spec("c", 9), Spec("d", 9), Spec("e", 9)}, 2);
  WrittenTensors written;
  written.Add(0);
  EXPECT_EQ(probes.Describe(written), "tensor 'model/x'");
  WrittenTensors others;
  others.Add(2);
  others.Add(4);
  others.Add(3);
  written.Add(others);
  EXPECT_EQ(written.count, 4u);
  EXPECT_EQ(probes.Describe(written), "tensors 'model/x', 'c', 'e' and 1 more");
}

TEST_F(TensorProbesTest, ATensorOfSeveralShardsIsNamedOnce) {
  TensorSpec half = Spec("m", 9);
  half.global_shape = {18};
  TensorSpec other = half;
  other.offset = {9};
  const TensorProbes probes = Make({half, other, Spec("b", 9)}, 2);
  WrittenTensors written;
  written.Add(0);
  written.Add(1);
  EXPECT_EQ(probes.Describe(written), "tensor 'm'");
  written.Add(2);
  EXPECT_EQ(probes.Describe(written), "tensors 'm', 'b'");
}

}  // namespace
}  // namespace unreft::snapshot
