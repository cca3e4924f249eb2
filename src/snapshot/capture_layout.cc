#include "snapshot/capture_layout.h"

#include <algorithm>

#include "base/crc32c_combine.h"
#include "base/slot_header.h"
#include "snapshot/device_copier.h"
#include "snapshot/replica_samples.h"

namespace unreft::snapshot {
namespace {

uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Fills buckets of at most `bucket_bytes` from runs of the slab that come in its order.
class BucketCutter {
 public:
  // Pieces are cut at multiples of `piece_bytes` of the slab, too.
  BucketCutter(uint64_t bucket_bytes, uint64_t slab_bytes, uint64_t piece_bytes)
      : bucket_bytes_(bucket_bytes), slab_bytes_(slab_bytes), piece_bytes_(piece_bytes) {
    buckets_.reserve(slab_bytes / bucket_bytes + 1);
  }

  void Copy(uint32_t tensor, uint64_t begin, uint64_t bytes, bool on_device) {
    Cut(bytes, piece_bytes_, [&](Bucket& bucket, uint64_t run) {
      auto& pieces = on_device ? bucket.device_pieces : bucket.pieces;
      pieces.push_back({tensor, begin, at_, run, on_device});
      begin += run;
    });
  }
  void Zero(uint64_t bytes) {
    Cut(bytes, UINT64_MAX,
        [&](Bucket& bucket, uint64_t run) { bucket.zeros.push_back({at_, at_ + run}); });
  }
  void Pass(uint64_t bytes) {
    Cut(bytes, UINT64_MAX, [](Bucket&, uint64_t) {});
  }
  uint64_t at() const { return at_; }
  std::vector<Bucket> Take() { return std::move(buckets_); }

 private:
  template <typename Add>
  void Cut(uint64_t bytes, uint64_t unit, Add add) {
    while (bytes > 0) {
      if (buckets_.empty() || at_ == buckets_.back().slab_end) {
        buckets_.push_back({.slab_end = std::min(at_ + bucket_bytes_, slab_bytes_)});
      }
      const uint64_t run = std::min({bytes, buckets_.back().slab_end - at_, unit - at_ % unit});
      add(buckets_.back(), run);
      at_ += run;
      bytes -= run;
    }
  }

