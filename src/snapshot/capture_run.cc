#include "snapshot/capture_run.h"

#include <algorithm>
#include <cstring>

namespace unreft::snapshot {
namespace {

// Tensors of one check: less than a millisecond.
constexpr size_t kChecked = 16384;

}  // namespace

std::vector<CopyOp> ToOps(std::span<const CopyPiece> pieces, std::span<const ShardMemory> memory,
                          std::byte* target, std::span<uint32_t> crcs) {
  std::vector<CopyOp> ops;
  ops.reserve(pieces.size());
  for (const CopyPiece& piece : pieces) {
    uint32_t* const crc = piece.crc < crcs.size() ? &crcs[piece.crc] : nullptr;
    ops.push_back({memory[piece.tensor].data + piece.begin, target + piece.target_offset,
                   piece.bytes, piece.on_device, crc});
  }
  return ops;
}

// A bucket without pieces goes where nobody waits for it.
void CaptureRun::AddJobs() {
  const std::span<const Bucket> buckets = layout->buckets();
  if (!staged.empty()) device.Add({CaptureJob::Kind::kStaged, 0, true});
  staged_left_ = !staged.empty();
  jobs_left_.resize(buckets.size());
  for (uint32_t i = 0; i < buckets.size(); ++i) {
    const bool on_device =
        !buckets[i].device_pieces.empty() || (layout->on_device() && buckets[i].pieces.empty());
    const bool on_host = !buckets[i].pieces.empty() || !on_device;
    if (on_device) device.Add({CaptureJob::Kind::kBucket, i, true});
    if (on_host) host.Add({CaptureJob::Kind::kBucket, i, false});
    jobs_left_[i] = static_cast<uint8_t>(on_device) + static_cast<uint8_t>(on_host);
  }
  for (uint32_t i = 0; i < digests.size(); ++i) {
    const CaptureJob job{CaptureJob::Kind::kSample, i, layout->samples()[i].on_device};
    lane(job).Add(job);
  }
  if (probed == nullptr) return;
  if (!probed->device.empty()) device.Add({CaptureJob::Kind::kCheck, 0, true});
  if (!layout->copies_host_later()) return;
  for (uint32_t i = 0; i * kChecked < probed->host.size(); ++i) {
    host.Add({CaptureJob::Kind::kCheck, i, false});
  }
}

WrittenTensors CaptureRun::Check(const CaptureJob& job) const {
  const size_t first = job.index * kChecked;
  return FindWritten(*probed, first, std::min(kChecked, probed->host.size() - first),
                     layout->copied_at_once());
}

ProbeOp CaptureRun::ProbeOpOf(const CaptureJob& job) {
  ProbeOp op{.probes = probes, .memory = memory, .step = version.step};
  switch (job.kind) {
    case CaptureJob::Kind::kSince:
      op.step = since->step;
      op.digests = device_since;
      break;
    case CaptureJob::Kind::kSeen:
      op.digests = probed->device;
      break;
    default:
      op.digests = device_check;
  }
  return op;
}

WrittenTensors CaptureRun::FoundOnDevice(const CaptureJob& job) const {
  switch (job.kind) {
    case CaptureJob::Kind::kSince:
      return FindWrittenOnDeviceSince(*since, device_since, *memory);
    case CaptureJob::Kind::kCheck:
      return FindWrittenOnDevice(*probed, device_check);
    default:
      return {};
  }
}

WrittenTensors CaptureRun::all_written() const {
  WrittenTensors all = written;
  all.Add(written_on_device);
  return all;
}

bool CaptureRun::over() const {
  const bool is_closed = !closed.empty();
  return !preparing && device.over(is_closed) && host.over(is_closed);
}

std::vector<CopyOp> CaptureRun::OpsOf(const CaptureJob& job, std::vector<std::byte>& scratch) {
  if (job.kind == CaptureJob::Kind::kStaged) return staged;
  if (job.kind == CaptureJob::Kind::kSample) {
    const ReplicaSample& sample = layout->samples()[job.index];
    scratch.resize(sample.bytes);
    return ToOps(sample.pieces, *memory, scratch.data());
  }
  const Bucket& bucket = layout->buckets()[job.index];
  // With both kinds of pieces the device's job does it.
  if (job.on_device || bucket.device_pieces.empty()) {
    for (const layout::ByteRange& range : bucket.zeros) {
      std::memset(data.data() + range.begin, 0, range.end - range.begin);
    }
  }
  return ToOps(job.on_device ? bucket.device_pieces : bucket.pieces, *memory, data.data(), crcs);
}

void CaptureRun::Finish(const CaptureJob& job) {
  if (job.kind == CaptureJob::Kind::kStaged) staged_left_ = false;
  if (job.kind == CaptureJob::Kind::kBucket) --jobs_left_[job.index];
  if (staged_left_) return;
  while (buckets_done_ < jobs_left_.size() && jobs_left_[buckets_done_] == 0) ++buckets_done_;
}

Captured CaptureRun::ToCaptured() const {
  const layout::CapturePlan& plan = layout->plan();
  Captured captured{.slot = slot,
                    .generation = generation,
                    .version = version,
                    .layout_digest = plan.digest(),
                    .data_bytes = plan.data_bytes(),
                    .extras_bytes = extras_bytes,
                    .replica_digests = digests};
  if (!crcs.empty()) captured.block_crcs = layout->BlockCrcs(crcs);
  return captured;
}

uint32_t CaptureRun::blocks_done() const {
  if (buckets_done_ == 0) return 0;
  const uint64_t end = layout->buckets()[buckets_done_ - 1].slab_end;
  return static_cast<uint32_t>(end / layout->block_bytes());
}

}  // namespace unreft::snapshot
