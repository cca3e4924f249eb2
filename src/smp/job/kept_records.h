// KeptRecords: this node's own copy of the job's records (docs/protocol.md, rule 3).
//
// A node acts on a record only once it has kept it, so that a meta store which forgets can be
// written anew from what the nodes know. What is kept is the records as the store has them, byte
// for byte, and how new they are: of two copies of a job the one with the later epoch is newer, of
// one epoch that with the higher sequence. Older records are neither kept nor acted on, nor is what
// another job has decided: a process that has found its job follows no other, and one that starts
// with what is of another gives that up where it is taken in.
//
// Kept twice: in a segment of two areas, written in turn and at once, which survives the daemon's
// death; and in the record store, written behind, which survives the host's. The latter at a pace:
// what trainers commit goes with the host's memory, and a disk that is synced for each commit takes
// time from the next. A failing record store is counted and told when that begins and when it is
// over; nothing waits for it (docs/protocol.md, rule 2). All of the memory is had at the start:
// what is decided later waits for none.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/executor.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "base/record_store.h"
#include "base/segment_store.h"
#include "meta/record_copy.h"

namespace unreft::smp {

// Of the copy in the record store.
inline constexpr std::string_view kKeptKey = "kept";
// Of the segment, behind the prefix of the daemon's memory.
inline constexpr std::string_view kRecordsSegment = "records";
// Of writes to the record store.
inline constexpr Duration kDiskPace = std::chrono::milliseconds(100);

// Single-threaded on the node's executor.
class KeptRecords {
 public:
  using OpenDone = absl::AnyInvocable<void(absl::StatusOr<std::unique_ptr<KeptRecords>>)>;

  // Adopts the segment of that name, or makes it, for a job of so many nodes. The newest copy of
  // the segment's and the disk's counts; one that is torn counts for nothing. DataLoss where a
  // job of one node has one on the disk, and none is of use; FailedPrecondition for a format of
  // later readers; ResourceExhausted without memory. `executor`, `records`, `log` outlive the
  // result.
  static void Open(Executor& executor, SegmentStore& segments, RecordStore& records, Log& log,
                   std::string segment_name, uint64_t nodes, OpenDone done);

  // Keeps what the store says, unless that is older than what is kept, or of another job. Whether
  // records() are the store's now; if not, nothing may be done by the store's.
  bool Keep(const meta::JobState& job);
  // Whether what the store has decided is of another job than what is kept. Neither epochs nor
  // numbers of views say anything there.
  bool IsOfAnotherJob(const meta::JobState& job) const;
  // Whether a store that was seeded has said in this process what is kept now.
  bool has_found_job() const { return has_found_job_; }
  // What is kept counts no longer, for the sake of the job that the store has. It lies where it is
  // until that is kept.
  void LeaveJob();
  // The record store gets what it lacks of what is kept: at once, or kDiskPace after it was last
  // written.
  void WriteToDisk();

  // The record store is given now what it was to get later: the process is about to end.
  void WriteAtOnce();

  // Whether the segment of that name, if there is one, has been kept for another job than that
  // which has decided so.
  static bool IsForAnotherJob(SegmentStore& segments, const std::string& segment_name,
                              const TimelineRecord& decided);

  const meta::JobRecords& records() const { return copy_.records; }
  // Of what is kept; 0, 0: nothing is.
  meta::Stamp stamp() const { return copy_.stamp; }
  const std::string& store_id() const { return copy_.store_id; }
  // As DecodeCopy takes it; empty when nothing is kept.
  std::string Encoded() const { return encoded_; }
  // Why what the store says could not be kept, for people; empty when it was.
  const std::string& problem() const { return problem_; }

  uint64_t failed_writes() const { return failed_writes_; }
  // Why the record store lacks what the memory has, for people; empty: it does not.
  const std::string& disk_problem() const { return disk_problem_; }
  // A write failed, or the record store could not be read, and WriteAgain is wanted some time
  // later.
  void set_on_failure(absl::AnyInvocable<void()> on_failure);
  // Nothing when the record store has what the memory has.
  void WriteAgain();

 private:
  KeptRecords(Executor& executor, RecordStore& records, Log& log)
      : executor_(executor), records_(records), log_(log) {}

  absl::Status OpenSegment(SegmentStore& segments, const std::string& name, uint64_t nodes);
  absl::Status AdoptDisk(const absl::StatusOr<std::vector<Record>>& records, uint64_t nodes);
  absl::Status Adopt(std::span<const std::byte> bytes, std::string_view where);
  std::span<std::byte> Area(size_t index);
  absl::Status Widen(SegmentStore& segments, uint64_t bytes);
  bool IsOnDisk(const absl::StatusOr<std::vector<Record>>& records) const;
  bool IsOlder(const meta::JobState& job) const;
  void SayWhatIsNotOfTheJob(const meta::JobState& job) const;
  absl::Status WriteToArea(const std::string& bytes);
  void ClearOlderArea();
  void WriteNow();
  void OnWritten(const absl::Status& status);
  void Owe(const absl::Status& why);

  Executor& executor_;
  RecordStore& records_;
  Log& log_;
  std::unique_ptr<Segment> segment_;
  bool has_found_copy_ = false;  // at the start, if only of nothing
  bool has_found_job_ = false;   // in this process
  bool has_left_job_ = false;    // and the older area may have that of a later epoch
  size_t newest_ = 0;            // the area that has it
  meta::RecordCopy copy_;
  std::string encoded_;
  std::string problem_;
  bool is_writing_ = false;
  bool is_write_wanted_ = false;
  bool is_write_due_ = false;       // at its pace
  std::optional<Time> written_at_;  // the last write began
  std::string disk_problem_;
  uint64_t failed_writes_ = 0;
  absl::AnyInvocable<void()> on_failure_;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
