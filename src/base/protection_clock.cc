#include "base/protection_clock.h"

#include <algorithm>
#include <vector>

namespace unreft {

void ProtectionClock::Begin(std::optional<Step> restored, Time now) {
  waiting_.clear();
  newest_.reset();
  under_way_.reset();
  committed_ = restored;
  committed_at_ = now;
  is_restored_ = true;
}

void ProtectionClock::Reported(Step step, bool started, Time now) {
  if (committed_ && step <= *committed_) return;
  if (started && (!under_way_ || step > *under_way_)) under_way_ = step;
  last_report_ = now;
  if (newest_ && step <= *newest_) return;
  newest_ = step;
  if (!waiting_.empty() && now - waiting_.back().since < limit() / kReportsPerLimit) {
    waiting_.back().last = step;
    return;
  }
  waiting_.push_back({step, step, now});
  if (waiting_.size() <= kReportsMax) return;
  // The oldest two become one: so many of 1/64 of the limit each are past it by far.
  waiting_[1].first = waiting_[0].first;
  waiting_[1].since = waiting_[0].since;
  waiting_.pop_front();
}

void ProtectionClock::GivenUp(Step step) {
  if (under_way_ && *under_way_ <= step) under_way_.reset();
}

void ProtectionClock::Committed(Step step, Time now) {
  if (committed_ && step <= *committed_) return;
  if (committed_ && !is_restored_) {
    distances_.push_back(now - committed_at_);
    if (distances_.size() > kDistancesMax) distances_.pop_front();
  }
  committed_ = step;
  committed_at_ = now;
  is_restored_ = false;
  if (under_way_ && *under_way_ <= step) under_way_.reset();
  while (!waiting_.empty() && waiting_.front().last <= step) waiting_.pop_front();
  if (!waiting_.empty() && waiting_.front().first <= step) {
    waiting_.front().first = Step{step.value + 1};
  }
}

// The median, so that one pause or one failure does not make a distance usual.
Duration ProtectionClock::limit() const {
  if (distances_.empty()) return kLimitMin;
  std::vector<Duration> sorted(distances_.begin(), distances_.end());
  const auto middle = sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return std::max(kLimitMin, kUsualDistances * *middle);
}

Time ProtectionClock::AgesUntil(Time now) const { return under_way_ ? now : last_report_; }

bool ProtectionClock::ProtectingAt(Time now) const {
  if (!committed_) return false;
  return waiting_.empty() || AgesUntil(now) - waiting_.front().since < limit();
}

std::optional<Time> ProtectionClock::TurnsFalseAt(Time now) const {
  if (!ProtectingAt(now) || waiting_.empty() || !under_way_) return std::nullopt;
  return waiting_.front().since + limit();
}

std::optional<Duration> ProtectionClock::SinceCommit(Time now) const {
  if (!committed_) return std::nullopt;
  return now - committed_at_;
}

std::optional<Step> ProtectionClock::waiting() const {
  if (waiting_.empty()) return std::nullopt;
  return waiting_.front().first;
}

Duration ProtectionClock::WaitingFor(Time now) const {
  return waiting_.empty() ? Duration::zero() : now - waiting_.front().since;
}

}  // namespace unreft
