// NodeRecord: what a node must know again after its own death: its incarnation, the timelines, the
// newest committed version.
//
// Kept twice: in the node segment, written at once, which survives the daemon's death; and in the
// record store, written behind, which survives the host's. A failing record store is counted and
// told when it begins and when it is over; nothing waits for it (docs/protocol.md, rule 2).
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "base/node_header.h"
#include "base/random.h"
#include "base/record_store.h"
#include "base/segment_store.h"
#include "recovery/timeline.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class NodeRecord {
 public:
  using OpenDone = absl::AnyInvocable<void(absl::StatusOr<std::unique_ptr<NodeRecord>>)>;

  // Adopts the node segment named `segment_name`, or makes it; what it lacks comes from `records`.
  // FailedPrecondition for a segment of an unknown format, or one that another daemon serves: its
  // lock is held as long as the result, whatever the run directories. If the records cannot be
  // read, the segment is enough; without one of this boot that is their error, and nothing is made:
  // what was committed is not known then, and "nothing" would be a guess. `records`, `log` outlive
  // the result.
  static void Open(SegmentStore& segments, RecordStore& records, Random& random, Log& log,
                   std::string segment_name, RandomId boot_id, OpenDone done);

  RandomId boot_id() const { return body_.boot_id; }
  RandomId incarnation() const { return body_.incarnation; }
  ProcessNumber session() const { return ProcessNumber{body_.session}; }
  const recovery::TimelineChain& chain() const { return chain_; }
  // Whether a capture may have begun in the newest timeline.
  bool capture_began() const { return body_.capture_began != 0; }
  // Whether replicas were found to differ, so that every rank captures all it holds.
  bool captures_all() const { return body_.captures_all != 0; }
  // Number of the newest view that this memory was in; 0: none.
  uint64_t view() const { return body_.view; }

  // The newest committed version and the ranks it needs; 0 ranks: nothing was ever committed, or a
  // fresh start was declared since.
  Version committed() const {
    return {Timeline{body_.committed_timeline}, Step{body_.committed_step}};
  }
  uint64_t committed_world() const { return body_.committed_world; }

  // Opens a timeline on `parent` (0:0: a fresh start) and returns it.
  Timeline OpenTimeline(Version parent);
  // Takes over the timelines that the leader has opened, oldest first. `unused`: no capture can
  // have begun in one that is new, on this node; otherwise one may have.
  void AdoptTimelines(std::vector<recovery::TimelineOrigin> origins, bool unused);
  void SetCaptureBegan();
  void SetCapturesAll();
  // One that is not newer than view() changes nothing.
  void SetView(uint64_t number);
  void SetCommitted(Version version, uint64_t world);
  // The slot that the view has given to this memory, if it was a spare's.
  std::optional<NodeSlot> taken_slot() const;
  void SetTakenSlot(NodeSlot slot);
  // What is kept for somebody, in a job of one node. Only in the record store: `done` says whether
  // it is there.
  const PinRecord& pins() const { return pins_; }
  void SetPins(PinRecord pins, absl::AnyInvocable<void(absl::Status)> done);
  // What was committed is given up by an explicit order.
  void DeclareFreshStart();

  uint64_t failed_writes() const { return failed_writes_; }
  // Why the record store lacks what the memory has, for people; empty: it does not.
  const std::string& problem() const { return problem_; }
  // A write failed, or has to be made that could not be, and WriteAgain is wanted some time later.
  void set_on_failure(absl::AnyInvocable<void()> on_failure);
  // All of it: what failed may be any part. Nothing when nothing failed since.
  void WriteAgain();

 private:
  NodeRecord(RecordStore& records, Log& log) : records_(records), log_(log) {}

  absl::Status Adopt(SegmentStore& segments, Random& random, const std::string& segment_name,
                     RandomId boot_id, const absl::StatusOr<std::vector<Record>>& records);
  // Whether the segment has a body of this boot, which is ours now; FailedPrecondition.
  absl::StatusOr<bool> AdoptBody(RandomId boot_id);
  void AdoptRecords(const std::vector<Record>& records);
  void SetChain(recovery::TimelineChain chain, bool unused);
  void Store();
  void Write(std::vector<RecordChange> batch);
  void WriteCommit();
  void OnWritten(const absl::Status& status, std::string_view what);
  void Owe(const absl::Status& why);

  RecordStore& records_;
  Log& log_;
  std::unique_ptr<Segment> segment_;
  NodeBody body_;
  recovery::TimelineChain chain_;
  PinRecord pins_;
  bool commit_write_running_ = false;
  bool commit_write_wanted_ = false;
  bool last_write_failed_ = false;
  bool owes_writes_ = false;
  std::string problem_;
  uint64_t failed_writes_ = 0;
  absl::AnyInvocable<void()> on_failure_;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
