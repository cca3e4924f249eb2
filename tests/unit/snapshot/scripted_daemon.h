// ScriptedDaemon: the daemon's end of the local session, as a test wants it: it answers as it is
// told, offers real slots in the fake store, and keeps every frame.
//
// Not a daemon: no rules, one rank. Single-threaded on its executor.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/channel.h"
#include "base/control_page.h"
#include "base/segment_store.h"
#include "base/session_frames.h"
#include "base/slot_header.h"
#include "layout/capture_plan.h"
#include "snapshot/restore_plan.h"

namespace unreft::snapshot {

struct ScriptedSlot {
  std::unique_ptr<Segment> segment;
  std::optional<SlotView> view;
  std::string name;
};

class ScriptedDaemon {
 public:
  static constexpr uint32_t kBlockBytes = 256;

  using MakeListener = std::function<std::unique_ptr<Listener>()>;

  // Segments are named after `job`.
  ScriptedDaemon(MakeListener make_listener, SegmentStore& segments, ProcessLife trainer,
                 std::string job = "job");
  // Removes its segments.
  ~ScriptedDaemon();

  void Listen();
  // Stops listening and breaks the connection, as its death does.
  void Die();

  // What it answers; absent = it says nothing.
  std::optional<Refused> refused;
  Timeline timeline{7};  // of Welcome
  std::vector<WireSlot> sealed;
  FrameType knows = kNewestFrameType;  // of Welcome; kHello: an older one, that does not say
  std::optional<EverCommitted> ever_committed;
  std::optional<Decision> decision;
  std::map<Rank, WireExtras> extras;  // of the ranks that saved what is decided
  std::optional<RestorePlan> plan;  // its pieces two a page
  absl::Status plan_status;
  bool answers_register = true;
  absl::Status register_status;
  layout::CaptureMode mode = layout::CaptureMode::kSharded;
  uint64_t replica_check_every = 0;
  uint64_t extras_capacity = 4096;
  std::set<uint64_t> not_offered;         // slots that it tells nothing of any more
  std::optional<uint64_t> layout_digest;  // instead of the right one

  // Makes slots of that data capacity from now on, under the same names if they exist.
  void MakeSlots(int count, uint64_t data_bytes, RandomId incarnation = RandomId{1});
  ScriptedSlot& slot(uint64_t id) { return slots_.at(id); }
  ControlPage& control() { return *control_; }
  void Grant(uint64_t slot, uint64_t generation);
  bool TakeBackGrant(uint64_t slot, uint64_t generation);
  // Computes the CRCs of what the trainer captured and seals the slot.
  void Seal(const Captured& captured);
  WireSlot Where(uint64_t slot) const;

  template <typename Message>
  void Send(Message message) {
    if (channel_) channel_->Send(ToFrame(std::move(message)));
  }
  void SendFrame(Frame frame) { channel_->Send(std::move(frame)); }
  // Answers the last registration again, unasked.
  void SendRegistered();

  // Every message of the type that came, on any connection.
  template <typename Message>
  std::vector<Message> Got() const {
    std::vector<Message> found;
    for (const Frame& frame : frames) {
      if (frame.type == static_cast<uint16_t>(Message::kType)) {
        found.push_back(*FromFrame<Message>(frame));
      }
    }
    return found;
  }
  template <typename Message>
  size_t Count() const {
    return Got<Message>().size();
  }
  std::vector<Frame> frames;
  std::function<void(const Frame&)> on_frame;  // after it has answered
  int connections = 0;

 private:
  void OnFrame(const Frame& frame);
  void Answer(const Frame& frame);
  void SendPlan(uint64_t request);
  void MakeControl();

  const MakeListener make_listener_;
  SegmentStore& segments_;
  const ProcessLife trainer_;
  const std::string prefix_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Channel> channel_;
  std::unique_ptr<Segment> control_segment_;
  ControlPage* control_ = nullptr;
  std::map<uint64_t, ScriptedSlot> slots_;
  std::optional<Register> registration_;
};

}  // namespace unreft::snapshot
