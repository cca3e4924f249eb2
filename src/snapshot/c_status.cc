#include "snapshot/c_status.h"

#include <utility>

namespace unreft::snapshot {
namespace {

uint64_t OrNone(const std::optional<Step>& step) { return step ? step->value : UINT64_MAX; }

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

unreft_status CStatus::Of(ClientStatus status, std::string copier) {
  last_problem_ = std::move(status.last_problem);
  copier_ = std::move(copier);
  why_unprotected_ = std::move(status.why_unprotected);
  unsampled_ = std::move(status.unsampled);
  unreft_status out{};
  out.connected = status.connected ? 1 : 0;
  out.ready = status.ready ? 1 : 0;
  out.timeline = status.timeline.value;
  out.last_captured_step = OrNone(status.last_captured);
  out.last_sealed_step = OrNone(status.last_sealed);
  out.last_committed_step = OrNone(status.last_committed);
  out.snapshots_started = status.started;
  out.snapshots_skipped = status.skipped;
  out.snapshots_given_up = status.given_up;
  out.bytes_captured = status.bytes_captured;
  out.last_fence_wait_s = Seconds(status.last_fence_wait);
  out.total_fence_wait_s = Seconds(status.total_fence_wait);
  out.last_problem = last_problem_.c_str();
  out.copying = status.copying ? 1 : 0;
  out.copier = copier_.c_str();
  out.protecting = status.protecting ? 1 : 0;
  out.seconds_since_commit = status.since_commit ? Seconds(*status.since_commit) : -1;
  out.why_unprotected = why_unprotected_.c_str();
  out.unsampled = unsampled_.c_str();
  return out;
}

}  // namespace unreft::snapshot
