#include "snapshot/host_copier.h"

#include <utility>

#include "snapshot/stream_copy.h"

namespace unreft::snapshot {
namespace {

void Copy(std::span<const CopyOp> ops) {
  for (const CopyOp& op : ops) StreamCopy(op.target, op.source, op.bytes);
  StreamFence();
}

}  // namespace

absl::Status HostCopier::CopyNow(std::span<const CopyOp> ops, void* /*stream*/) {
  Copy(ops);
  return absl::OkStatus();
}

void HostCopier::CopyBucket(std::vector<CopyOp> ops, void* /*stream*/,
                            absl::AnyInvocable<void(absl::Status)> done) {
  Copy(ops);
  executor_.Post([done = std::move(done)]() mutable { done(absl::OkStatus()); });
}

absl::Status HostCopier::Restore(std::span<const CopyOp> ops) {
  Copy(ops);
  return absl::OkStatus();
}

}  // namespace unreft::snapshot
