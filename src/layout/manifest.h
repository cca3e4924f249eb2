// SlotManifest: what a sealed slot holds (docs/formats/manifest.md). Plain data and its two codecs.
//
// A library of its own, unreft_manifest: it needs protobuf, which the training process must not
// have (docs/protocol.md, rule 16). Only the daemon links it. Pure.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/tensor_spec.h"
#include "layout/capture_plan.h"

namespace unreft::layout {

inline constexpr uint32_t kManifestFormat = 1;
inline constexpr uint32_t kManifestMinReader = 1;

struct SlotManifest {
  uint32_t format = kManifestFormat;  // of the writer
  uint32_t min_reader = kManifestMinReader;
  std::string job;
  Version version;
  Version parent;  // the decision that opened the timeline stood on it; 0:0 = a fresh start
  Rank rank;
  uint64_t world = 0;
  Attempt attempt;
  uint64_t layout_digest = 0;  // CapturePlan::digest()
  CaptureMode capture_mode = CaptureMode::kSharded;
  uint32_t block_bytes = 0;
  uint64_t data_bytes = 0;
  uint64_t extras_bytes = 0;
  std::vector<TensorSpec> tensors;  // that the rank held
  std::vector<CapturedPart> parts;  // that it captured, in the order of the slab
  // Of each tensor with replicas, in the order of `tensors`; empty when they were not sampled.
  std::vector<uint32_t> replica_digests;

  friend bool operator==(const SlotManifest&, const SlotManifest&) = default;
};

// The same bytes for the same manifest.
std::string EncodeManifest(const SlotManifest& manifest);

// The most bytes that the manifest of these tensors and parts can take, whatever its numbers are
// when it is sealed: for the size of a slot's manifest region.
uint64_t ManifestBytesMax(SlotManifest manifest);

// Checks everything that a reader relies on: tensors that TensorTable::Create takes, parts of whole
// elements that lie within their shards and within data_bytes, in order and without overlap; a rank
// below the world; numbers within base/bounds.h; a block size that is a power of two.
// FailedPrecondition when it was written for newer readers, DataLoss for all else, naming the
// manifest's rank and version, what was needed and what was found.
absl::StatusOr<SlotManifest> DecodeManifest(std::string_view bytes);

}  // namespace unreft::layout
