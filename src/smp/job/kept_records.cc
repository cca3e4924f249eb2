#include "smp/job/kept_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "smp/core/records_size.h"
#include "smp/core/usable_segment.h"
#include "smp/job/cluster_records.h"
#include "smp/job/refusals.h"

namespace unreft::smp {
namespace {

constexpr size_t kAreas = 2;

}  // namespace

void KeptRecords::Open(Executor& executor, SegmentStore& segments, RecordStore& records, Log& log,
                       std::string segment_name, uint64_t nodes, OpenDone done) {
  std::unique_ptr<KeptRecords> kept(new KeptRecords(executor, records, log));
  records.Scan(std::string(kKeptKey),
               [kept = std::move(kept), &segments, segment_name = std::move(segment_name), nodes,
                done = std::move(done)](absl::StatusOr<std::vector<Record>> found) mutable {
                 absl::Status status = kept->OpenSegment(segments, segment_name, nodes);
                 status.Update(kept->AdoptDisk(found, nodes));
                 if (status.ok() && kept->IsOnDisk(found)) {
                   status = kept->Widen(segments, RecordsBytes(nodes));
                 }
                 if (!status.ok()) return done(status);
                 done(std::move(kept));
               });
}

absl::Status KeptRecords::OpenSegment(SegmentStore& segments, const std::string& name,
                                      uint64_t nodes) {
  auto segment = OpenUsable(segments, name);
  const bool is_new = absl::IsNotFound(segment.status());
  if (is_new) segment = segments.Create(name, RecordsBytes(nodes));
  if (!segment.ok()) return segment.status();
  segment_ = *std::move(segment);
  absl::Status status = segment_->Reserve(0, segment_->bytes().size());
  if (!status.ok() || is_new) return status;
  for (size_t index = 0; index < kAreas; ++index) {
    const meta::Stamp before = copy_.stamp;
    status.Update(Adopt(Area(index), name));
    if (copy_.stamp != before) newest_ = index;
  }
  return status;
}

// What is kept, if anything is.
bool KeptRecords::IsOnDisk(const absl::StatusOr<std::vector<Record>>& records) const {
  if (encoded_.empty()) return true;
  return records.ok() && std::ranges::any_of(*records, [&](const Record& record) {
           return record.key == kKeptKey && record.value == encoded_;
         });
}

// A segment that was made for a job of fewer nodes. Whoever dies meanwhile has the disk's copy.
absl::Status KeptRecords::Widen(SegmentStore& segments, uint64_t bytes) {
  if (segment_->bytes().size() >= bytes) return absl::OkStatus();
  const std::string name = segment_->name();
  segment_.reset();
  if (absl::Status status = segments.Remove(name); !status.ok()) return status;
  auto segment = segments.Create(name, bytes);
  if (!segment.ok()) return segment.status();
  segment_ = *std::move(segment);
  absl::Status status = segment_->Reserve(0, segment_->bytes().size());
  if (!status.ok() || encoded_.empty()) return status;
  return WriteToArea(encoded_);
}

absl::Status KeptRecords::AdoptDisk(const absl::StatusOr<std::vector<Record>>& records,
                                    uint64_t nodes) {
  if (!records.ok()) {
    log_.Error("{}; going on with what the memory says", records.status().message());
    Owe(records.status());
    return absl::OkStatus();
  }
  const auto kept = std::ranges::find(*records, kKeptKey, &Record::key);
  if (kept == records->end()) return absl::OkStatus();
  absl::Status status = Adopt(std::as_bytes(std::span(kept->value)), "the disk");
  // Other nodes know what this one has forgotten.
  if (!status.ok() || has_found_copy_ || nodes > 1) return status;
  return CommitsUnknown(
      absl::DataLossError("the copy of the job's records on the disk is of no use"));
}

std::span<std::byte> KeptRecords::Area(size_t index) {
  const size_t bytes = segment_->bytes().size() / kAreas;
  return segment_->bytes().subspan(index * bytes, bytes);
}

// What was never written is no copy, and what is torn is none either.
absl::Status KeptRecords::Adopt(std::span<const std::byte> bytes, std::string_view where) {
  absl::StatusOr<meta::RecordCopy> copy = meta::DecodeCopy(bytes);
  if (absl::IsFailedPrecondition(copy.status())) return copy.status();
  if (!copy.ok()) {
    const bool is_empty =
        std::ranges::all_of(bytes.first(std::min(bytes.size(), sizeof(meta::CopyHeader))),
                            [](std::byte byte) { return byte == std::byte{0}; });
    if (!is_empty) log_.Warn("{}: {}; another copy counts", where, copy.status().message());
    return absl::OkStatus();
  }
  // What lies on the disk may be of the job before this one, and of a later epoch.
  const bool is_of_another = has_found_copy_ && meta::IsOfAnotherJob(copy->records.timeline.value,
                                                                     copy_.records.timeline.value);
  has_found_copy_ = true;
  is_write_wanted_ |= is_of_another;
  if (is_of_another || copy->stamp <= copy_.stamp) return absl::OkStatus();
  copy_ = *std::move(copy);
  uint64_t whole = sizeof(meta::CopyHeader);
  const auto& [view, timeline, commit, abandoned, pins] = copy_.records;
  for (const std::string* record :
       {&view.bytes, &timeline.bytes, &commit.bytes, &abandoned.bytes, &pins.bytes}) {
    whole += record->size();
  }
  encoded_.assign(reinterpret_cast<const char*>(bytes.data()), whole);
  return absl::OkStatus();
}

bool KeptRecords::IsOfAnotherJob(const meta::JobState& job) const {
  return meta::IsOfAnotherJob(job.timeline.value, copy_.records.timeline.value);
}

bool KeptRecords::IsForAnotherJob(SegmentStore& segments, const std::string& segment_name,
                                  const TimelineRecord& decided) {
  const auto segment = segments.Open(segment_name, Access::kReadOnly);
  if (!segment.ok()) return false;
  const std::span<std::byte> bytes = (*segment)->bytes();
  const size_t area = bytes.size() / kAreas;
  for (size_t index = 0; index < kAreas; ++index) {
    const auto copy = meta::DecodeCopy(bytes.subspan(index * area, area));
    if (copy.ok() && meta::IsOfAnotherJob(decided, copy->records.timeline.value)) return true;
  }
  return false;
}

void KeptRecords::LeaveJob() {
  const CommitRecord& committed = copy_.records.commit.value;
  if (committed.world() != 0) {
    log_.Error(
        "version {}, which this node has kept as committed, is of another job of this name than "
        "that which the meta store has, and which has taken this node in: what lies here of it "
        "counts no longer",
        VersionOf(committed));
  }
  copy_ = {};
  encoded_.clear();
  has_left_job_ = true;
}

bool KeptRecords::IsOlder(const meta::JobState& job) const {
  const meta::Stamp stamp = job.stamp();
  if (stamp.epoch != copy_.stamp.epoch) return stamp.epoch < copy_.stamp.epoch;
  // Revisions of two stores say nothing of each other. If one of both is seeded with that epoch,
  // the store that there is now is the one that the job goes on with.
  const bool is_comparable = job.store_id == copy_.store_id || stamp.epoch == 0;
  return is_comparable && stamp.sequence < copy_.stamp.sequence;
}

bool KeptRecords::Keep(const meta::JobState& job) {
  if (IsOfAnotherJob(job)) return false;
  if (job.store_id == copy_.store_id && job.stamp() == copy_.stamp) {
    has_found_job_ |= job.IsSeeded();
    return true;
  }
  if (IsOlder(job)) return false;
  std::string bytes = meta::EncodeCopy(job);
  if (absl::Status status = WriteToArea(bytes); !status.ok()) {
    if (problem_.empty()) log_.Error("nothing is followed: {}", status.message());
    problem_ = std::string(status.message());
    return false;
  }
  problem_.clear();
  if (std::exchange(has_left_job_, false)) ClearOlderArea();
  const bool was_apart = job.store_id != copy_.store_id && job.stamp().epoch == copy_.stamp.epoch;
  if (was_apart) SayWhatIsNotOfTheJob(job);
  has_found_job_ |= job.IsSeeded();
  encoded_ = std::move(bytes);
  const auto take = [](const auto& record, auto& into) {
    if (record.modified != into.modified || record.bytes != into.bytes) into = record;
  };
  take(job.view, copy_.records.view);
  take(job.timeline, copy_.records.timeline);
  take(job.commit, copy_.records.commit);
  take(job.abandoned, copy_.records.abandoned);
  take(job.pins, copy_.records.pins);
  copy_.stamp = job.stamp();
  copy_.store_id = job.store_id;
  is_write_wanted_ = true;
  return true;
}

// Nodes that knew nothing of the job began what the store has, while all that know it were away.
void KeptRecords::SayWhatIsNotOfTheJob(const meta::JobState& job) const {
  const CommitRecord& committed = copy_.records.commit.value;
  const auto is_its_timeline = [&](const TimelineEntry& entry) {
    return entry.timeline() == committed.timeline();
  };
  const auto& chain = job.timeline.value.chain();
  if (committed.world() == 0 || std::ranges::any_of(chain, is_its_timeline)) return;
  log_.Error(
      "version {}, which this node has kept as committed, is of no timeline that the meta store "
      "knows: what lies here of it counts no longer",
      VersionOf(committed));
}

absl::Status KeptRecords::WriteToArea(const std::string& bytes) {
  const size_t older = (newest_ + 1) % kAreas;
  const std::span<std::byte> area = Area(older);
  if (bytes.size() > area.size()) {
    return absl::ResourceExhaustedError(
        fmt::format("the job's records need {} bytes of segment {}, an area has {}", bytes.size(),
                    segment_->name(), area.size()));
  }
  // Whoever dies within it leaves a wrong CRC here, and the copy before it in the other area.
  std::memcpy(area.data(), bytes.data(), bytes.size());
  newest_ = older;
  return absl::OkStatus();
}

void KeptRecords::ClearOlderArea() {
  const std::span<std::byte> area = Area((newest_ + 1) % kAreas);
  std::ranges::fill(area.first(sizeof(meta::CopyHeader)), std::byte{0});
}

// One at a time: a slow disk must not make a queue of them, only the newest counts.
void KeptRecords::WriteToDisk() {
  if (is_writing_ || is_write_due_ || !is_write_wanted_) return;
  const Time now = executor_.Now();
  const Time next = written_at_ ? *written_at_ + kDiskPace : now;
  if (next <= now) return WriteNow();
  is_write_due_ = true;
  executor_.After(next - now, lifetime_.Bind([this] {
    is_write_due_ = false;
    WriteAtOnce();
  }));
}

void KeptRecords::WriteAtOnce() {
  if (is_write_wanted_) WriteNow();
}

void KeptRecords::WriteNow() {
  is_write_wanted_ = false;
  is_writing_ = true;
  written_at_ = executor_.Now();
  records_.Write({{std::string(kKeptKey), encoded_}}, Durability::kSynced,
                 lifetime_.Bind([this](const absl::Status& status) {
                   is_writing_ = false;
                   OnWritten(status);
                   WriteToDisk();
                 }));
}

void KeptRecords::OnWritten(const absl::Status& status) {
  const bool was_owed = !disk_problem_.empty();
  if (status.ok()) {
    if (was_owed) log_.Info("the copy of the job's records: written, as before the failure");
    disk_problem_.clear();
    return;
  }
  ++failed_writes_;
  Owe(status);
  if (!was_owed) {
    log_.Warn("the copy of the job's records: {}; a reboot of this host would not know it",
              status.message());
  }
  if (on_failure_) on_failure_();
}

void KeptRecords::Owe(const absl::Status& why) {
  disk_problem_ = fmt::format(
      "{}; protection goes on, but a reboot of this host would not know what was committed",
      why.message());
}

void KeptRecords::set_on_failure(absl::AnyInvocable<void()> on_failure) {
  on_failure_ = std::move(on_failure);
  if (!disk_problem_.empty()) on_failure_();
}

void KeptRecords::WriteAgain() {
  if (disk_problem_.empty() || encoded_.empty()) return;
  is_write_wanted_ = true;
  WriteToDisk();
}

}  // namespace unreft::smp
