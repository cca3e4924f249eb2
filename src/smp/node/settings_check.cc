#include "smp/node/settings_check.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/segment_store.h"
#include "meta/record_checks.h"

namespace unreft::smp {
namespace {

constexpr std::string_view kRecordKey = "settings";  // of the record store

}  // namespace

SettingsCheck::SettingsCheck(NodeSeams& seams, const NodeOptions& options)
    : seams_(seams), options_(options) {
  if (options.has_own_store) return;  // which is empty
  job_ = std::make_unique<JobSettings>(*seams.kv, seams.executor, seams.log, options,
                                       seams.transport->address(), [] {});
}

void SettingsCheck::Start(absl::AnyInvocable<void(absl::Status)> done) {
  done_ = std::move(done);
  seams_.records.Scan(std::string(kRecordKey), lifetime_.Bind([this](auto records) {
    const KeptMemory memory = LookAtMemory(records);
    if (job_ == nullptr) return EndByMemory();
    job_->Ask(memory, [this](absl::Status status) {
      if (absl::IsNotFound(status)) return EndByMemory();
      if (absl::IsUnavailable(status)) {
        seams_.log.Warn("the job's settings cannot be read yet: {}", status.message());
        return EndByMemory();
      }
      if (status.ok()) Keep();
      End(std::move(status));
    });
  }));
}

// By what lies beside it.
KeptMemory SettingsCheck::LookAtMemory(const absl::StatusOr<std::vector<Record>>& records) {
  const absl::StatusOr<std::vector<SegmentInfo>> memory =
      seams_.segments.List(MemoryPrefix(options_));
  makes_memory_ = memory.ok() && memory->empty();
  SettingsRecord kept;
  const bool is_kept = records.ok() && records->size() == 1 &&
                       kept.ParseFromString(records->front().value) && meta::CheckRecord(kept).ok();
  if (!is_kept || !memory.ok() || memory->empty()) return KeptMemory::kNone;
  // The others are this daemon's alone in a job of one node, and fit to what is there.
  const bool is_alone = job_ == nullptr && kept.nodes() == 1;
  if (is_alone) {
    kept.clear_slots_per_rank();
    kept.clear_pins();
    kept.clear_block_bytes();
  }
  by_memory_ = CompareSettings(kept, options_, "the memory that lies here");
  return by_memory_.ok() ? KeptMemory::kAgrees : KeptMemory::kDiffers;
}

// Without the store's word, or a job that has a store: what the memory here was made by counts.
void SettingsCheck::EndByMemory() {
  if (by_memory_.ok() && (job_ == nullptr || makes_memory_)) Keep();
  End(by_memory_);
}

// Nothing waits for it.
void SettingsCheck::Keep() {
  const std::string address = job_ == nullptr ? "this host" : seams_.transport->address();
  seams_.records.Write(
      {{std::string(kRecordKey), SettingsOf(options_, address).SerializeAsString()}},
      Durability::kSynced, [](const absl::Status&) {});
}

void SettingsCheck::End(absl::Status status) {
  seams_.executor.Post(
      lifetime_.Bind([done = std::move(done_), status]() mutable { done(std::move(status)); }));
}

}  // namespace unreft::smp
