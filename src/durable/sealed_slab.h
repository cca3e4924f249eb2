// SealedSlab: one rank's slab of a version, read out of the shared memory of a node by a process
// that is not its daemon. What keeps the slot is the version's pin; what says that the bytes are
// right is their checksums, read again from a private copy of each block: a slot that was given to
// another version meanwhile is noticed, whatever became of the pin.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/segment_store.h"
#include "base/slot_header.h"
#include "layout/manifest.h"

namespace unreft::durable {

// Of whatever a copy is made from: a slot, or in a test anything.
class SlabReader {
 public:
  virtual ~SlabReader() = default;

  virtual const layout::SlotManifest& manifest() const = 0;
  // As they were sealed, checked.
  virtual const std::string& manifest_bytes() const = 0;
  virtual const std::string& extras() const = 0;

  // Copies a whole block into `into` and checks the copy, whose CRC32C it returns. DataLoss, naming
  // rank, block and both CRCs.
  virtual absl::StatusOr<uint32_t> Read(uint64_t block, std::span<std::byte> into) = 0;
};

class SealedSlab : public SlabReader {
 public:
  // Maps it read-only. FailedPrecondition when the slot does not have that version of that rank
  // any more; DataLoss when what describes the slab does not have its CRC.
  static absl::StatusOr<std::unique_ptr<SealedSlab>> Open(SegmentStore& segments,
                                                          const std::string& name, Rank rank,
                                                          Version version);

  const layout::SlotManifest& manifest() const override { return manifest_; }
  const std::string& manifest_bytes() const override { return manifest_bytes_; }
  const std::string& extras() const override { return extras_; }
  absl::StatusOr<uint32_t> Read(uint64_t block, std::span<std::byte> into) override;

 private:
  SealedSlab(std::unique_ptr<Segment> segment, SlotView view)
      : segment_(std::move(segment)), view_(view) {}
  absl::Status ReadDescription(Rank rank, Version version);

  const std::unique_ptr<Segment> segment_;
  SlotView view_;
  layout::SlotManifest manifest_;
  std::string manifest_bytes_;
  std::string extras_;
  std::vector<uint32_t> crcs_;
};

// The names of the slots in which a node has the version sealed, by rank. `place` is the number
// that the node's daemon was started with.
absl::StatusOr<std::map<Rank, std::string>> FindSealed(SegmentStore& segments, std::string_view job,
                                                       uint64_t place, Version version);

}  // namespace unreft::durable
