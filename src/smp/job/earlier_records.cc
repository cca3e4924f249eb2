#include "smp/job/earlier_records.h"

#include <fmt/format.h>

#include <utility>

#include "base/format.h"
#include "meta/record_checks.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {
namespace {

constexpr meta::Revision kFirst{1};

template <typename Message>
absl::Status Put(Message message, meta::Shared<Message>& into) {
  if (absl::Status status = meta::CheckRecord(message); !status.ok()) {
    return absl::DataLossError(
        fmt::format("what an earlier release has kept of the job: {}", status.message()));
  }
  into.bytes = message.SerializeAsString();
  into.value = std::move(message);
  into.modified = kFirst;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<meta::JobState> EarlierRecords(const NodeRecord& record, NodeSlot slot) {
  meta::JobState job;
  if (record.chain().origins().empty()) return job;
  TimelineRecord timeline;
  SetChain(record.chain(), timeline);
  absl::Status status = Put(std::move(timeline), job.timeline);
  CommitRecord commit;
  SetVersion(record.committed(), commit);
  commit.set_world(record.committed_world());
  if (commit.world() != 0) SetGroups({{.slots = {slot}, .k = 1}}, *commit.mutable_groups());
  status.Update(Put(std::move(commit), job.commit));
  if (!record.pins().pins().empty()) status.Update(Put(record.pins(), job.pins));
  if (!status.ok()) return status;
  return job;
}

}  // namespace unreft::smp
