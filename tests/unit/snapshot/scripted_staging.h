// ScriptedStaging: what a ScriptedDaemon stages of other nodes' bytes, in a ring of a few places.
//
// Single-threaded on the daemon's executor.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/crc32c.h"
#include "tests/unit/snapshot/scripted_daemon.h"

namespace unreft::snapshot {

class ScriptedStaging {
 public:
  static constexpr uint64_t kBlockBytes = 300;
  static constexpr char kName[] = "/unreft.job.0.staging0";

  ScriptedStaging(ScriptedDaemon& daemon, SegmentStore& segments, uint64_t places)
      : daemon_(daemon), segments_(segments), places_(places) {
    MakeSegment();
    daemon_.on_frame = [this](const Frame& frame) { OnFrame(frame); };
  }
  ~ScriptedStaging() { RemoveSegment(); }

  // How it stages the blocks after each plan.
  std::map<size_t, int> bad;         // how often a block's bytes are wrong when it is staged
  std::set<size_t> dropped;          // announced and never staged
  std::optional<size_t> twice;       // a block that is staged again at the end
  size_t pause_after = SIZE_MAX;     // stages no more blocks than that
  bool last_alone = false;           // in a frame without a block
  std::function<void(Staged&)> lie;  // changes what is sent

  // A tensor's bytes [begin, end) at the end of the slab that it stages, which is of rank 9. Those
  // of another tensor before it come in the same block.
  void Add(uint32_t target, const std::vector<std::byte>& tensor, uint64_t begin, uint64_t end) {
    pieces_.push_back({.target = target,
                       .source_offset = slab_.size(),
                       .target_offset = begin,
                       .bytes = end - begin});
    slab_.insert(slab_.end(), tensor.begin() + static_cast<ptrdiff_t>(begin),
                 tensor.begin() + static_cast<ptrdiff_t>(end));
  }
  void Clear() {
    pieces_.clear();
    slab_.clear();
  }
  size_t blocks() const { return (slab_.size() + kBlockBytes - 1) / kBlockBytes; }
  // Announces what is to be staged, as another source of the plan.
  void Announce(RestorePlan& plan) const {
    plan.staging_segment = kName;
    plan.staging_bytes = places_ * kBlockBytes;
    plan.block_bytes = kBlockBytes;
    plan.staged_bytes = slab_.size();
    for (PlanPiece piece : pieces_) {
      piece.source = static_cast<uint32_t>(plan.sources.size());
      plan.pieces.push_back(piece);
    }
    plan.sources.push_back({.rank = Rank{9}});
  }
  // Other memory under the same name, as a daemon makes that starts again.
  void MakeSegment() {
    if (segment_ != nullptr) RemoveSegment();
    segment_ = *segments_.Create(kName, places_ * kBlockBytes);
    UNREFT_CHECK(segment_->Reserve(0, places_ * kBlockBytes).ok());
  }
  void RemoveSegment() {
    segments_.Remove(kName).IgnoreError();
    segment_.reset();
  }
  void Resume() {
    pause_after = SIZE_MAX;
    StageSome();
  }
  size_t staged() const { return staged_; }

 private:
  void OnFrame(const Frame& frame) {
    if (frame.type == static_cast<uint16_t>(FrameType::kPlanRequest)) return Begin(frame);
    if (frame.type != static_cast<uint16_t>(FrameType::kStagedDone)) return;
    const StagedDone done = *FromFrame<StagedDone>(frame);
    if (done.request != request_) return;
    const auto place = busy_.extract(done.offset);
    UNREFT_CHECK(!place.empty(), "the client gives back what it was handed");
    if (!done.status.ToStatus().ok()) queue_.push_back(place.mapped());
    StageSome();
  }
  void Begin(const Frame& frame) {
    request_ = FromFrame<PlanRequest>(frame)->request;
    queue_.clear();
    busy_.clear();
    staged_ = 0;
    for (size_t i = 0; i < blocks(); ++i) {
      if (!dropped.contains(i)) queue_.push_back(i);
    }
    if (twice) queue_.push_back(*twice);
    if (daemon_.plan && daemon_.plan->staged_bytes > 0) StageSome();
  }
  void StageSome() {
    for (uint64_t place = 0; place < places_; ++place) {
      if (queue_.empty() || staged_ == pause_after) return;
      if (!busy_.contains(place * kBlockBytes)) Stage(place * kBlockBytes);
    }
  }
  void Stage(uint64_t offset) {
    const size_t index = queue_.front();
    queue_.pop_front();
    busy_[offset] = index;
    ++staged_;
    // What lies behind the end of the slab is nobody's.
    std::vector<std::byte> block(kBlockBytes, std::byte{0x5a});
    const size_t begin = index * kBlockBytes;
    std::copy_n(slab_.begin() + static_cast<ptrdiff_t>(begin),
                std::min<size_t>(kBlockBytes, slab_.size() - begin), block.begin());
    std::byte* const place = segment_->bytes().data() + offset;
    std::memcpy(place, block.data(), block.size());
    if (bad[index] > 0) {
      --bad[index];
      place[7] ^= std::byte{1};
    }
    Staged staged{.request = request_,
                  .offset = offset,
                  .bytes = block.size(),
                  .crc = Crc32c(block),
                  .last = queue_.empty() && !last_alone,
                  .source = daemon_.plan->pieces.back().source,
                  .block = index};
    if (lie) lie(staged);
    daemon_.Send(staged);
    if (queue_.empty() && last_alone) daemon_.Send(Staged{.request = request_, .last = true});
  }

  ScriptedDaemon& daemon_;
  SegmentStore& segments_;
  const uint64_t places_;
  std::vector<std::byte> slab_;
  std::vector<PlanPiece> pieces_;
  std::unique_ptr<Segment> segment_;
  uint64_t request_ = 0;
  std::deque<size_t> queue_;
  std::map<uint64_t, size_t> busy_;
  size_t staged_ = 0;
};

}  // namespace unreft::snapshot
