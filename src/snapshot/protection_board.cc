#include "snapshot/protection_board.h"

#include <utility>

namespace unreft::snapshot {
namespace {

constexpr char kWhenRefused[] =
    "Training goes on unprotected: mend what it names, then start the job again.";
constexpr char kWhenLost[] =
    "Start the daemon again (`unreft up`): this process comes back to it by itself.";
constexpr char kOtherwise[] = "`unreft status` shows what each rank captures and what it lacks.";

}  // namespace

void ProtectionBoard::Begin(std::optional<Step> restored, Time now) {
  std::lock_guard lock(mutex_);
  account_.Begin(restored, now);
}

void ProtectionBoard::Snapshot(Step step, const absl::Status& outcome, const std::string& skipped,
                               Time now) {
  std::lock_guard lock(mutex_);
  if (outcome.ok() && skipped.empty()) return account_.Started(step, now);
  const std::optional<Step> newest = account_.clock().newest();
  // A step that is told twice is the caller's mistake, and no work.
  if (!outcome.ok() && newest && step <= *newest) return;
  account_.Skipped(step, outcome.ok() ? skipped : std::string(outcome.message()), now);
}

void ProtectionBoard::GaveUp(Step step, const std::string& why) {
  std::lock_guard lock(mutex_);
  account_.GaveUp(step, why);
}

void ProtectionBoard::Committed(Step step, Time now) {
  std::lock_guard lock(mutex_);
  account_.Committed(step, now);
}

void ProtectionBoard::Connected() {
  std::lock_guard lock(mutex_);
  lost_.clear();
  obstacle_.clear();  // told anew
}

void ProtectionBoard::Lost(const std::string& why) {
  std::lock_guard lock(mutex_);
  lost_ = "the daemon of this node is away (" + why + ")";
}

void ProtectionBoard::Refused(const std::string& why) {
  std::lock_guard lock(mutex_);
  refused_ = "the daemon of this node refuses this rank (" + why + ")";
}

void ProtectionBoard::Obstacle(std::string what) {
  std::lock_guard lock(mutex_);
  obstacle_ = std::move(what);
}

std::string ProtectionBoard::Told() const {
  std::lock_guard lock(mutex_);
  if (!refused_.empty()) return refused_;
  return lost_.empty() ? obstacle_ : lost_;
}

void ProtectionBoard::Fill(ClientStatus& status, Time now) const {
  std::lock_guard lock(mutex_);
  status.protecting = account_.clock().ProtectingAt(now);
  status.since_commit = account_.clock().SinceCommit(now);
  if (!refused_.empty()) {
    status.why_unprotected = account_.WhyNot(refused_, kWhenRefused, now);
  } else if (!lost_.empty()) {
    status.why_unprotected = account_.WhyNot(lost_, kWhenLost, now);
  } else {
    status.why_unprotected = account_.WhyNot(obstacle_, kOtherwise, now);
  }
}

}  // namespace unreft::snapshot
