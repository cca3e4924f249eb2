// BenchState: the state of a trainer in host memory, and one real slot for it in shared memory,
// with the real capture machine and restorer between them.
//
// Plays the daemon's part: grants the slot again after each capture, and seals it. Used by one
// thread; its captures run on a copier thread.
#pragma once

#include <absl/status/statusor.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/asio_executor.h"
#include "base/shm_segment_store.h"
#include "snapshot/capture.h"
#include "snapshot/host_copier.h"
#include "snapshot/restorer.h"

namespace unreft::bench {

class BenchState : private snapshot::Capture::Events {
 public:
  // `data_bytes` in more than 64 tensors. ResourceExhausted when /dev/shm has no room.
  static absl::StatusOr<std::unique_ptr<BenchState>> Make(uint64_t data_bytes);
  ~BenchState() override;

  uint64_t bytes() const { return bytes_; }
  const std::vector<snapshot::BoundTensor>& tensors() const { return tensors_; }
  // Where the tensor lies in the slab, in the mapping that captures write to.
  std::byte* slab(size_t tensor) const;
  std::span<const std::byte> slab() const;

  // Snapshot, fence; with `helping` the calling thread copies too.
  void CaptureOnce(bool helping);
  // Seals what was captured last.
  void Seal();
  // What a client does while it waits for the decision: maps the sealed slot.
  void MapAhead();
  // Verifies the sealed slot and copies it into the tensors; maps it where that was not done.
  void RestoreOnce();
  // What a client does when the restore has ended.
  void Unmap() { warm_slots_.Clear(); }
  // The peer of a process that was just started: maps the slot and copies it, unverified.
  void MapAndCopyOnce();
  // Whether the slab holds what the tensors hold.
  bool SlabEqualsTensors() const;

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  explicit BenchState(std::string prefix);
  void MakeTensors(uint64_t data_bytes);
  absl::Status MakeSlot();
  std::unique_ptr<snapshot::Capture> NewCapture(bool helping);
  WireSlot Where() const;
  void Grant();
  void InTurn(std::function<void()> body);

  void OnClaimed(const Claimed&, const RandomId&) override {}
  void OnProgress(const Progress&) override {}
  void OnCaptured(Captured captured) override { captured_ = std::move(captured); }
  void OnGaveUp(GaveUp gave_up) override;
  void OnSkipped(Skipped skipped) override;

  const std::string prefix_;
  ShmSegmentStore segments_;
  ExecutorThread thread_{"bench-copier"};
  snapshot::HostCopier copier_{thread_.executor()};
  snapshot::StatusBoard board_;
  snapshot::WarmSlots warm_slots_{segments_};

  uint64_t bytes_ = 0;
  std::vector<std::unique_ptr<std::byte, Free>> memory_;
  std::vector<snapshot::BoundTensor> tensors_;
  layout::TensorTable table_;
  std::vector<snapshot::ShardMemory> shards_;  // where the tensors lie
  std::shared_ptr<const snapshot::CaptureLayout> layout_;

  std::unique_ptr<Segment> control_segment_;
  ControlPage* control_ = nullptr;
  std::unique_ptr<Segment> segment_;
  std::optional<SlotView> view_;
  std::shared_ptr<const snapshot::MappedSlots> slots_;
  uint64_t generation_ = 0;
  Captured captured_;  // written in turns; read after a turn
  std::unique_ptr<snapshot::Capture> waiting_;
  std::unique_ptr<snapshot::Capture> helping_;
};

}  // namespace unreft::bench
