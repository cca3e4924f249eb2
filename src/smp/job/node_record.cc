#include "smp/job/node_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/format.h"
#include "base/wire.h"

namespace unreft::smp {
namespace {

constexpr std::string_view kCommitKey = "commit";
constexpr std::string_view kDecisionPrefix = "decision/";

constexpr std::string_view kPinsKey = "pins";

// The values of the record store (docs/formats/records.md).
struct CommitValue {
  uint16_t format = 1;
  Version version;
  uint64_t world = 0;
  void Fields(auto& wire) { wire(format, version.timeline, version.step, world); }
};

struct DecisionValue {
  uint16_t format = 1;
  Timeline timeline;
  Version parent;
  void Fields(auto& wire) { wire(format, timeline, parent.timeline, parent.step); }
};

std::string DecisionKey(Timeline timeline) {
  return fmt::format("{}{:020}", kDecisionPrefix, timeline.value);
}

RecordChange ChangeOf(const recovery::TimelineOrigin& origin) {
  return {DecisionKey(origin.timeline),
          EncodeWire(DecisionValue{1, origin.timeline, origin.parent})};
}

absl::Status NothingKnown(const absl::Status& records) {
  return absl::Status(
      records.code(),
      fmt::format("{}; and no memory of this boot says what was committed. Mend the disk; if there "
                  "is nothing to go back to, remove the records",
                  records.message()));
}

}  // namespace

void NodeRecord::Open(SegmentStore& segments, RecordStore& records, Random& random, Log& log,
                      std::string segment_name, RandomId boot_id, OpenDone done) {
  std::unique_ptr<NodeRecord> record(new NodeRecord(records, log));
  records.Scan("", [record = std::move(record), &segments, &random, &log, boot_id,
                    segment_name = std::move(segment_name),
                    done = std::move(done)](absl::StatusOr<std::vector<Record>> found) mutable {
    absl::Status status = record->Adopt(segments, random, segment_name, boot_id, found);
    if (!status.ok()) return done(status);
    done(std::move(record));
  });
}

absl::Status NodeRecord::Adopt(SegmentStore& segments, Random& random,
                               const std::string& segment_name, RandomId boot_id,
                               const absl::StatusOr<std::vector<Record>>& records) {
  if (records.ok()) AdoptRecords(*records);
  absl::StatusOr<std::unique_ptr<Segment>> segment =
      segments.Open(segment_name, Access::kReadWrite);
  if (absl::IsOutOfRange(segment.status())) {  // its maker died before it had a size
    if (absl::Status status = segments.Remove(segment_name); !status.ok()) return status;
    segment = absl::NotFoundError(segment_name);
  }
  // Another user's is none.
  const bool fresh_memory =
      absl::IsNotFound(segment.status()) || absl::IsPermissionDenied(segment.status());
  if (fresh_memory && !records.ok()) return NothingKnown(records.status());
  if (fresh_memory) segment = segments.Create(segment_name, kNodeSegmentBytes);
  if (!segment.ok()) return segment.status();
  segment_ = *std::move(segment);
  if (absl::Status status = segment_->Lock(); !status.ok()) return status;
  if (absl::Status status = segment_->Reserve(0, kNodeSegmentBytes); !status.ok()) return status;

  if (!fresh_memory) {
    absl::StatusOr<bool> adopted = AdoptBody(boot_id);
    if (!adopted.ok()) return adopted.status();
    if (!*adopted && !records.ok()) return NothingKnown(records.status());
    if (*adopted && !records.ok()) {
      log_.Error("{}; going on with what the memory says, which does not know of pins",
                 records.status().message());
      Owe(records.status());
    }
    if (*adopted) return absl::OkStatus();
  }
  body_.boot_id = boot_id;
  body_.incarnation = random.NextId();
  body_.session = 1;
  body_.capture_began = 1;  // unknown: the safe answer
  Store();
  return absl::OkStatus();
}

absl::StatusOr<bool> NodeRecord::AdoptBody(RandomId boot_id) {
  absl::StatusOr<NodeBody> body = ReadNodeBody(segment_->bytes());
  if (absl::IsFailedPrecondition(body.status())) return body.status();
  if (!body.ok() || body->boot_id != boot_id) {
    log_.Error("node segment {}: {}; the slots are quarantined", segment_->name(),
               body.ok() ? "of another boot" : body.status().message());
    return false;
  }
  body_ = *body;
  std::vector<recovery::TimelineOrigin> origins;
  for (const DecisionEntry& entry : std::span(body_.decision).first(body_.decisions)) {
    origins.push_back(
        {Timeline{entry.timeline}, {Timeline{entry.parent_timeline}, Step{entry.parent_step}}});
  }
  chain_ = recovery::TimelineChain(std::move(origins));
  body_.session += 1;
  Store();
  return true;
}

void NodeRecord::AdoptRecords(const std::vector<Record>& records) {
  std::vector<recovery::TimelineOrigin> origins;
  for (const Record& record : records) {
    if (record.key == kCommitKey) {
      if (auto commit = DecodeWire<CommitValue>(record.value, record.key); commit.ok()) {
        body_.committed_timeline = commit->version.timeline.value;
        body_.committed_step = commit->version.step.value;
        body_.committed_world = commit->world;
      } else {
        log_.Error("record store: {}", commit.status().message());
      }
    } else if (record.key.starts_with(kDecisionPrefix)) {
      if (auto decision = DecodeWire<DecisionValue>(record.value, record.key); decision.ok()) {
        origins.push_back({decision->timeline, decision->parent});
      } else {
        log_.Error("record store: {}", decision.status().message());
      }
    } else if (record.key == kPinsKey && !pins_.ParseFromString(record.value)) {
      log_.Error("record store: the record of the pins of {} bytes does not parse",
                 record.value.size());
    }
  }
  chain_ = recovery::TimelineChain(std::move(origins));
  chain_.Trim(kDecisionsKept);  // what is read may be odd
}

void NodeRecord::Store() {
  const auto origins = chain_.origins();
  body_.decisions = static_cast<uint32_t>(origins.size());
  for (size_t i = 0; i < origins.size(); ++i) {
    body_.decision[i] = {origins[i].timeline.value, origins[i].parent.timeline.value,
                         origins[i].parent.step.value};
  }
  WriteNodeBody(segment_->bytes(), body_);
}

Timeline NodeRecord::OpenTimeline(Version parent) {
  recovery::TimelineChain chain = chain_;
  const Timeline opened = chain.Open(parent);
  SetChain(std::move(chain), /*unused=*/true);
  return opened;
}

void NodeRecord::AdoptTimelines(std::vector<recovery::TimelineOrigin> origins, bool unused) {
  SetChain(recovery::TimelineChain(std::move(origins)), unused);
}

void NodeRecord::SetChain(recovery::TimelineChain chain, bool unused) {
  chain.Trim(kDecisionsKept);
  if (std::ranges::equal(chain.origins(), chain_.origins())) return;
  std::vector<RecordChange> batch;
  for (const recovery::TimelineOrigin& old : chain_.origins()) {
    if (!chain.ParentOf(old.timeline)) batch.push_back({DecisionKey(old.timeline), std::nullopt});
  }
  for (const recovery::TimelineOrigin& origin : chain.origins()) {
    batch.push_back(ChangeOf(origin));
  }
  if (chain.newest() != chain_.newest()) body_.capture_began = unused ? 0 : 1;
  chain_ = std::move(chain);
  Store();
  Write(std::move(batch));
}

void NodeRecord::SetCaptureBegan() {
  if (body_.capture_began != 0) return;
  body_.capture_began = 1;
  Store();
}

void NodeRecord::SetCapturesAll() {
  if (captures_all()) return;
  body_.captures_all = 1;
  Store();
}

void NodeRecord::SetView(uint64_t number) {
  constexpr uint64_t kMax = std::numeric_limits<decltype(body_.view)>::max();
  const uint64_t kept = std::min(number, kMax);
  if (kept <= body_.view) return;
  body_.view = static_cast<uint32_t>(kept);
  Store();
}

void NodeRecord::SetCommitted(Version version, uint64_t world) {
  body_.committed_timeline = version.timeline.value;
  body_.committed_step = version.step.value;
  body_.committed_world = world;
  Store();
  WriteCommit();
}

std::optional<NodeSlot> NodeRecord::taken_slot() const {
  if (body_.taken_slot == 0) return std::nullopt;
  return NodeSlot{body_.taken_slot - 1};
}

void NodeRecord::SetTakenSlot(NodeSlot slot) {
  if (taken_slot() == slot) return;
  body_.taken_slot = static_cast<uint32_t>(slot.value + 1);
  Store();
}

void NodeRecord::DeclareFreshStart() {
  SetCommitted(Version{}, 0);
  // On a timeline of its own no earlier version is a candidate any more.
  OpenTimeline(Version{});
}

void NodeRecord::SetPins(PinRecord pins, absl::AnyInvocable<void(absl::Status)> done) {
  pins_ = std::move(pins);
  records_.Write({{std::string(kPinsKey), pins_.SerializeAsString()}}, Durability::kSynced,
                 lifetime_.Bind([this, done = std::move(done)](absl::Status status) mutable {
                   if (!status.ok()) {
                     ++failed_writes_;
                     log_.Warn("record of the pins: {}; the next process would not know them",
                               status.message());
                   }
                   done(std::move(status));
                 }));
}

void NodeRecord::WriteCommit() {
  // One write at a time: a slow disk must not make a queue of commits, only the newest counts.
  if (commit_write_running_) {
    commit_write_wanted_ = true;
    return;
  }
  commit_write_running_ = true;
  std::vector<RecordChange> batch{
      {std::string(kCommitKey), EncodeWire(CommitValue{1, committed(), committed_world()})}};
  records_.Write(std::move(batch), Durability::kSynced, lifetime_.Bind([this](absl::Status status) {
    commit_write_running_ = false;
    OnWritten(status, "record of the commit");
    if (std::exchange(commit_write_wanted_, false)) WriteCommit();
  }));
}

void NodeRecord::Write(std::vector<RecordChange> batch) {
  records_.Write(std::move(batch), Durability::kSynced, lifetime_.Bind([this](absl::Status status) {
    OnWritten(status, "record of a decision");
  }));
}

void NodeRecord::OnWritten(const absl::Status& status, std::string_view what) {
  const bool failed_before = std::exchange(last_write_failed_, !status.ok());
  if (status.ok() && failed_before) log_.Info("{}: written, as before the failure", what);
  if (status.ok()) {
    if (!owes_writes_) problem_.clear();
    return;
  }
  ++failed_writes_;
  Owe(status);
  if (on_failure_) on_failure_();
  if (failed_before) return;
  log_.Warn("{}: {}; a reboot of this host would not know it", what, status.message());
}

void NodeRecord::Owe(const absl::Status& why) {
  owes_writes_ = true;
  problem_ = fmt::format(
      "{}; protection goes on, but a reboot of this host would not know what was committed",
      why.message());
}

void NodeRecord::set_on_failure(absl::AnyInvocable<void()> on_failure) {
  on_failure_ = std::move(on_failure);
  if (owes_writes_) on_failure_();
}

void NodeRecord::WriteAgain() {
  if (!std::exchange(owes_writes_, false)) return;
  std::vector<RecordChange> batch;
  for (const recovery::TimelineOrigin& origin : chain_.origins()) batch.push_back(ChangeOf(origin));
  if (!batch.empty()) Write(std::move(batch));
  WriteCommit();
}

}  // namespace unreft::smp
