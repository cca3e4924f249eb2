// ScriptedStaging: what a ScriptedDaemon stages of other nodes' bytes, in a ring of a few places.
//
// Single-threaded on the daemon's executor.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
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
  static constexpr uint64_t kPlaceBytes = 512;
  static constexpr char kName[] = "/unreft.job.0.staging0";

  struct Block {
    std::vector<std::byte> bytes;
    std::vector<WirePiece> pieces;
  };

  ScriptedStaging(ScriptedDaemon& daemon, SegmentStore& segments, uint64_t places)
      : daemon_(daemon), segments_(segments), places_(places) {
    MakeSegment();
    daemon_.on_frame = [this](const Frame& frame) { OnFrame(frame); };
  }
  ~ScriptedStaging() { RemoveSegment(); }

  // What it stages after each plan, and how.
  std::vector<Block> blocks;
  std::map<size_t, int> bad;         // how often a block's bytes are wrong when it is staged
  std::set<size_t> dropped;          // announced and never staged
  size_t pause_after = SIZE_MAX;     // stages no more blocks than that
  bool last_alone = false;           // in a frame without a block
  std::function<void(Staged&)> lie;  // changes what is sent

  // A tensor's bytes [begin, end) as blocks of `block_bytes`, which begin with `pad` other bytes.
  void Add(uint32_t target, const std::vector<std::byte>& tensor, uint64_t begin, uint64_t end,
           uint64_t block_bytes = 300, uint64_t pad = 16) {
    for (uint64_t at = begin; at < end; at += block_bytes) {
      const uint64_t bytes = std::min(block_bytes, end - at);
      Block block{std::vector<std::byte>(pad, std::byte{0x5a}),
                  {{.target = target, .source_offset = pad, .target_offset = at, .bytes = bytes}}};
      const auto first = tensor.begin() + static_cast<ptrdiff_t>(at);
      block.bytes.insert(block.bytes.end(), first, first + static_cast<ptrdiff_t>(bytes));
      blocks.push_back(std::move(block));
    }
  }
  // Announces what is to be staged.
  void Announce(Plan& plan) const {
    plan.staging_segment = kName;
    plan.staging_bytes = places_ * kPlaceBytes;
    plan.staged_bytes = 0;
    for (const Block& block : blocks) {
      for (const WirePiece& piece : block.pieces) plan.staged_bytes += piece.bytes;
    }
  }
  // Other memory under the same name, as a daemon makes that starts again.
  void MakeSegment() {
    if (segment_ != nullptr) RemoveSegment();
    segment_ = *segments_.Create(kName, places_ * kPlaceBytes);
    UNREFT_CHECK(segment_->Reserve(0, places_ * kPlaceBytes).ok());
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
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (!dropped.contains(i)) queue_.push_back(i);
    }
    if (daemon_.plan && daemon_.plan->staged_bytes > 0) StageSome();
  }
  void StageSome() {
    for (uint64_t place = 0; place < places_; ++place) {
      if (queue_.empty() || staged_ == pause_after) return;
      if (!busy_.contains(place * kPlaceBytes)) Stage(place * kPlaceBytes);
    }
  }
  void Stage(uint64_t offset) {
    const size_t index = queue_.front();
    queue_.pop_front();
    busy_[offset] = index;
    ++staged_;
    const Block& block = blocks[index];
    std::byte* const place = segment_->bytes().data() + offset;
    std::memcpy(place, block.bytes.data(), block.bytes.size());
    if (bad[index] > 0) {
      --bad[index];
      place[7] ^= std::byte{1};
    }
    Staged staged{.request = request_,
                  .offset = offset,
                  .bytes = block.bytes.size(),
                  .crc = Crc32c(block.bytes),
                  .pieces = block.pieces,
                  .last = queue_.empty() && !last_alone};
    if (lie) lie(staged);
    daemon_.Send(staged);
    if (queue_.empty() && last_alone) daemon_.Send(Staged{.request = request_, .last = true});
  }

  ScriptedDaemon& daemon_;
  SegmentStore& segments_;
  const uint64_t places_;
  std::unique_ptr<Segment> segment_;
  uint64_t request_ = 0;
  std::deque<size_t> queue_;
  std::map<uint64_t, size_t> busy_;
  size_t staged_ = 0;
};

}  // namespace unreft::snapshot
