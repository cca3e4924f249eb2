// CaptureRun: one snapshot under way: what is to be copied, as jobs, and how far it is.
//
// Jobs stand in two lanes, since memory of a device is copied by its copy engine and that of the
// host by threads: a fence waits for the host's lane only. A bucket with both has a job in each.
// Not thread-safe: Capture's mutex covers what changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/session_frames.h"
#include "snapshot/capture_layout.h"
#include "snapshot/device_copier.h"
#include "snapshot/mapped_slots.h"
#include "snapshot/probed_state.h"

namespace unreft::snapshot {

// One bucket's pieces on one side, the samples of one tensor, what volatile tensors were staged, or
// whether some of the tensors are as they were when the snapshot began. Of a device, which answers
// later, also what they are then, and what they are by then at the places of the snapshot before.
struct CaptureJob {
  enum class Kind : uint8_t { kStaged, kBucket, kSample, kCheck, kSeen, kSince };
  Kind kind = Kind::kBucket;
  uint32_t index = 0;  // of the bucket, of the sample, of the tensors that are checked
  bool on_device = false;

  bool looks() const { return kind == Kind::kCheck || kind == Kind::kSeen || kind == Kind::kSince; }
};

// Jobs that are taken in order, and end in any; checks are taken when all copies have ended, by a
// device too, which keeps the order.
class CaptureLane {
 public:
  void Add(const CaptureJob& job) { jobs_.push_back(job); }
  bool all_taken() const { return next_ == jobs_.size(); }
  // Whether the next one may be taken.
  bool ready() const {
    return !all_taken() && (jobs_[next_].kind != CaptureJob::Kind::kCheck || copying_ == 0);
  }
  // No job of it runs, nor will.
  bool over(bool closed) const { return under_way_ == 0 && (closed || all_taken()); }
  size_t queued() const { return queued_; }  // at the copier
  size_t taken() const { return next_; }
  size_t size() const { return jobs_.size(); }

  CaptureJob Take(bool queue) {
    queued_ += queue ? 1 : 0;
    ++under_way_;
    copying_ += Copies(jobs_[next_]);
    return jobs_[next_++];
  }
  // One that stands in no lane.
  void Start() { ++under_way_; }
  void End(const CaptureJob& job, bool queue) {
    queued_ -= queue ? 1 : 0;
    --under_way_;
    copying_ -= Copies(job);
  }

 private:
  static size_t Copies(const CaptureJob& job) { return job.looks() ? 0 : 1; }

  std::vector<CaptureJob> jobs_;
  size_t next_ = 0;
  size_t queued_ = 0;
  size_t under_way_ = 0;
  size_t copying_ = 0;  // of those, what are no checks
};

// With places for their CRCs among `crcs`, where they have any.
std::vector<CopyOp> ToOps(std::span<const CopyPiece> pieces, std::span<const ShardMemory> memory,
                          std::byte* target, std::span<uint32_t> crcs = {});

// Shared with the copies that are under way, which may outlive Capture; `slots` keeps their target
// mapped, `pin` registered.
struct CaptureRun {
  Version version;
  SlotId slot;
  Generation generation;
  std::shared_ptr<const CaptureLayout> layout;
  MemoryPtr memory;
  ProbesPtr probes;
  bool probes_device = false;
  std::shared_ptr<const MappedSlots> slots;
  std::shared_ptr<void> pin;
  std::span<std::byte> data;
  void* stream = nullptr;
  uint64_t extras_bytes = 0;
  std::vector<uint32_t> digests;  // one element per sample, written by its job
  std::vector<uint32_t> crcs;     // of the pieces, written by theirs

  // Set by the preparation, before any job is taken.
  std::vector<CopyOp> staged;
  std::shared_ptr<ProbedState> probed;  // by `probes`; null: nothing is checked
  // At the snapshot before, if nothing called a fence since; its places are looked at again on the
  // device. Null: they are not.
  ProbedPtr since;
  std::vector<uint64_t> device_since;  // digests that the device writes
  std::vector<uint64_t> device_check;

  // What changes.
  CaptureLane device;
  CaptureLane host;
  uint32_t handing_over = 0;  // device jobs that are taken and not with the copier yet
  bool fencing = false;       // no further device job is taken
  bool preparing = true;
  std::string closed;  // why it is given up; empty while it is not
  uint64_t rung_bytes = 0;
  WrittenTensors written;            // since the snapshot began, found by checks
  WrittenTensors written_on_device;  // the same

  // All jobs, after the preparation.
  void AddJobs();
  CaptureLane& lane(const CaptureJob& job) { return job.on_device ? device : host; }
  // No job runs, nor will.
  bool over() const;
  // The same for the host's lane.
  bool host_over() const { return !preparing && host.over(!closed.empty()); }

  // The copies of a job; those of a sample go to `scratch`, which is made as large. Zeroes what of
  // the bucket is no tensor's.
  std::vector<CopyOp> OpsOf(const CaptureJob& job, std::vector<std::byte>& scratch);

  // What a check finds; for a thread that has taken it.
  WrittenTensors Check(const CaptureJob& job) const;

  // What the device does for a job that looks, and what it has found once that is done.
  ProbeOp ProbeOpOf(const CaptureJob& job);
  WrittenTensors FoundOnDevice(const CaptureJob& job) const;

  // What all checks have found.
  WrittenTensors all_written() const;

  // Counts a job that has copied all of its bytes.
  void Finish(const CaptureJob& job);
  // Of the slab, from its beginning without a gap.
  uint32_t blocks_done() const;
  // Once all jobs have.
  Captured ToCaptured() const;

 private:
  std::vector<uint8_t> jobs_left_;  // per bucket
  bool staged_left_ = false;
  size_t buckets_done_ = 0;
};

}  // namespace unreft::snapshot
