#include "smp/job/node_record.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/format.h"
#include "base/wire.h"
#include "smp/core/usable_segment.h"
#include "smp/job/kept_records.h"
#include "smp/job/refusals.h"

namespace unreft::smp {
namespace {

constexpr std::string_view kCommitKey = "commit";
constexpr std::string_view kDecisionPrefix = "decision/";
constexpr std::string_view kPinsKey = "pins";

// What earlier releases wrote to the record store (docs/formats/records.md).
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

}  // namespace

void NodeRecord::Open(SegmentStore& segments, RecordStore& records, Random& random, Log& log,
                      std::string segment_name, RandomId boot_id, OpenDone done) {
  std::unique_ptr<NodeRecord> record(new NodeRecord(log));
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
  if (records.ok()) AdoptEarlier(*records);
  absl::StatusOr<std::unique_ptr<Segment>> segment = OpenUsable(segments, segment_name);
  const bool fresh_memory = absl::IsNotFound(segment.status());
  if (fresh_memory && !records.ok()) return CommitsUnknown(records.status());
  if (fresh_memory) segment = segments.Create(segment_name, kNodeSegmentBytes);
  if (!segment.ok()) return segment.status();
  segment_ = *std::move(segment);
  if (absl::Status status = segment_->Lock(); !status.ok()) return status;
  if (absl::Status status = segment_->Reserve(0, kNodeSegmentBytes); !status.ok()) return status;

  if (!fresh_memory) {
    absl::StatusOr<bool> adopted = AdoptBody(boot_id);
    if (!adopted.ok()) return adopted.status();
    if (!*adopted && !records.ok()) return CommitsUnknown(records.status());
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

void NodeRecord::AdoptEarlier(const std::vector<Record>& records) {
  // What was decided since is in the copy.
  if (std::ranges::any_of(records, [](const Record& record) { return record.key == kKeptKey; }))
    return;
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

void NodeRecord::AdoptTimelines(std::vector<recovery::TimelineOrigin> origins, bool unused) {
  SetChain(recovery::TimelineChain(std::move(origins)), unused);
}

void NodeRecord::SetChain(recovery::TimelineChain chain, bool unused) {
  chain.Trim(kDecisionsKept);
  if (std::ranges::equal(chain.origins(), chain_.origins())) return;
  if (chain.newest() != chain_.newest()) body_.capture_began = unused ? 0 : 1;
  chain_ = std::move(chain);
  Store();
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

void NodeRecord::LeaveJob() {
  body_.view = 0;
  body_.captures_all = 0;
  SetCommitted(Version{}, 0);
}

void NodeRecord::SetCommitted(Version version, uint64_t world) {
  body_.committed_timeline = version.timeline.value;
  body_.committed_step = version.step.value;
  body_.committed_world = world;
  Store();
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

}  // namespace unreft::smp