  const uint64_t bucket_bytes_;
  const uint64_t slab_bytes_;
  const uint64_t piece_bytes_;
  uint64_t at_ = 0;
  std::vector<Bucket> buckets_;
};

}  // namespace

std::shared_ptr<const CaptureLayout> CaptureLayout::Make(const layout::TensorTable& table,
                                                         std::span<const ShardMemory> memory,
                                                         const CaptureLayoutOptions& options) {
  std::shared_ptr<CaptureLayout> layout(new CaptureLayout);
  layout->options_ = options;
  layout->plan_ = layout::CapturePlan::Make(table, options.mode);
  layout->tensor_count_ = table.size();
  layout->padded_bytes_ =
      BlockCount(layout->plan_.data_bytes(), options.block_bytes) * options.block_bytes;
  layout->on_device_ = std::any_of(memory.begin(), memory.end(),
                                   [](const ShardMemory& shard) { return shard.on_device; });
  layout->copied_at_once_.resize(table.size());
  layout->CutBuckets(table, memory);
  layout->NoteCopiedAtOnce(table, memory);
  if (options.checksum && layout->on_device_) layout->NumberPieces();
  for (uint32_t i = 0; i < table.size(); ++i) {
    const TensorSpec& spec = table.specs()[i];
    if (spec.replica_count > 1) layout->AddSample(i, spec, memory[i].on_device);
  }
  return layout;
}

void CaptureLayout::CutBuckets(const layout::TensorTable& table,
                               std::span<const ShardMemory> memory) {
  const uint64_t unit = options_.checksum && on_device_ ? options_.block_bytes : UINT64_MAX;
  BucketCutter cutter(options_.bucket_bytes, padded_bytes_, unit);
  for (const layout::CapturedPart& part : plan_.parts()) {
    cutter.Zero(part.slab_offset - cutter.at());
    const ShardMemory& shard = memory[part.tensor];
    if (table.specs()[part.tensor].is_volatile || IsSmall(shard, part.bytes)) {
      for (uint64_t done = 0, run = 0; done < part.bytes; done += run) {
        const uint64_t at = part.slab_offset + done;
        run = std::min(part.bytes - done, unit - at % unit);
        volatile_pieces_.push_back(
            {part.tensor, part.shard_begin + done, at, run, shard.on_device});
        if (shard.on_device) staging_bytes_ += RoundUp(run, kStagingAlignment);
      }
      cutter.Pass(part.bytes);
      copied_at_once_[part.tensor] = !shard.on_device;
    } else {
      cutter.Copy(part.tensor, part.shard_begin, part.bytes, shard.on_device);
    }
  }
  cutter.Zero(padded_bytes_ - cutter.at());
  buckets_ = cutter.Take();
}

// A small tensor that another replica captures is taken for what it is there.
void CaptureLayout::NoteCopiedAtOnce(const layout::TensorTable& table,
                                     std::span<const ShardMemory> memory) {
  std::vector<bool> captured(table.size());
  for (const layout::CapturedPart& part : plan_.parts()) captured[part.tensor] = true;
  for (size_t i = 0; i < table.size(); ++i) {
    if (memory[i].on_device) continue;
    const TensorSpec& spec = table.specs()[i];
    const bool is_small = on_device_ && ShardBytes(spec) <= options_.small_part_bytes;
    if (spec.is_volatile || (!captured[i] && is_small)) copied_at_once_[i] = 1;
    if (copied_at_once_[i] == 0) copies_host_later_ = true;
  }
}

bool CaptureLayout::IsSmall(const ShardMemory& memory, uint64_t bytes) {
  if (!on_device_ || memory.on_device || bytes > options_.small_part_bytes) return false;
  if (small_bytes_ + bytes > options_.small_parts_bytes_max) return false;
  small_bytes_ += bytes;
  return true;
}

// In the order of the slab.
void CaptureLayout::NumberPieces() {
  std::vector<CopyPiece*> pieces;
  const auto add = [&](std::vector<CopyPiece>& some) {
    for (CopyPiece& piece : some) pieces.push_back(&piece);
  };
  add(volatile_pieces_);
  for (Bucket& bucket : buckets_) {
    add(bucket.pieces);
    add(bucket.device_pieces);
  }
  std::sort(pieces.begin(), pieces.end(), [](const CopyPiece* a, const CopyPiece* b) {
    return a->target_offset < b->target_offset;
  });
  for (CopyPiece* piece : pieces) {
    piece->crc = static_cast<uint32_t>(crc_parts_.size());
    crc_parts_.push_back({piece->target_offset, piece->target_offset + piece->bytes,
                          crc32c::PowerOfBytes(piece->bytes)});
  }
}

// What is no piece is zero.
std::vector<uint32_t> CaptureLayout::BlockCrcs(std::span<const uint32_t> piece_crcs) const {
  std::vector<uint32_t> blocks;
  size_t next = 0;
  for (uint64_t begin = 0; begin < padded_bytes_; begin += options_.block_bytes) {
    const uint64_t end = begin + options_.block_bytes;
    uint32_t crc = 0;
    uint64_t at = begin;
    const auto zeros = [&](uint64_t to) {
      if (at == to) return;
      crc = crc32c::Append(crc, crc32c::OfZeros(to - at), crc32c::PowerOfBytes(to - at));
    };
    for (; next < crc_parts_.size() && crc_parts_[next].begin < end; ++next) {
      zeros(crc_parts_[next].begin);
      crc = crc32c::Append(crc, piece_crcs[next], crc_parts_[next].power);
      at = crc_parts_[next].end;
    }
    zeros(end);
    blocks.push_back(crc);
  }
  return blocks;
}

void CaptureLayout::AddSample(uint32_t tensor, const TensorSpec& spec, bool on_device) {
  ReplicaSample sample{.on_device = on_device};
  for (const layout::ByteRange& range : SampleRanges(ShardBytes(spec))) {
    sample.pieces.push_back(
        {tensor, range.begin, sample.bytes, range.end - range.begin, on_device});
    sample.bytes += range.end - range.begin;
  }
  samples_.push_back(std::move(sample));
}

}  // namespace unreft::snapshot
