// RankSession: one life of a rank's trainer, as the daemon sees it. It outlives lost connections
// and ends with the life.
//
// It has the rank's control page and what the trainer declared, and speaks by the channel while
// there is one.
// What is done with them is decided by CaptureDesk and RestoreDesk.
#pragma once

#include <absl/status/status.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "base/channel.h"
#include "base/control_page.h"
#include "base/process_watcher.h"
#include "base/segment_store.h"
#include "base/session_frames.h"
#include "smp/memory/slot.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class RankSession {
 public:
  RankSession(const Hello& hello, SegmentStore& segments) : hello_(hello), segments_(segments) {}

  Rank rank() const { return hello_.rank; }
  uint64_t world() const { return hello_.world; }
  Attempt attempt() const { return hello_.attempt; }
  ProcessLife life() const { return hello_.life; }

  // Replaces the connection; what comes by an earlier one is ignored from now on. The channel is
  // its owner's, who calls Detach before it goes.
  void Attach(Channel* channel) { channel_ = channel; }
  void Detach() { channel_ = nullptr; }
  bool connected() const { return channel_ != nullptr; }
  bool IsAttachedTo(const Channel* channel) const { return channel_ == channel; }
  template <typename Message>
  void Send(const Message& message) {
    if (channel_) channel_->Send(ToFrame(message));
  }

  // Makes or adopts the control page of this life.
  absl::Status OpenControl(const std::string& prefix);
  void RemoveControl();
  ControlPage* control() { return control_; }
  const std::string& control_name() const { return control_name_; }

  // Why nothing is captured of what it registered; ok where it may be.
  const absl::Status& capture_status() const {
    return registration_status.ok() ? misfit : registration_status;
  }

  // It has come to that version, and captures it or does not.
  void NoteNamed(Version version) {
    newest_step = std::max(newest_step, version.step);
    newest_named = std::max(newest_named, version);
  }

  // --- what the desks keep here ---

  WatchId watch = WatchId::kNone;
  bool life_ended = false;
  Timeline timeline;        // that it may capture into; 0 until a decision reached it
  bool superseded = false;  // a decision was made after that, and for others

  // Capture.
  std::shared_ptr<const Registration> registration;
  uint64_t register_request = 0;
  uint64_t extras_bytes = 0;
  uint64_t slots_provided = 0;  // as many as were wanted when it was provided last
  size_t slots_told = 0;  // that it may be granted; 0 until its registration is answered
  absl::Status registration_status = absl::UnavailableError("not registered yet");
  // The digest of its plan when the job last looked whether all ranks' fit together.
  std::optional<uint64_t> checked_layout;
  std::optional<Time> answer_by;  // the registration is answered then at the latest; none: it is
  absl::Status misfit;            // what it was told: the ranks' registrations do not fit together
  Step newest_step;
  Version newest_named;
  // Snapshots up to this step claim a slot before the one before is committed: the step-back
  // version gives way.
  Step eager_until;
  uint64_t captured = 0;
  uint64_t skipped = 0;
  uint64_t given_up = 0;
  std::string last_skip;
  std::string last_given_up;  // why
  std::optional<Step> last_captured;
  uint64_t captured_extras_bytes = 0;  // of the last one

  // Restore.
  std::optional<uint64_t> restore_request;
  std::optional<Step> restore_at_or_before;  // of that request
  bool takes_any_world = false;  // a version that another number of ranks has saved will do
  std::optional<uint64_t> plan_request;      // that waits for the pool, or for memory
  std::optional<PlanRequest> plan_to_compute;  // when the one under way is done
  bool planning = false;                       // the pool computes one

 private:
  Hello hello_;
  SegmentStore& segments_;
  Channel* channel_ = nullptr;
  std::unique_ptr<Segment> control_segment_;
  ControlPage* control_ = nullptr;
  std::string control_name_;
};

}  // namespace unreft::smp
