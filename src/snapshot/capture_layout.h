// CaptureLayout: what one snapshot copies from where to where, cut into buckets. Pure; immutable,
// so it is shared by threads and by the snapshots of its generation (docs/protocol.md, rule 12). It
// knows the tensors by their place in the table: where each lies comes with the snapshot, since a
// tensor may be replaced by another like it.
//
//   slab   |part|part |gap| volatile |  part            |  zeros |
//   bucket |--------------|--------------|--------------|--------|
//
// A bucket covers a run of the slab: it copies the parts there, and zeroes what is no part, so that
// every byte under a checksum is defined. Volatile parts are copied beforehand, all at once; so are
// small tensors in host memory beside others on a device (the step counts of an optimizer), for
// whose sake a fence would have to hold up the training thread.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "layout/capture_plan.h"
#include "layout/tensor_table.h"
#include "snapshot/tensor_probes.h"

namespace unreft::snapshot {

inline constexpr uint32_t kNoCrc = UINT32_MAX;

// Bytes of the trainer's state, and where in the slab (or scratch) they go.
struct CopyPiece {
  uint32_t tensor = 0;  // index in the table
  uint64_t begin = 0;   // in its shard
  uint64_t target_offset = 0;
  uint64_t bytes = 0;
  bool on_device = false;
  uint32_t crc = kNoCrc;  // its place among the CRCs of a snapshot
};

struct Bucket {
  std::vector<CopyPiece> pieces;         // in host memory
  std::vector<CopyPiece> device_pieces;  // on the device
  std::vector<layout::ByteRange> zeros;  // of the slab
  uint64_t slab_end = 0;                 // where the next bucket begins
};

// What is compared between the replicas of one tensor.
struct ReplicaSample {
  std::vector<CopyPiece> pieces;  // into scratch of `bytes`
  uint64_t bytes = 0;
  bool on_device = false;
};

struct CaptureLayoutOptions {
  layout::CaptureMode mode = layout::CaptureMode::kSharded;
  uint32_t block_bytes = 1 << 20;
  uint64_t bucket_bytes = uint64_t{4} << 20;
  uint64_t replica_check_every = 0;  // steps; 0 = never
  // Beside tensors on a device: a part of host memory of at most so many bytes is copied at once,
  // while all of them are not more than that.
  uint64_t small_part_bytes = 4096;
  uint64_t small_parts_bytes_max = uint64_t{1} << 20;
  // Every piece lies in one block and has a CRC, if any tensor is on a device.
  bool checksum = false;
};

class CaptureLayout {
 public:
  // `memory[i]` holds the shard of `table.specs()[i]`; on which side it lies is all that counts.
  static std::shared_ptr<const CaptureLayout> Make(const layout::TensorTable& table,
                                                   std::span<const ShardMemory> memory,
                                                   const CaptureLayoutOptions& options);

  const layout::CapturePlan& plan() const { return plan_; }
  size_t tensor_count() const { return tensor_count_; }
  uint32_t block_bytes() const { return options_.block_bytes; }
  uint64_t replica_check_every() const { return options_.replica_check_every; }
  // Of the slab, in whole blocks.
  uint64_t padded_bytes() const { return padded_bytes_; }
  std::span<const Bucket> buckets() const { return buckets_; }  // in the order of the slab
  std::span<const CopyPiece> volatile_pieces() const { return volatile_pieces_; }
  // Per tensor of the table, not zero where it is copied before Snapshot returns: it may change
  // then without a fence. In host memory only.
  std::span<const uint8_t> copied_at_once() const { return copied_at_once_; }
  // Whether any tensor in host memory is not.
  bool copies_host_later() const { return copies_host_later_; }
  // Whether any tensor is on a device, and how much staging its volatile ones need there.
  bool on_device() const { return on_device_; }
  uint64_t staging_bytes() const { return staging_bytes_; }
  // One per tensor with replicas, in the order of registration.
  std::span<const ReplicaSample> samples() const { return samples_; }

  // How many pieces have CRCs; 0 when none has.
  size_t crc_count() const { return crc_parts_.size(); }
  // From those of the pieces the CRC32C of each block.
  std::vector<uint32_t> BlockCrcs(std::span<const uint32_t> piece_crcs) const;

 private:
  CaptureLayout() = default;
  void CutBuckets(const layout::TensorTable& table, std::span<const ShardMemory> memory);
  bool IsSmall(const ShardMemory& memory, uint64_t bytes);
  void AddSample(uint32_t tensor, const TensorSpec& spec, bool on_device);
  void NumberPieces();
  void NoteCopiedAtOnce(const layout::TensorTable& table, std::span<const ShardMemory> memory);

  // A piece's range of the slab, and what it does to the CRC of what lies before it.
  struct CrcPart {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint32_t power = 0;
  };

  CaptureLayoutOptions options_;
  layout::CapturePlan plan_;
  size_t tensor_count_ = 0;
  uint64_t padded_bytes_ = 0;
  bool on_device_ = false;
  uint64_t staging_bytes_ = 0;
  uint64_t small_bytes_ = 0;
  std::vector<Bucket> buckets_;
  std::vector<CopyPiece> volatile_pieces_;
  std::vector<ReplicaSample> samples_;
  std::vector<uint8_t> copied_at_once_;
  bool copies_host_later_ = false;
  std::vector<CrcPart> crc_parts_;  // in the order of the slab
};

}  // namespace unreft::snapshot
