// A manifest that is read in place is the one that DecodeManifest makes of the same bytes.
#include "layout/manifest_view.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/unit/format_testing.h"

namespace unreft::layout {
namespace {

SlotManifest ManifestOf(const ManifestView& view) {
  SlotManifest manifest = view.head();
  for (const TensorView& tensor : view.tensors()) manifest.tensors.push_back(SpecOf(tensor));
  manifest.parts = {view.parts().begin(), view.parts().end()};
  return manifest;
}

// Whether the bytes were taken.
bool Compare(const std::string& bytes, ManifestView& view) {
  const absl::StatusOr<SlotManifest> decoded = DecodeManifest(bytes);
  const absl::Status status = view.Read(bytes);
  EXPECT_EQ(status, decoded.status());
  if (decoded.ok() && status.ok()) EXPECT_EQ(ManifestOf(view), *decoded);
  return status.ok();
}

uint64_t AnyNumber(Random& random) {
  const uint64_t near = uint64_t{1} << random.Below(64);
  return random.OneIn(4) ? random.Next() : near + random.Below(3) - 1;
}

// Another number in one place, mostly one that a manifest cannot have.
void Disturb(Random& random, SlotManifest& m) {
  TensorSpec& tensor = m.tensors[random.Below(m.tensors.size())];
  CapturedPart& part = m.parts[random.Below(m.parts.size())];
  const uint64_t number = AnyNumber(random);
  const auto any_of = [&](Dims& dims) -> uint64_t& {
    if (dims.empty()) dims.push_back(1);
    return dims[random.Below(dims.size())];
  };
  switch (random.Below(20)) {
    case 0:
      m.format = static_cast<uint32_t>(number);
      break;
    case 1:
      m.min_reader = static_cast<uint32_t>(number);
      break;
    case 2:
      m.version = {Timeline{number}, Step{AnyNumber(random)}};
      break;
    case 3:
      m.parent = {Timeline{number}, Step{AnyNumber(random)}};
      break;
    case 4:
      m.rank.value = number;
      break;
    case 5:
      m.world = number;
      break;
    case 6:
      m.capture_mode = static_cast<CaptureMode>(random.Below(4));
      break;
    case 7:
      m.block_bytes = static_cast<uint32_t>(number);
      break;
    case 8:
      m.data_bytes = number;
      break;
    case 9:
      m.replica_digests.resize(random.Below(4), 7);
      break;
    case 10:
      tensor.name = m.tensors[random.Below(m.tensors.size())].name;
      break;
    case 11:
      tensor.dtype = static_cast<Dtype>(random.Below(40));
      break;
    case 12:
      any_of(tensor.global_shape) = number;
      break;
    case 13:
      any_of(tensor.offset) = number;
      break;
    case 14:
      any_of(tensor.extent) = number;
      break;
    case 15:
      tensor.replica_index = static_cast<uint32_t>(random.Below(4));
      break;
    case 16:
      part.tensor = static_cast<uint32_t>(random.Below(5));
      break;
    case 17:
      part.shard_begin = number;
      break;
    case 18:
      part.bytes = number;
      break;
    default:
      part.slab_offset = number;
      break;
  }
}

void DisturbBytes(Random& random, std::string& bytes) {
  const size_t at = random.Below(bytes.size());
  const char byte = static_cast<char>(random.Next());
  switch (random.Below(4)) {
    case 0:
      bytes[at] = byte;
      break;
    case 1:
      bytes.insert(at, 1, byte);
      break;
    case 2:
      bytes.erase(at, 1 + random.Below(3));
      break;
    default:
      bytes.resize(at);
      break;
  }
}

TEST(ManifestViewTest, TakesAndRefusesWhatDecodeManifestDoes) {
  constexpr uint64_t kSeeds = 30'000;
  ManifestView view;  // the same for all: it knows the names of the one before
  size_t taken = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    SlotManifest manifest = ExampleManifest();
    if (random.OneIn(2)) Disturb(random, manifest);
    std::string bytes = EncodeManifest(manifest);
    if (random.OneIn(2)) DisturbBytes(random, bytes);
    taken += Compare(bytes, view);
    if (HasFailure()) return;
  }
  EXPECT_GT(taken, kSeeds / 4);
  EXPECT_LT(taken, kSeeds / 4 * 3);
}

TEST(ManifestViewTest, WhatIsPlainIsNotDecoded) {
  ManifestView view;
  SlotManifest manifest = ExampleManifest();
  const auto is_decoded = [&] {
    EXPECT_TRUE(Compare(EncodeManifest(manifest), view));
    return view.is_decoded();
  };
  EXPECT_FALSE(is_decoded());
  EXPECT_FALSE(is_decoded());  // of names that it knows
  manifest.replica_digests = {17, 4};
  EXPECT_FALSE(is_decoded());
  std::swap(manifest.tensors[1].name, manifest.tensors[2].name);
  EXPECT_FALSE(is_decoded());
  manifest.tensors.resize(1);
  manifest.parts.resize(1);
  manifest.replica_digests = {17};
  EXPECT_FALSE(is_decoded());
  // Several shards of one tensor are compared with each other.
  manifest.replica_digests.clear();
  manifest.tensors.push_back(Spec("w", {4, 1024}, {1, 0}, {1, 1024}, 1, 2));
  EXPECT_FALSE(is_decoded());
  manifest.tensors.insert(manifest.tensors.begin() + 1, Whole("between", {2}));
  EXPECT_TRUE(is_decoded());
  manifest.tensors.pop_back();
  EXPECT_FALSE(is_decoded());
  manifest.tensors[1].name = "größe";
  EXPECT_TRUE(is_decoded());
}

}  // namespace
}  // namespace unreft::layout
