// NodeRecord: what a node must know again after the death of its daemon: its incarnation, and how
// far it has followed the job's records - the timelines, the newest committed version.
//
// It is in the node segment, written at once, and dies with the host. What outlives the host is in
// the copy of the job's records (kept_records.h): a memory that is new begins with what that says.
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

  // Adopts the node segment named `segment_name`, or makes it. FailedPrecondition for a segment of
  // an unknown format, or one that another daemon serves: its lock is held as long as the result,
  // whatever the run directories. If the records cannot be read, the segment is enough; without one
  // of this boot that is their error, and nothing is made: what was committed is not known then,
  // and "nothing" would be a guess. `log` outlives the result.
  static void Open(SegmentStore& segments, RecordStore& records, Random& random, Log& log,
                   std::string segment_name, RandomId boot_id, OpenDone done);

  RandomId boot_id() const { return body_.boot_id; }
  // Whether no daemon before this one has had this memory.
  bool is_new() const { return body_.session == 1; }
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

  // Takes over the timelines that the leader has opened, oldest first. `unused`: no capture can
  // have begun in one that is new, on this node; otherwise one may have.
  void AdoptTimelines(std::vector<recovery::TimelineOrigin> origins, bool unused);
  void SetCaptureBegan();
  void SetCapturesAll();
  // One that is not newer than view() changes nothing.
  void SetView(uint64_t number);
  // What this memory was in, and knew as committed, was of another job than that which has taken it
  // in.
  void LeaveJob();
  void SetCommitted(Version version, uint64_t world);
  // The slot that the view has given to this memory, if it was a spare's.
  std::optional<NodeSlot> taken_slot() const;
  void SetTakenSlot(NodeSlot slot);
  // What was kept for somebody in a job of one node, by a release that had it on the disk.
  const PinRecord& pins() const { return pins_; }

 private:
  explicit NodeRecord(Log& log) : log_(log) {}

  absl::Status Adopt(SegmentStore& segments, Random& random, const std::string& segment_name,
                     RandomId boot_id, const absl::StatusOr<std::vector<Record>>& records);
  // Whether the segment has a body of this boot, which is ours now; FailedPrecondition.
  absl::StatusOr<bool> AdoptBody(RandomId boot_id);
  // Of a release that kept no copy of the job's records.
  void AdoptEarlier(const std::vector<Record>& records);
  void SetChain(recovery::TimelineChain chain, bool unused);
  void Store();

  Log& log_;
  std::unique_ptr<Segment> segment_;
  NodeBody body_;
  recovery::TimelineChain chain_;
  PinRecord pins_;
};

}  // namespace unreft::smp
