#include "smp/job/follower.h"

#include <algorithm>

#include "smp/job/cluster_records.h"
#include "smp/job/recorded.h"

namespace unreft::smp {

Follower::Follower(KeptRecords& kept, NodeRecord& record, OwnVersions& versions,
                   Coordinator::Node& node, Protection& protection,
                   absl::AnyInvocable<void()> on_closed)
    : kept_(kept),
      job_(kept.records()),
      record_(record),
      versions_(versions),
      node_(node),
      protection_(protection),
      on_closed_(std::move(on_closed)) {}

void Follower::Follow(const meta::JobState& job) {
  if (!kept_.Keep(job)) return;
  FollowPins();  // before what may retire versions
  FollowTimeline();
  FollowCommit();
  FollowAbandoned();
  // Last: trainers wait for what comes before, and the disk would take its time from it.
  kept_.WriteToDisk();
}

void Follower::FollowPins() {
  const std::pair pins(kept_.store_id(), job_.pins.modified);
  if (pins_applied_ == pins) return;
  pins_applied_ = pins;
  node_.OnPins(job_.pins.value);
}

void Follower::FollowTimeline() {
  const TimelineRecord& record = job_.timeline.value;
  if (!job_.timeline.exists()) return;
  if (record.closing()) return Close(record.round());
  if (record.decision().round() > round_applied_) {
    // One that failed may come before this node has heard of the one that stands.
    if (record.in_force().round() > round_applied_) ApplyDecision(record.in_force());
    return ApplyDecision(record.decision());
  }
  // Of a fresh start, or of a store that was lost, whose chain is written again without the
  // decisions: whoever was not there then has nothing else to know it by.
  if (record.chain().empty()) return;
  if (Timeline{record.chain().rbegin()->timeline()} == record_.chain().newest()) return;
  AdoptTimelines(/*took_part=*/false);
  node_.ReopenTimeline();
}

void Follower::Close(uint64_t round) {
  if (round_closing_ >= round) return;
  round_closing_ = round;
  node_.CloseTimeline(lifetime_.Bind([this, number = ++closings_] {
    if (number != closings_) return;
    round_closed_ = round_closing_;
    on_closed_();
  }));
}

void Follower::AdoptTimelines(bool took_part) {
  const TimelineRecord& record = job_.timeline.value;
  record_.AdoptTimelines(OriginsOf(record), took_part);
  versions_.OnTimeline(Step{record.chain().rbegin()->parent_step()});
}

void Follower::ApplyDecision(const DecisionRecord& record) {
  const JobDecision decision = DecisionOf(record);
  // Whoever hears of it later may have another memory than the node had when it was made, and its
  // trainers may have captured by then.
  const bool took_part = round_closed_ == record.round();
  round_applied_ = record.round();
  ++closings_;  // a store that went back may close the timeline for a later round once more
  round_closing_ = round_applied_;
  round_closed_ = 0;
  if (asking_ && std::all_of(asking_->askers.begin(), asking_->askers.end(),
                             [&](const Asker& asker) { return IsFor(decision, asker); })) {
    asking_.reset();
  }
  if (decision.kind != DecisionKind::kFailed) AdoptTimelines(took_part);
  // A daemon that has started anew reads of a decision that may be long over, as what was committed
  // since says.
  const CommitRecord& commit = job_.commit.value;
  const Version committed = VersionOf(commit);
  if (commit.world() != 0 && committed.timeline == decision.timeline &&
      committed > decision.version) {
    return node_.ReopenTimeline();
  }
  if (decision.kind == DecisionKind::kRestored) {
    record_.SetCommitted(decision.version, commit.world());
  }
  node_.OnDecision(decision);
}

void Follower::FollowCommit() {
  const CommitRecord& record = job_.commit.value;
  if (!job_.commit.exists()) return;
  // It belongs to the newest timeline, which a node may have missed that hears of the next round:
  // to commit what it went back to is to forget what this node knew.
  const Timeline newest = NewestTimeline(job_.timeline.value);
  if (newest != Timeline{0} && newest != record_.chain().newest()) return;
  const Version version = VersionOf(record);
  const bool is_followed =
      record_.committed() == version && record_.committed_world() == record.world();
  if (record.world() == 0) {
    // Nothing was ever committed, or a fresh start was declared.
    const bool is_open = version.timeline <= record_.chain().newest();
    if (is_open && !is_followed) record_.SetCommitted(version, 0);
    return;
  }
  // A step back comes with its timeline.
  if (is_followed || version.timeline != record_.chain().newest()) return;
  record_.SetCommitted(version, record.world());
  versions_.OnCommitted(version);
  protection_.OnCommitted(version);
  node_.OnCommitted(version);
}

void Follower::FollowAbandoned() {
  const AbandonRecord& record = job_.abandoned.value;
  versions_.OnAbandoned();
  node_.OnCaptureFrom({record_.chain().newest(), CaptureFrom(record, record_.chain().newest())});
  const uint64_t full_from = record.full_capture_from_timeline();
  if (full_from != 0 && full_from <= record_.chain().newest().value &&
      disagreement_applied_ != full_from) {
    disagreement_applied_ = full_from;
    node_.OnReplicasDisagree(record.disagreement());
  }
}

}  // namespace unreft::smp
